/* See proc.h. */
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool proc_text (const char *path, char *text, size_t size)
{
    int file = open (path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t done = 0;

    if (file < 0)
        return false;
    while (used < size - 1 && (done = read (file, text + used, size - 1 - used)) > 0)
        used += (size_t) done;
    close (file);
    text[used] = '\0';
    return done >= 0;
}

bool proc_status (pid_t pid, const char *name, char *value, size_t size)
{
    char path[64], line[1024]; /* that of groups can be longer: its rest begins with a number */
    size_t length = strlen (name);
    bool is_found = false;
    FILE *file;

    snprintf (path, sizeof (path), "/proc/%d/status", (int) pid);
    file = fopen (path, "re");
    while (file != NULL && !is_found && fgets (line, sizeof (line), file) != NULL)
        if (strncmp (line, name, length) == 0 && line[length] == ':') {
            line[strcspn (line, "\n")] = '\0';
            snprintf (value, size, "%s", line + length + 1 + strspn (line + length + 1, "\t "));
            is_found = true;
        }
    if (file != NULL)
        fclose (file);
    return is_found;
}

long proc_status_number (pid_t pid, const char *name)
{
    char value[32];

    return proc_status (pid, name, value, sizeof (value)) ? strtol (value, NULL, 10) : 0;
}

uint64_t proc_start_time (pid_t pid)
{
    char path[64], text[1024];
    const char *word;

    snprintf (path, sizeof (path), "/proc/%d/stat", (int) pid);
    if (!proc_text (path, text, sizeof (text)))
        return 0;
    word = strrchr (text, ')'); /* the name before it may be anything */
    for (int field = 2; word != NULL && field < 22; field++)
        word = strchr (word + 1, ' ');
    return word != NULL ? strtoull (word + 1, NULL, 10) : 0;
}

void proc_keep_from_oom_killer (void)
{
    int file = open ("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (file < 0)
        return;
    (void) !write (file, "-999", 4);
    close (file);
}

int proc_fork_apart (void)
{
    pid_t child = fork ();
    int status = 0;

    if (child == 0) {
        pid_t second = fork ();

        if (second != 0)
            _exit (second < 0);
        setsid ();
        return 0;
    }
    while (child > 0 && waitpid (child, &status, 0) < 0 && errno == EINTR)
        continue;
    return child > 0 && status == 0 ? 1 : -1;
}
