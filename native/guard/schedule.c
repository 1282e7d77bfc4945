/*
 * A tenant's channels on one GPU, as they should be: off when the scheduler or the quota says so, with the share's slice.
 *
 * The tenant's thread has its lock while the driver makes a call for it, which can take seconds. Nobody who schedules waits for
 * that: a wish is written down, and whoever has the lock puts it into force before giving it back.
 */
#include "tenant.h"

#include <errno.h>
#include <unistd.h>

/* Most calls of the driver are over by then. */
#define PATIENCE_NS 300000u

void schedule_apply (struct tenant *tenant, uint32_t gpu)
{
    bool off = !atomic_load (&tenant->stop) && (atomic_load (&tenant->wished_frozen[gpu]) || tenant->over[gpu] || tenant->is_stuck ||
                                                (tenant->limits.flags & LIMITS_PAUSED) != 0);
    uint32_t slice = atomic_load (&tenant->slice[gpu]);
    uint64_t now = guard_now ();

    if (off != tenant->frozen[gpu]) {
        rm_freeze (tenant->rm, (int) gpu, off);
        if (!off)
            tenant->status.frozen_ns[gpu] += now - tenant->frozen_since[gpu];
        tenant->frozen[gpu] = off;
        tenant->frozen_since[gpu] = now;
        guard_changed (tenant->guard);
    }
    if (slice != tenant->status.slice[gpu]) {
        tenant->status.slice[gpu] = slice;
        if (slice != 0)
            rm_set_timeslice (tenant->rm, (int) gpu, slice);
    }
}

void tenant_unlock (struct tenant *tenant)
{
    while (atomic_load (&tenant->has_wishes)) {
        atomic_store (&tenant->has_wishes, false);
        for (uint32_t gpu = 0; tenant->rm != NULL && gpu < tenant->limits.gpu_count; gpu++)
            schedule_apply (tenant, gpu);
    }
    pthread_mutex_unlock (&tenant->lock);
}

/* A wish was written down. How many calls of the driver it took, or -EBUSY: it is in force as soon as the call in hand is over. */
static int wished (struct tenant *tenant, uint32_t gpu)
{
    uint64_t before, one = 1;
    int result = -EBUSY;

    /* Before the lock is asked for: whoever has it either sees this, or gives it back at once. */
    atomic_store (&tenant->has_wishes, true);
    if (guard_lock (tenant, PATIENCE_NS)) {
        before = rm_controls (tenant->rm);
        schedule_apply (tenant, gpu);
        result = (int) (rm_controls (tenant->rm) - before);
        tenant_unlock (tenant);
    } else if (write (tenant->wake, &one, sizeof (one)) < 0)
        result = -EBUSY; /* it is awake */
    guard_let_go (tenant);
    return result;
}

int guard_tenant_slice (struct guard *guard, uint32_t id, uint32_t gpu, uint32_t microseconds)
{
    struct tenant *tenant = gpu < SHARE_MAX_GPUS ? guard_find (guard, id) : NULL;
    int result;

    if (tenant == NULL)
        return -ENOENT;
    atomic_store (&tenant->slice[gpu], microseconds);
    result = wished (tenant, gpu);
    return result == -EBUSY ? 0 : result;
}

int guard_tenant_freeze (struct guard *guard, uint32_t id, uint32_t gpu, uint32_t frozen)
{
    struct tenant *tenant = gpu < SHARE_MAX_GPUS ? guard_find (guard, id) : NULL;

    if (tenant == NULL)
        return -ENOENT;
    atomic_store (&tenant->wished_frozen[gpu], frozen != 0);
    return wished (tenant, gpu);
}
