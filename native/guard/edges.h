/*
 * The tenant's compute channels, as the phase thread stops and starts them. The list has a lock of its own, which is never held
 * while the driver makes a call for the tenant or while a process of the container is waited for: a long call of the tenant's
 * own cannot delay the end of its phase.
 */
#ifndef NVC_GUARD_EDGES_H
#define NVC_GUARD_EDGES_H

#include "shim/share.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct tenant;

struct edge_channel {
    uint32_t client, subdevice, channel; /* subdevice 0: the client has none of this GPU */
    int gpu;                             /* of the tenant's limits */
    int file;                            /* of its client, held by held_files.c; -1: none is */
    bool is_stopped; /* a stop has succeeded, and no start since: the driver counts */
    uint32_t again;  /* stops beyond that one */
    bool is_gone;    /* the driver did not know it when it was to be stopped: it is being freed */
};

struct edges {
    pthread_mutex_t lock; /* after the tenant's */
    struct edge_channel *channels;
    uint32_t count;
    bool frozen[SHARE_MAX_GPUS];
    uint64_t asserted_at;
    uint64_t frozen_since[SHARE_MAX_GPUS];                             /* CLOCK_MONOTONIC ns */
    uint64_t counted_since[SHARE_MAX_GPUS], frozen_ns[SHARE_MAX_GPUS]; /* up to counted_since, while there was a channel */
};

void edges_begin (struct edges *edges);
void edges_end (struct edges *edges);
/* Under the tenant's lock: rm's channels as they are now. Those of a GPU that is frozen are stopped when this returns. */
void edges_publish (struct tenant *tenant);
/* The client's file is about to be closed: its channels are not stopped or started any more. */
void edges_forget (struct edges *edges, uint32_t client);
/* The GPU's channels as they are to be (schedule_is_off); how many calls of the driver it took. -EAGAIN: some that are to be off run
 * on; the caller tries again, and after half a second the container is ended (late.h). */
int edges_apply (struct tenant *tenant, uint32_t gpu);
/* Channels that have to stay off, for the quota or a pause, are stopped once more: a process that started them meanwhile has not for long. The
 * driver counts stops and says of no channel whether it runs. Returns when to do so again (CLOCK_MONOTONIC ns); 0: nothing has to
 * stay off. */
uint64_t edges_assert (struct tenant *tenant, uint64_t now);
/* Under the tenant's lock: the GPU's channels, where they are off, are stopped once more: one of them was reset. */
void edges_stop_again (struct tenant *tenant, uint32_t gpu);
/* Whether the GPU's channels are off, and for how many nanoseconds any have been in all. */
bool edges_frozen (struct edges *edges, uint32_t gpu, uint64_t *nanoseconds);

#endif
