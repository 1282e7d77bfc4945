/* The processes of a container, and how all of them are ended. Runs in the monitor; in the supervisor when its monitor died. */
#ifndef NVC_SUPERVISOR_CONTAINER_H
#define NVC_SUPERVISOR_CONTAINER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Opened at the container's start, so that nothing has to be found when it is to end. -1: there is none. */
struct container {
    pid_t pid; /* first process, host pid */
    uint64_t start_time;
    int pidfd;
    int kill;    /* cgroup.kill of its own cgroup (v2, Linux 5.14) */
    int events;  /* cgroup.events of its own cgroup (v2), which tells of those below it too */
    int directory; /* its own cgroup, of version 2 or of the controller that holds it */
    int freezer; /* freezer.state of its own cgroup (v1) */
    bool is_namespace_init; /* pid 1 of a pid namespace of its own: with it the kernel ends all others */
    uint64_t pid_namespace, mount_namespace; /* inodes; 0: the caller's */
    int mounts; /* its mount namespace, held so that its number means no other one */
    int mountinfo; /* /proc/PID/mountinfo: of that namespace and of the root that the process had then, whatever becomes of either */
    uint64_t owner; /* inode of the user namespace that owns it; 0: not known */
    char *cgroup; /* path of its own cgroup, of version 2 or of a controller; NULL: it has none of its own */
    const char *controller; /* of that; "": version 2 */
    const char *mount; /* of that: where its hierarchy is */
    uint64_t inode; /* of its directory: one that is made later under the same path has another */
};

#define CONTAINER_NONE { .pidfd = -1, .kill = -1, .events = -1, .directory = -1, .freezer = -1, .mounts = -1, .mountinfo = -1 }

/* A process that called the driver. */
struct container_process {
    uint32_t pid;
    uint64_t start_time; /* field 22 of /proc/PID/stat */
};

/* 0, or -ESRCH: the process has ended, or the pid is another one's. A cgroup counts as the container's own if nothing but this
 * process is in it now, and neither the caller nor the root is. */
int container_open (struct container *container, pid_t pid, uint64_t start_time);
/* Whether the process is the container's: in its own cgroup or below, and in the pid namespace that its first process began, or below, as
 * far as it has them; where it has neither, in its mount namespace; and never in the host's. Where the container has that of the
 * host, a process of its has a filter. */
bool container_has (const void *container, pid_t pid);
/* container_mounts.c: whether this mount is the container's, and a file that was opened by it was opened in the container: it is in the mount
 * namespace that the container began with, or in another one that the same user namespace owns and the thread, which is a process's of the
 * container, is in. To make or join one of those takes CAP_SYS_ADMIN there. */
bool container_owns (const void *container, pid_t pid, pid_t thread, uint64_t mount);
/* SIGKILL to every process, by the first of these that there is: cgroup.kill; pid 1 of its pid namespace; the v1 freezer with
 * cgroup.procs; cgroup.procs until it is empty. And to each of `known` that is still the same process and the container's: in its cgroup
 * or its pid namespace, for the supervisor that names them may have been taken over by its tenant. Does not wait for their ends. Returns what was used, for the log. */
const char *container_end (const struct container *container, const struct container_process *known, unsigned count);
/* Whether a process of it, or of `known`, is left that has not exited. */
bool container_is_left (const struct container *container, const struct container_process *known, unsigned count);
void container_close (struct container *container);

#endif
