/* See container.h. cgroups: Documentation/admin-guide/cgroup-v2.rst (cgroup.kill), cgroup-v1/freezer-subsystem.rst. */
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATH_SIZE 8192u
/* cgroup.procs is read and its processes ended that often: a fork bomb may be faster than one reading. */
#define ROUNDS 1000u

/* The first bytes of a file of /proc or of a cgroup, with a NUL. false: it cannot be read. */
static bool read_text (const char *path, char *text, size_t size)
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

uint64_t container_start_time (pid_t pid)
{
    char path[64], text[1024];
    const char *word;

    snprintf (path, sizeof (path), "/proc/%d/stat", (int) pid);
    if (!read_text (path, text, sizeof (text)))
        return 0;
    word = strrchr (text, ')'); /* the name before it may be anything */
    for (int field = 2; word != NULL && field < 22; field++)
        word = strchr (word + 1, ' ');
    return word != NULL ? strtoull (word + 1, NULL, 10) : 0;
}

/* The path of a process's cgroup: of version 2 (controller ""), or of a controller of version 1. false: there is none. */
static bool cgroup_of (const char *process, const char *controller, char *path, size_t size)
{
    char name[64], text[PATH_SIZE], *rest = text, *line;

    snprintf (name, sizeof (name), "/proc/%s/cgroup", process);
    if (!read_text (name, text, sizeof (text)))
        return false;
    while ((line = strsep (&rest, "\n")) != NULL) {
        char *controllers = strchr (line, ':'), *where = controllers != NULL ? strchr (controllers + 1, ':') : NULL, *one;

        if (where == NULL)
            continue;
        *where++ = '\0';
        controllers++;
        if (*controller == '\0' ? *controllers != '\0' : *controllers == '\0')
            continue;
        for (one = controllers; *controller != '\0' && (one = strsep (&controllers, ",")) != NULL;)
            if (strcmp (one, controller) == 0)
                break;
        if (*controller != '\0' && one == NULL)
            continue;
        return (size_t) snprintf (path, size, "%s", where) < size;
    }
    return false;
}

/* Whether nothing but this process is in the cgroup. */
static bool is_own (const char *directory, const char *path, const char *caller, pid_t pid)
{
    char name[2 * PATH_SIZE], text[4096], *rest = text, *line;
    size_t length = strlen (path);
    struct stat found;

    /* The caller's own, one above it, or the root. */
    if (length <= 1 || (strncmp (caller, path, length) == 0 && (caller[length] == '/' || caller[length] == '\0')))
        return false;
    /* With a cgroup below it, others may be there: kernfs counts directories as links (kernfs_refresh_inode). */
    snprintf (name, sizeof (name), "%s%s", directory, path);
    if (stat (name, &found) != 0 || found.st_nlink != 2)
        return false;
    snprintf (name, sizeof (name), "%s%s/cgroup.procs", directory, path);
    if (!read_text (name, text, sizeof (text)) || text[0] == '\0')
        return false;
    while ((line = strsep (&rest, "\n")) != NULL)
        if (*line != '\0' && strtol (line, NULL, 10) != pid)
            return false;
    return true;
}

static int open_of (const char *directory, const char *path, const char *file, int flags)
{
    char name[2 * PATH_SIZE];

    snprintf (name, sizeof (name), "%s%s/%s", directory, path, file);
    return open (name, flags | O_CLOEXEC);
}

static void open_cgroups (struct container *container)
{
    /* Where controllers are mounted: systemd's places, and those of cgroup v2 alone. */
    static const struct {
        const char *controller, *directory;
    } places[] = { { "", "/sys/fs/cgroup" },
                   { "", "/sys/fs/cgroup/unified" },
                   { "freezer", "/sys/fs/cgroup/freezer" },
                   { "devices", "/sys/fs/cgroup/devices" } };
    char process[16], path[PATH_SIZE], caller[PATH_SIZE];

    snprintf (process, sizeof (process), "%d", (int) container->pid);
    for (unsigned i = 0; i < sizeof (places) / sizeof (places[0]); i++) {
        if (!cgroup_of (process, places[i].controller, path, sizeof (path)) ||
            !cgroup_of ("self", places[i].controller, caller, sizeof (caller)) ||
            !is_own (places[i].directory, path, caller, container->pid))
            continue;
        if (container->cgroup == NULL) {
            container->cgroup = strdup (path);
            container->controller = places[i].controller;
        }
        if (container->kill < 0 && *places[i].controller == '\0')
            container->kill = open_of (places[i].directory, path, "cgroup.kill", O_WRONLY);
        if (container->procs < 0)
            container->procs = open_of (places[i].directory, path, "cgroup.procs", O_RDONLY);
        if (strcmp (places[i].controller, "freezer") == 0)
            container->freezer = open_of (places[i].directory, path, "freezer.state", O_WRONLY);
    }
}

/* 0: the caller's, or the process has ended. */
static uint64_t pid_namespace_of (pid_t pid)
{
    char path[64];
    struct stat own, other;

    snprintf (path, sizeof (path), "/proc/%d/ns/pid", (int) pid);
    return stat (path, &other) == 0 && stat ("/proc/self/ns/pid", &own) == 0 && own.st_ino != other.st_ino ? other.st_ino : 0;
}

