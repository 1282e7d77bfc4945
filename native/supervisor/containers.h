/*
 * The containers of a tenant: one, or those of a group. Runs in the monitor: main adds and removes, "nvc-monitor-req" asks. The watchdog has
 * a copy.
 */
#ifndef NVC_SUPERVISOR_CONTAINERS_H
#define NVC_SUPERVISOR_CONTAINERS_H

#include "container.h"

#include <pthread.h>

#define CONTAINERS_MOST 64u /* of a tenant at a time; nvc/agent/groups.py has the same number */

struct containers {
    pthread_mutex_t lock; /* not held while a process is waited for */
    struct container list[CONTAINERS_MOST];
    unsigned count;
};

#define CONTAINERS_NONE { .lock = PTHREAD_MUTEX_INITIALIZER }

/* The container of this first process (container_open). 0; -ESRCH; -E2BIG; -EEXIST: it is there. */
int containers_add (struct containers *self, pid_t pid, uint64_t start_time);
/* The container of this first process has ended. 0; -ENOENT; -EBUSY: a process of it, or of `known`, is left. */
int containers_remove (struct containers *self, pid_t pid, const struct container_process *known, unsigned count);
/* The same of one that was not to be added, whatever is left of it. */
void containers_drop (struct containers *self, pid_t pid);
/* That of this first process; NULL: there is none. For main. */
const struct container *containers_find (const struct containers *self, pid_t pid);
/* Whether the process is one container's (container_has). */
bool containers_have (const void *self, pid_t pid);
/* Whether the mount is one container's (container_owns). */
bool containers_own (const void *self, pid_t pid, pid_t thread, uint64_t mount);
/* As container_end, of each container; how the first one was ended. */
const char *containers_end (const struct containers *self, const struct container_process *known, unsigned count);
bool containers_are_left (const struct containers *self, const struct container_process *known, unsigned count);
/* In a copy of the process, where the thread that may hold the lock is not. */
void containers_copied (struct containers *self);

#endif
