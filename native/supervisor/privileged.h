/*
 * What a monitor does for its supervisor, which has no rights (guard/privsep.h): a thread of its own answers, because a process of the
 * container can keep a request waiting. Nothing is done for a process that is not the container's.
 */
#ifndef NVC_SUPERVISOR_PRIVILEGED_H
#define NVC_SUPERVISOR_PRIVILEGED_H

#include "mounts.h"
#include "rm/rm.h"
#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct privileged {
    int socket;
    /* Whether the process is of one of the tenant's containers (containers.h). */
    bool (*has) (const void *containers, pid_t pid);
    /* Whether a mount is theirs. */
    bool (*owns) (const void *containers, pid_t pid, pid_t thread, uint64_t mount);
    const void *containers;
    pid_t supervisor; /* is ended when no request is answered any more; 0: none */
    const char *devices; /* the directory of the driver's nodes */
    struct limits_node nodes[SHARE_MAX_NODES]; /* the container's */
    uint32_t node_count;
    struct mounts mounts;
    int own_watch; /* a counter on this process, for as long as it lives; -1: none was made yet */
};

/* A counter that execve of the process switches on; 0: the caller; -errno. The kernel waits for a grace period of RCU, 10 ms, where there is
 * no counter of a process on the machine yet (account_event, kernel/events/core.c). */
int privileged_watch (pid_t pid);
/* Until the other end is closed. */
void privileged_serve (struct privileged *self);
/* The same in a thread of its own; self stays where it is. 0 or -errno. */
int privileged_start (struct privileged *self);

/* Of the calling thread, for good: no capability but CAP_SYS_PTRACE, CAP_KILL, CAP_DAC_READ_SEARCH, CAP_PERFMON and
 * CAP_SYS_RESOURCE, and no way to others. Without the last one any process of uid 0, a container's too, keeps this one from passing
 * descriptors: those in flight are counted for the uid (too_many_unix_fds, net/unix). false: they could not be dropped. */
bool privileged_drop (void);

/* descriptors.c: a copy of a process's descriptor that is one of the container's nodes, or -errno: -ENOTTY: it is something else; -EXDEV:
 * of_all: not; else it was opened in another container (mounts.h). */
int privileged_copy (struct privileged *self, pid_t pid, int pidfd, int number, bool of_all, enum rm_node *node);
/* Numbers of its descriptors that are control nodes; how many, or -errno. */
int privileged_list (const struct privileged *self, pid_t pid, int32_t *numbers, unsigned capacity);
/* A file of the driver's that this process opened: of which kind it is. 0, -ENOTTY or -errno. */
int privileged_node (const struct privileged *self, int file, enum rm_node *node);
/* Calls `each` for the threads of a process, the first one first, while it says true: when that one has ended, the kernel tells mappings
 * and descriptors by the others alone. false: there may be more of them. */
bool privileged_threads (pid_t pid, bool (*each) (pid_t pid, pid_t thread, void *context), void *context);

#endif