/* Whether it is pid 1 of a pid namespace that is not the caller's. */
static bool is_init (pid_t pid)
{
    char path[64], text[16384]; /* groups come before */
    const char *line, *last;

    if (pid_namespace_of (pid) == 0)
        return false;
    snprintf (path, sizeof (path), "/proc/%d/status", (int) pid);
    if (!read_text (path, text, sizeof (text)) || (line = strstr (text, "\nNSpid:")) == NULL)
        return false;
    line += strlen ("\nNSpid:");
    for (last = line; *line != '\n' && *line != '\0'; line++)
        if (*line == '\t' || *line == ' ')
            last = line + 1;
    return strtol (last, NULL, 10) == 1;
}

int container_open (struct container *container, pid_t pid, uint64_t start_time)
{
    *container = (struct container) CONTAINER_NONE;
    if (pid == 0)
        return 0;
    container->pid = pid;
    container->start_time = start_time;
    container->pidfd = (int) syscall (SYS_pidfd_open, pid, 0);
    if (container->pidfd < 0 || container_start_time (pid) != start_time) {
        container_close (container);
        return -ESRCH;
    }
    container->is_namespace_init = is_init (pid);
    container->pid_namespace = pid_namespace_of (pid);
    open_cgroups (container);
    return 0;
}

static bool has_filter (pid_t pid)
{
    char path[64], text[4096];

    snprintf (path, sizeof (path), "/proc/%d/status", (int) pid);
    return read_text (path, text, sizeof (text)) && strstr (text, "\nSeccomp:\t2\n") != NULL;
}

/* By its own cgroup; else by a pid namespace that it began (a pod's is that of several containers); where it has neither, as a plain
 * process of the host has, by a filter, which every process that calls the guard has. */
static bool is_member (const struct container *container, pid_t pid)
{
    char process[16], path[PATH_SIZE];
    size_t length;

    if (container->cgroup != NULL) {
        length = strlen (container->cgroup);
        snprintf (process, sizeof (process), "%d", (int) pid);
        return cgroup_of (process, container->controller, path, sizeof (path)) &&
               strncmp (path, container->cgroup, length) == 0 && (path[length] == '/' || path[length] == '\0');
    }
    if (container->is_namespace_init)
        return pid_namespace_of (pid) == container->pid_namespace;
    return has_filter (pid);
}

/* container: of which the process must be; NULL: it is listed in the container's cgroup. */
static void end_one (const struct container *container, pid_t pid, uint64_t start_time)
{
    int pidfd = (int) syscall (SYS_pidfd_open, pid, 0);

    if (pidfd < 0)
        return;
    if ((start_time == 0 || container_start_time (pid) == start_time) && (container == NULL || is_member (container, pid)))
        syscall (SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    close (pidfd);
}

/* SIGKILL to each process in cgroup.procs; how many there are. */
static unsigned end_listed (int procs)
{
    char text[65536], *rest = text, *line;
    ssize_t size = pread (procs, text, sizeof (text) - 1, 0);
    unsigned count = 0;

    text[size > 0 ? size : 0] = '\0';
    while ((line = strsep (&rest, "\n")) != NULL && rest != NULL)
        if (*line != '\0') {
            end_one (NULL, (pid_t) strtol (line, NULL, 10), 0);
            count++;
        }
    return count;
}

const char *container_end (const struct container *container, const struct container_process *known, unsigned count)
{
    const char *used = "its processes";

    if (container->kill >= 0 && write (container->kill, "1", 1) == 1)
        used = "cgroup.kill";
    else if (container->is_namespace_init && syscall (SYS_pidfd_send_signal, container->pidfd, SIGKILL, NULL, 0) == 0)
        used = "pid namespace";
    else if (container->freezer >= 0 && container->procs >= 0) {
        used = "freezer";
        if (write (container->freezer, "FROZEN", 6) != 6)
            used = "cgroup.procs";
        (void) end_listed (container->procs);
        if (write (container->freezer, "THAWED", 6) != 6)
            used = "cgroup.procs";
    }
    if (container->pidfd >= 0)
        syscall (SYS_pidfd_send_signal, container->pidfd, SIGKILL, NULL, 0);
    for (unsigned i = 0; container->kill < 0 && container->procs >= 0 && i < ROUNDS && end_listed (container->procs) != 0; i++)
        nanosleep (&(struct timespec) { .tv_nsec = 100000 }, NULL);
    for (unsigned i = 0; i < count; i++)
        if (known[i].pid != 0 && known[i].start_time != 0)
            end_one (container, (pid_t) known[i].pid, known[i].start_time);
    return used;
}

bool container_is_left (const struct container *container, const struct container_process *known, unsigned count)
{
    char byte;

    if (container->procs >= 0 && pread (container->procs, &byte, 1, 0) > 0)
        return true;
    if (container->pidfd >= 0 && syscall (SYS_pidfd_send_signal, container->pidfd, 0, NULL, 0) == 0 &&
        container_start_time (container->pid) == container->start_time)
        return true;
    for (unsigned i = 0; i < count; i++)
        if (known[i].pid != 0 && known[i].start_time != 0 && is_member (container, (pid_t) known[i].pid) &&
            container_start_time ((pid_t) known[i].pid) == known[i].start_time)
            return true;
    return false;
}

void container_close (struct container *container)
{
    int *files[] = { &container->pidfd, &container->kill, &container->procs, &container->freezer };

    for (unsigned i = 0; i < sizeof (files) / sizeof (files[0]); i++) {
        if (*files[i] >= 0)
            close (*files[i]);
        *files[i] = -1;
    }
    free (container->cgroup);
    container->cgroup = NULL;
    container->pid = 0;
}
