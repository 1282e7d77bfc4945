/* What a monitor does for its supervisor (supervisor/privileged.c), in a thread of the test: every process is the container's. */
#ifndef NVC_TEST_PRIVSEP_BED_H
#define NVC_TEST_PRIVSEP_BED_H

#include "supervisor/container.h"
#include "supervisor/privileged.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static atomic_uint bed_asked; /* about processes */
static atomic_bool bed_is_elsewhere; /* none is the container's any more */

static inline bool bed_has (const void *container, pid_t pid)
{
    (void) container;
    atomic_fetch_add (&bed_asked, 1);
    return pid > 0 && !atomic_load (&bed_is_elsewhere);
}

static inline bool bed_owns (const void *container, pid_t pid, pid_t thread, uint64_t mount)
{
    (void) container;
    (void) pid;
    (void) thread;
    (void) mount;
    return true;
}

/* A socket for guard_create or privsep_begin; -1: it could not be. nodes: the driver's, for the test. */
static inline int privsep_bed (const struct limits_node *nodes, uint32_t count)
{
    struct privileged *self = calloc (1, sizeof (*self));
    int pair[2];

    if (self == NULL || socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    self->socket = pair[0];
    self->own_watch = -1;
    self->has = bed_has;
    self->owns = bed_owns;
    self->devices = "/nowhere";
    self->node_count = count;
    for (uint32_t i = 0; i < count; i++)
        self->nodes[i] = nodes[i];
    return privileged_start (self) == 0 ? pair[1] : -1;
}

#endif
