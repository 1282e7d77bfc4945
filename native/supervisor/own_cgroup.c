/* See own_cgroup.h. Files: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst. Runs in monitors and the prober, at their start. */
#include "own_cgroup.h"
#include "channel.h"

#include "guard/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Of a tenant: as much as one process of its may have (RLIMIT_DATA, confine.c), and 64 MiB for all else: the owner of its quarantine, which is a
 * copy of the supervisor (a full ledger takes 90 MiB, so both have 180), monitor and watchdog, and the kernel's own (page tables, sockets,
 * descriptors).
 */
#define MEMORY_MOST "268435456"
/* The agent removes cgroups without a process: one that was made just now, too. */
#define TRIES 5u

/* Version 2's names first. Swap would hold what memory must not. */
static const char *const limits[][2] = { { "memory.max", MEMORY_MOST },
                                         { "memory.swap.max", "0" },
                                         { "memory.limit_in_bytes", MEMORY_MOST },
                                         { "memory.memsw.limit_in_bytes", MEMORY_MOST } };

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
static int enter (const char *path)
{
    bool is_limited = false;
    int directory, error = 0;

    if (mkdir (path, 0755) != 0)
        return errno;
    directory = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return errno;
    for (unsigned i = 0; i < sizeof (limits) / sizeof (limits[0]) && error == 0; i++) {
        error = put (directory, limits[i][0], limits[i][1]);
        is_limited |= error == 0;
        if (error == ENOENT || error == EOPNOTSUPP) /* the other version's, or a kernel that does not count swap */
            error = 0;
    }
    if (error == 0)
        error = is_limited ? put (directory, "cgroup.procs", "0") : ENOENT;
    close (directory);
    if (error != 0)
        (void) rmdir (path);
    return error;
}

void own_cgroup_enter (const char *directory, char problem[OWN_CGROUP_MESSAGE])
{
    char path[2 * CHANNEL_PATH];
    struct stat found;
    int error = ENOENT;

    problem[0] = '\0';
    snprintf (path, sizeof (path), "%s/cgroups", directory);
    if (directory[0] == '\0' || lstat (path, &found) != 0)
        return;
    for (unsigned i = 0; i < TRIES && error == ENOENT; i++) {
        snprintf (path, sizeof (path), "%s/cgroups/%d-%llu", directory, (int) getpid (), (unsigned long long) guard_now ());
        error = enter (path);
    }
    if (error != 0)
        snprintf (problem, OWN_CGROUP_MESSAGE, "no limit of memory: a cgroup of its own cannot be had: %s", strerror (error));
}
