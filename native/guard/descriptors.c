/*
 * Copies of the container's descriptors. Copied is only what is one of the driver's nodes: a copy of anything else can be closed for
 * as long as the container likes (FUSE's FLUSH, a socket with SO_LINGER), and keeps open what its process closes. So a descriptor is
 * looked at before it is copied, and the copy again, when no process can exchange it; by what the kernel knows of a file without
 * asking its file system (AT_STATX_DONT_SYNC of statx(2)): a server of the container's own need not answer. All of that in the
 * tenant's thread, without the tenant's lock.
 */
#include "descriptors.h"
#include "held_files.h"
#include "process.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* include/uapi/linux/pidfd.h since 6.9. */
#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif
/* Threads that are tried for a descriptor when the first one has ended. */
#define MOST_TRIED 4096u

struct wanted_copy {
    const struct limits_node *nodes;
    uint32_t node_count;
    int descriptor, copy; /* copy: -errno */
    enum rm_node node;
    unsigned tried;
};

/* Which of the driver's nodes a file is, into wanted->node. 0, -ENOTTY when it is none, or -errno. */
static int look_at (struct wanted_copy *wanted, int directory, const char *path, int flags)
{
    struct statx found;

    wanted->node = RM_NODE_OTHER;
    if (statx (directory, path, flags | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &found) != 0)
        return -errno;
    for (uint32_t i = 0; i < wanted->node_count; i++) {
        const struct limits_node *node = &wanted->nodes[i];

        if (node->inode == 0 ? S_ISCHR (found.stx_mode) && makedev (found.stx_rdev_major, found.stx_rdev_minor) == node->device
                             : makedev (found.stx_dev_major, found.stx_dev_minor) == node->device && found.stx_ino == node->inode) {
            wanted->node = (enum rm_node) node->kind;
            return 0;
        }
    }
    return -ENOTTY;
}

static int copy_from (const struct process *process, pid_t thread, int pidfd, struct wanted_copy *wanted)
{
    char path[64];
    int copy, result;

    snprintf (path, sizeof (path), "/proc/%d/task/%d/fd/%d", (int) process->pid, (int) thread, wanted->descriptor);
    result = look_at (wanted, AT_FDCWD, path, 0);
    /* No process has the descriptor -1: what is said is whether this one is there. */
    if (result != 0)
        return syscall (SYS_pidfd_getfd, pidfd, -1, 0) < 0 && errno == ESRCH ? -ESRCH : result == -ENOENT ? -EBADF : result;
    copy = (int) syscall (SYS_pidfd_getfd, pidfd, wanted->descriptor, 0);
    if (copy < 0)
        return -errno;
    result = look_at (wanted, copy, "", AT_EMPTY_PATH);
    if (result == 0)
        return copy;
    close (copy);
    return result;
}

/* The file of a client that is held (held_files.c) and has been come by under this descriptor; -1: none. The caller closes it. */
static int held_file (const struct tenant *tenant, const struct process *process, int descriptor)
{
    for (unsigned i = process->client_count; i-- > 0;) {
        int file = process->clients[i].descriptor == descriptor ? held_file_of (tenant, process->clients[i].client) : -1;

        if (file >= 0)
            return fcntl (file, F_DUPFD_CLOEXEC, 0);
    }
    return -1;
}

/* That the descriptor is a file which is held is told in less time than what it is. */
static bool is_held_file (const struct process *process, int descriptor, int file)
{
    return file >= 0 && syscall (SYS_kcmp, getpid (), process->pid, KCMP_FILE, file, descriptor) == 0;
}

static bool copy_of_thread (const struct process *process, pid_t thread, void *context)
{
    int pidfd = (int) syscall (SYS_pidfd_open, thread, PIDFD_THREAD), copy = pidfd < 0 ? -errno : -ESRCH;
    struct wanted_copy *wanted = context;

    /* Neither number means another one by now. */
    if (pidfd >= 0 && syscall (SYS_tgkill, process->pid, thread, 0) == 0 && process_is_there (process))
        copy = copy_from (process, thread, pidfd, wanted);
    /* Threads are there and it is not to be had from them (before 6.9, never): that is not the end of the process. */
    if (copy != -ESRCH)
        wanted->copy = copy >= 0 || copy == -ENOTTY ? copy : -EBADF;
    if (pidfd >= 0)
        close (pidfd);
    return wanted->copy < 0 && ++wanted->tried < MOST_TRIED;
}

int process_copy (struct tenant *tenant, const struct process *process, int descriptor, enum rm_node *node)
{
    struct limits_node nodes[SHARE_MAX_NODES];
    struct wanted_copy wanted = { .nodes = nodes, .descriptor = descriptor, .node = RM_NODE_CONTROL };
    int held = held_file (tenant, process, descriptor);
    struct process *current;

    wanted.node_count = tenant->limits.node_count < SHARE_MAX_NODES ? tenant->limits.node_count : SHARE_MAX_NODES;
    memcpy (nodes, tenant->limits.nodes, wanted.node_count * sizeof (nodes[0]));
    current = wait_begin (tenant, process->pid);
    if (is_held_file (process, descriptor, held)) {
        wanted.copy = held;
    } else {
        if (held >= 0)
            close (held);
        wanted.copy = copy_from (process, process->pid, process->pidfd, &wanted);
        /* Its first thread has ended, and others may go on. */
        if (wanted.copy == -ESRCH)
            (void) process_threads (process, copy_of_thread, &wanted);
    }
    wait_end (tenant, current);
    *node = wanted.node;
    return wanted.copy;
}
