/*
 * Copies of the container's descriptors. Copied is only what is one of the driver's nodes: a copy of anything else can be closed for
 * as long as the container likes (FUSE's FLUSH, a socket with SO_LINGER), and keeps open what its process closes. So a descriptor is
 * looked at before it is copied, and the copy again, when no process can exchange it; by what the kernel knows of a file without
 * asking its file system (AT_STATX_DONT_SYNC of statx(2)): a server of the container's own need not answer.
 *
 * Runs in the monitor's thread for requests.
 */
#include "guard/privsep.h"
#include "privileged.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* pidfd_open(2) of a thread; include/uapi/linux/pidfd.h since 6.9. */
#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif
/* Threads that are tried for a descriptor when the first one has ended, and descriptors that are looked at. */
#define MOST_TRIED 4096u
#define MOST_LOOKED_AT 4096u

struct wanted_copy {
    struct privileged *self;
    bool of_all;
    int pidfd, number, copy; /* copy: -errno */
    enum rm_node node;
    unsigned tried;
};

static int look_at (const struct privileged *self, int directory, const char *path, int flags, enum rm_node *kind)
{
    struct statx found;

    *kind = RM_NODE_OTHER;
    if (statx (directory, path, flags | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &found) != 0)
        return -errno;
    for (uint32_t i = 0; i < self->node_count; i++) {
        const struct limits_node *node = &self->nodes[i];

        if (node->inode == 0 ? S_ISCHR (found.stx_mode) && makedev (found.stx_rdev_major, found.stx_rdev_minor) == node->device
                             : makedev (found.stx_dev_major, found.stx_dev_minor) == node->device && found.stx_ino == node->inode) {
            *kind = (enum rm_node) node->kind;
            return 0;
        }
    }
    return -ENOTTY;
}

int privileged_node (const struct privileged *self, int file, enum rm_node *node)
{
    return look_at (self, file, "", AT_EMPTY_PATH, node);
}

static int copy_from (struct wanted_copy *wanted, pid_t pid, pid_t thread, int pidfd)
{
    char path[64];
    int copy, result;

    snprintf (path, sizeof (path), "/proc/%d/task/%d/fd/%d", (int) pid, (int) thread, wanted->number);
    result = look_at (wanted->self, AT_FDCWD, path, 0, &wanted->node);
    /* No process has the descriptor -1: what is said is whether this one is there. */
    if (result != 0)
        return syscall (SYS_pidfd_getfd, pidfd, -1, 0) < 0 && errno == ESRCH ? -ESRCH : result == -ENOENT ? -EBADF : result;
    copy = (int) syscall (SYS_pidfd_getfd, pidfd, wanted->number, 0);
    if (copy < 0)
        return -errno;
    result = look_at (wanted->self, copy, "", AT_EMPTY_PATH, &wanted->node);
    if (result == 0 && !wanted->of_all &&
        !mounts_have (&wanted->self->mounts, wanted->self->owns, wanted->self->containers, copy, pid, thread))
        result = -EXDEV;
    if (result == 0)
        return copy;
    close (copy);
    return result;
}

static bool copy_of_thread (pid_t pid, pid_t thread, void *context)
{
    struct wanted_copy *wanted = context;
    int pidfd = thread == pid ? wanted->pidfd : (int) syscall (SYS_pidfd_open, thread, PIDFD_THREAD);
    int copy = pidfd < 0 ? -errno : -ESRCH;

    /* Neither number means another one by now. */
    if (pidfd >= 0 && syscall (SYS_tgkill, pid, thread, 0) == 0 && syscall (SYS_pidfd_send_signal, wanted->pidfd, 0, NULL, 0) == 0)
        copy = copy_from (wanted, pid, thread, pidfd);
    /* Threads are there and it is not to be had from them (before 6.9, never): that is not the end of the process. */
    if (thread == pid || copy != -ESRCH)
        wanted->copy = copy >= 0 || copy == -ENOTTY || copy == -EXDEV || thread == pid ? copy : -EBADF;
    if (pidfd >= 0 && thread != pid)
        close (pidfd);
    /* Of a process whose first thread is there that one knows all. */
    return thread == pid ? copy == -ESRCH : wanted->copy < 0 && ++wanted->tried < MOST_TRIED;
}

int privileged_copy (struct privileged *self, pid_t pid, int pidfd, int number, bool of_all, enum rm_node *node)
{
    struct wanted_copy wanted = { .self = self, .of_all = of_all, .pidfd = pidfd, .number = number, .copy = -ESRCH };

    (void) privileged_threads (pid, copy_of_thread, &wanted);
    *node = wanted.node;
    return wanted.copy;
}

struct list {
    const struct privileged *self;
    int32_t *numbers;
    unsigned capacity, count, looked;
};

/* true: not by this thread. */
static bool list_of_thread (pid_t pid, pid_t thread, void *context)
{
    struct list *list = context;
    struct dirent *entry;
    char path[64];
    DIR *directory;

    snprintf (path, sizeof (path), "/proc/%d/task/%d/fd", (int) pid, (int) thread);
    directory = opendir (path);
    if (directory == NULL)
        return true;
    while (list->count < list->capacity && list->looked < MOST_LOOKED_AT && (entry = readdir (directory)) != NULL) {
        enum rm_node node;

        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        list->looked++;
        if (look_at (list->self, dirfd (directory), entry->d_name, 0, &node) == 0 && node == RM_NODE_CONTROL)
            list->numbers[list->count++] = atoi (entry->d_name);
    }
    closedir (directory);
    return list->looked == 0;
}

int privileged_list (const struct privileged *self, pid_t pid, int32_t *numbers, unsigned capacity)
{
    struct list list = { .self = self, .numbers = numbers, .capacity = capacity };

    (void) privileged_threads (pid, list_of_thread, &list);
    return (int) list.count;
}

bool privileged_threads (pid_t pid, bool (*each) (pid_t pid, pid_t thread, void *context), void *context)
{
    bool goes_on = each (pid, pid, context);
    struct dirent *entry;
    char path[64];
    DIR *directory;

    if (!goes_on)
        return true;
    snprintf (path, sizeof (path), "/proc/%d/task", (int) pid);
    directory = opendir (path);
    if (directory == NULL)
        return errno == ENOENT || errno == ESRCH;
    while (goes_on && (errno = 0, entry = readdir (directory)) != NULL) {
        pid_t thread = (pid_t) atoi (entry->d_name);

        if (thread > 0 && thread != pid)
            goes_on = each (pid, thread, context);
    }
    goes_on &= errno != 0 && errno != ENOENT && errno != ESRCH;
    closedir (directory);
    return !goes_on;
}

int privileged_watch (pid_t pid)
{
    struct perf_event_attr attributes = { .type = PERF_TYPE_SOFTWARE,
                                          .size = sizeof (attributes),
                                          .config = PERF_COUNT_SW_DUMMY,
                                          .read_format = PERF_FORMAT_TOTAL_TIME_ENABLED,
                                          .disabled = 1,
                                          .enable_on_exec = 1,
                                          .exclude_kernel = 1,
                                          .exclude_hv = 1 };
    int watch = (int) syscall (SYS_perf_event_open, &attributes, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);

    return watch < 0 ? -errno : watch;
}
