/* See own_cgroup.h. Files: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, pids.rst. Runs in monitors and the prober, at their start. */
#include "own_cgroup.h"
#include "channel.h"

#include "guard/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Of a tenant: as much as one process of its may have (RLIMIT_DATA, confine.c), and 64 MiB for all else: the owner of its quarantine, which is a
 * copy of the supervisor (a full ledger takes 90 MiB, so both have 180), monitor and watchdog, and the kernel's own (page tables, sockets,
 * descriptors).
 */
#define MEMORY_MOST "268435456"
/* Threads and processes of a tenant: of the supervisor one for each GPU (32), and eight; of its monitor and watchdog, and what they make for a
 * moment. Of the supervisor's user, where they cannot be counted so. */
#define PROCESSES_MOST "128"
#define USER_MOST 40
/* The agent removes cgroups without a process: one that was made just now, too. */
#define TRIES 5u

/* Version 2's names first. Swap would hold what memory must not. */
static const char *const limits[][2] = { { "memory.max", MEMORY_MOST },
                                         { "memory.swap.max", "0" },
                                         { "memory.limit_in_bytes", MEMORY_MOST },
                                         { "memory.memsw.limit_in_bytes", MEMORY_MOST },
                                         { "pids.max", PROCESSES_MOST } };
#define PIDS (sizeof (limits) / sizeof (limits[0]) - 1)

/* 0 or the errno. */
static int put (int directory, const char *name, const char *text)
{
    int file = openat (directory, name, O_WRONLY | O_CLOEXEC), error = 0;

    if (file < 0)
        return errno;
    if (write (file, text, strlen (text)) < 0)
        error = errno;
    close (file);
    return error;
}

/* 0 or the errno. */
static int enter (const char *path, bool *are_pids_limited)
{
    bool is_limited = false;
    int directory, error = 0;

    if (mkdir (path, 0755) != 0)
        return errno;
    directory = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return errno;
    for (unsigned i = 0; i <= PIDS && error == 0; i++) {
        error = put (directory, limits[i][0], limits[i][1]);
        is_limited |= error == 0;
        *are_pids_limited |= error == 0 && i == PIDS;
        if (error == ENOENT || error == EOPNOTSUPP) /* another hierarchy's, or a kernel that does not count swap */
            error = 0;
    }
    if (error == 0)
        error = is_limited ? put (directory, "cgroup.procs", "0") : ENOENT;
    close (directory);
    if (error != 0)
        (void) rmdir (path);
    return error;
}

/* Below what leads to the agent's tree. 0, also where there is no tree, or the errno. */
static int make (const char *directory, const char *tree, const char *name, bool *are_pids_limited)
{
    char path[2 * CHANNEL_PATH];
    struct stat found;
    int error = ENOENT;

    snprintf (path, sizeof (path), "%s/%s", directory, tree);
    if (directory[0] == '\0' || lstat (path, &found) != 0)
        return 0;
    for (unsigned i = 0; i < TRIES && error == ENOENT; i++) {
        snprintf (path, sizeof (path), "%s/%s/%s", directory, tree, name);
        error = enter (path, are_pids_limited);
    }
    return error;
}

/*
 * RLIMIT_NPROC counts what a user has on the whole machine, and any root can take a supervisor's user: a limit by which the supervisor could get no
 * thread would be others' to use up. So there is one only where no cgroup has it. Not in force for root.
 */
static void limit_user (bool are_pids_limited)
{
    struct rlimit user = { USER_MOST, USER_MOST };

    if (are_pids_limited)
        user.rlim_cur = user.rlim_max = RLIM_INFINITY;
    if (setrlimit (RLIMIT_NPROC, &user) == 0 || getrlimit (RLIMIT_NPROC, &user) != 0)
        return;
    user.rlim_cur = user.rlim_max; /* without CAP_SYS_RESOURCE */
    (void) setrlimit (RLIMIT_NPROC, &user);
}

void own_cgroup_enter (const char *directory, char problem[OWN_CGROUP_MESSAGE])
{
    bool are_pids_limited = false;
    int error, of_pids = 0;
    char name[64];

    snprintf (name, sizeof (name), "%d-%llu", (int) getpid (), (unsigned long long) guard_now ());
    error = make (directory, "cgroups", name, &are_pids_limited);
    if (!are_pids_limited)
        of_pids = make (directory, "cgroups-pids", name, &are_pids_limited);
    limit_user (are_pids_limited);
    problem[0] = '\0';
    if (error != 0 || of_pids != 0)
        snprintf (problem, OWN_CGROUP_MESSAGE, "no limit of %s: a cgroup of its own cannot be had: %s",
                  error != 0 ? "memory" : "processes", strerror (error != 0 ? error : of_pids));
}
