/* See proc.h. */
#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* PF_EXITING, PF_DUMPCORE (linux/sched.h), of field 9 of stat. */
#define ENDING_FLAGS 0x204u
/* Of a process with more it is said only where SIGKILL was sent to the process as a whole. */
#define THREADS_MOST 512
/* While threads of its end. */
#define LOOKS_MOST 20u
#define LOOK_NS 500000

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

static bool has_sigkill (const char *mask) { return (strtoull (mask, NULL, 16) >> (SIGKILL - 1) & 1) != 0; }

/* kill(2), the OOM killer and the end of a pid namespace leave SIGKILL pending for the process as a whole until it is gone, and each of its threads
 * ends, one in execve too (kernel/signal.c, complete_signal, get_signal). */
static bool is_killed (pid_t pid)
{
    char mask[32];

    return proc_status (pid, "ShdPnd", mask, sizeof (mask)) && has_sigkill (mask);
}

enum thread_state { THREAD_RUNS, THREAD_ENDS, THREAD_GONE };

static enum thread_state state_of (pid_t pid, pid_t thread)
{
    char path[64], text[8192];
    const char *word, *mask;

    errno = 0;
    snprintf (path, sizeof (path), "/proc/%d/task/%d/stat", (int) pid, (int) thread);
    if (!proc_text (path, text, sizeof (text)))
        return errno == ENOENT || errno == ESRCH ? THREAD_GONE : THREAD_RUNS;
    word = strrchr (text, ')'); /* the name before it may be anything */
    for (int field = 2; word != NULL && field < 9; field++)
        word = strchr (word + 1, ' ');
    if (word != NULL && (strtoul (word + 1, NULL, 10) & ENDING_FLAGS) != 0)
        return THREAD_ENDS;
    snprintf (path, sizeof (path), "/proc/%d/task/%d/status", (int) pid, (int) thread);
    if (!proc_text (path, text, sizeof (text)))
        return errno == ENOENT || errno == ESRCH ? THREAD_GONE : THREAD_RUNS;
    /* A newline in the name, which comes before, is escaped. */
    mask = strstr (text, "\nSigPnd:\t");
    return mask != NULL && has_sigkill (mask + strlen ("\nSigPnd:\t")) ? THREAD_ENDS : THREAD_RUNS;
}

/* How many; up to THREADS_MOST of them. It is not whole where one ends meanwhile. -1: there is no such process. */
static int list_threads (pid_t pid, pid_t *threads)
{
    char path[64];
    struct dirent *entry;
    int count = 0;
    DIR *directory;

    snprintf (path, sizeof (path), "/proc/%d/task", (int) pid);
    directory = opendir (path);
    if (directory == NULL)
        return errno == ENOENT ? -1 : 0;
    while ((entry = readdir (directory)) != NULL) {
        if (atoi (entry->d_name) > 0 && count < THREADS_MOST)
            threads[count] = (pid_t) atoi (entry->d_name);
        count += atoi (entry->d_name) > 0;
    }
    closedir (directory);
    return count;
}

/* Those that are there before and after their number was read were there at that moment; and where they were all, one that ends has made
 * no other one since. THREAD_GONE: some were not, and it is to be looked again. */
static enum thread_state look_at_all (pid_t pid)
{
    pid_t threads[THREADS_MOST];
    int listed = list_threads (pid, threads), count = 0;

    if (listed < 0 || is_killed (pid))
        return THREAD_ENDS;
    if (listed > THREADS_MOST)
        return THREAD_RUNS;
    for (int i = 0; i < listed; i++) {
        enum thread_state state = state_of (pid, threads[i]);

        if (state == THREAD_RUNS)
            return state;
        if (state == THREAD_ENDS)
            threads[count++] = threads[i];
    }
    if (count == 0 || proc_status_number (pid, "Threads") != count)
        return THREAD_GONE;
    for (int i = 0; i < count; i++)
        if (state_of (pid, threads[i]) != THREAD_ENDS)
            return THREAD_GONE;
    return THREAD_ENDS;
}

bool proc_is_ending (pid_t pid)
{
    enum thread_state state = look_at_all (pid);

    for (unsigned i = 0; state == THREAD_GONE && i < LOOKS_MOST; i++) {
        nanosleep (&(struct timespec) { .tv_nsec = LOOK_NS }, NULL);
        state = look_at_all (pid);
    }
    return state == THREAD_ENDS;
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
