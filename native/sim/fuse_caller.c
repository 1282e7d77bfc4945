/* The calling process of a request: access to its memory and descriptors, its capabilities and pids. Runs in
 * nvc-sim-manager, on the thread that serves the request. */
#include "fuse.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define DEPTH 33 /* pid namespaces nest 32 deep */
#define CAPABILITY_SYS_ADMIN 21

static bool read_memory (void *context, uint64_t address, void *to, size_t size)
{
    const struct caller *caller = context;
    struct iovec here = { .iov_base = to, .iov_len = size };
    struct iovec there = { .iov_base = (void *) (uintptr_t) address, .iov_len = size };

    return caller->thread > 0 && process_vm_readv (caller->thread, &here, 1, &there, 1, 0) == (ssize_t) size;
}

static bool write_memory (void *context, uint64_t address, const void *from, size_t size)
{
    const struct caller *caller = context;
    struct iovec here = { .iov_base = (void *) (uintptr_t) from, .iov_len = size };
    struct iovec there = { .iov_base = (void *) (uintptr_t) address, .iov_len = size };

    return caller->thread > 0 && process_vm_writev (caller->thread, &here, 1, &there, 1, 0) == (ssize_t) size;
}

/* Reads /proc/PID/status into `text`; false: the task has ended. */
static bool read_status (uint32_t task, char *text, size_t size)
{
    char path[64];
    ssize_t got;
    int fd;

    snprintf (path, sizeof (path), "/proc/%u/status", task);
    fd = open (path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read (fd, text, size - 1);
    close (fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

static const char *field (const char *text, const char *name)
{
    const char *found = strstr (text, name);

    return found != NULL ? found + strlen (name) : NULL;
}

static uint32_t process (void *context)
{
    const struct caller *caller = context;
    char text[4096];
    const char *found = read_status ((uint32_t) caller->thread, text, sizeof (text)) ? field (text, "\nTgid:") : NULL;

    return found != NULL ? (uint32_t) strtoul (found, NULL, 10) : 0;
}

static bool same_namespace (uint32_t task, const char *kind, const char *other)
{
    char path[64];
    struct stat ours, theirs;

    snprintf (path, sizeof (path), "/proc/%u/ns/%s", task, kind);
    return stat (path, &theirs) == 0 && stat (other, &ours) == 0 && ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

/* As the kernel's capable(): capabilities in another user namespace do not count. */
static bool privileged (void *context)
{
    const struct caller *caller = context;
    char text[4096];
    const char *found = read_status ((uint32_t) caller->thread, text, sizeof (text)) ? field (text, "\nCapEff:") : NULL;

    return found != NULL && (strtoull (found, NULL, 16) >> CAPABILITY_SYS_ADMIN & 1) &&
           same_namespace ((uint32_t) caller->thread, "user", "/proc/self/ns/user");
}

/* The pids of a process, from the server's pid namespace inwards; returns their number. */
static unsigned names (uint32_t task, uint32_t *pids)
{
    char text[4096];
    const char *found = read_status (task, text, sizeof (text)) ? field (text, "\nNSpid:") : NULL;
    unsigned count = 0;

    while (found != NULL && count < DEPTH) {
        char *end;
        unsigned long value = strtoul (found, &end, 10);
        if (end == found || value == 0)
            break;
        pids[count++] = (uint32_t) value;
        found = *end == '\n' ? NULL : end;
    }
    return count;
}

/* Whether the pid namespace `steps` levels above that of `task` is that of `other`. */
static bool is_ancestor (uint32_t task, unsigned steps, uint32_t other)
{
    char path[64];
    struct stat there, here;
    int fd;

    snprintf (path, sizeof (path), "/proc/%u/ns/pid", task);
    fd = open (path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && steps-- > 0) {
        int parent = ioctl (fd, NS_GET_PARENT);
        close (fd);
        fd = parent;
    }
    snprintf (path, sizeof (path), "/proc/%u/ns/pid", other);
    bool same = fd >= 0 && fstat (fd, &there) == 0 && stat (path, &here) == 0 && there.st_ino == here.st_ino;
    if (fd >= 0)
        close (fd);
    return same;
}

/* Asked about every process of the machine in some calls: of a caller in the server's own pid namespace it takes one system call. */
static uint32_t show (void *context, uint32_t asked)
{
    struct caller *caller = context;
    uint32_t ours[DEPTH], theirs[DEPTH];
    unsigned depth, count;

    if (caller->depth == 0)
        caller->depth = names ((uint32_t) caller->thread, ours);
    depth = caller->depth;
    if (depth == 1 && asked != 0 && asked <= INT32_MAX)
        return kill ((pid_t) asked, 0) == 0 || errno == EPERM ? asked : 0;
    count = asked != 0 ? names (asked, theirs) : 0;
    if (depth == 0 || count < depth || !is_ancestor (asked, count - depth, (uint32_t) caller->thread))
        return 0;
    return theirs[depth - 1];
}

/*
 * Duplicates the caller's descriptor (pidfd_getfd), and identifies the server's file behind it by an ioctl on it. The
 * secret keeps other processes from using that ioctl: its result is an address in this process.
 */
static struct manager_file *file (void *context, int descriptor)
{
    struct caller *caller = context;
    struct server_question question = { .secret = caller->server->secret };
    struct stat status;
    int pidfd = (int) syscall (SYS_pidfd_open, (pid_t) process (caller), 0);

    if (pidfd < 0)
        return NULL;
    if (caller->held >= 0)
        close (caller->held);
    caller->held = (int) syscall (SYS_pidfd_getfd, pidfd, descriptor, 0);
    close (pidfd);
    if (caller->held < 0 || fstat (caller->held, &status) < 0 || status.st_dev != caller->server->filesystem ||
        !S_ISREG (status.st_mode))
        return NULL;
    if (ioctl (caller->held, SERVER_WHICH_FILE, &question) < 0)
        return NULL;
    return (struct manager_file *) (uintptr_t) question.file;
}

void caller_begin (struct caller *caller, struct manager_caller *functions, struct server *server, pid_t thread)
{
    *caller = (struct caller) { .server = server, .thread = thread, .held = -1 };
    *functions = (struct manager_caller) { .context = caller,
                                           .read = read_memory,
                                           .write = write_memory,
                                           .file = file,
                                           .process = process,
                                           .show = show,
                                           .privileged = privileged };
}

void caller_end (struct caller *caller)
{
    if (caller->held >= 0)
        close (caller->held);
}
