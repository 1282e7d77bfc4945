/*
 * A tenant's channels on one GPU, as they should be: off when the scheduler or the quota says so, with the share's timeslice.
 *
 * The tenant's thread has its lock while the driver makes a call for it, which can take seconds. Stops and starts do not need that
 * lock (edges.c); a slice is written down, and the thread that has the lock puts it into force before it releases the lock.
 *
 * guard_tenant_slice and guard_tenant_freeze run in the supervisor's main thread and the phase threads; the rest under the tenant's lock.
 */
#include "clock.h"
#include "edges.h"
#include "guard.h"
#include "guard_private.h"
#include "late.h"
#include "schedule.h"
#include "tenant.h"

#include <errno.h>

/* Most calls of the driver are over by then. */
#define PATIENCE_NS 300000u
/* The longest of a phase (phase_check): within it, what is started is to be stopped again. */
#define PERIOD_NS UINT64_C (1000000000)
/* A timeslice that the driver did not take for some group is written again: for a second, for the group may be at its end. */
#define RETRY_NS UINT64_C (50000000)
#define RETRIES 20u

bool schedule_is_off (const struct tenant *tenant, uint32_t gpu)
{
    return !atomic_load (&tenant->stop) && (atomic_load (&tenant->planned_frozen[gpu]) || atomic_load (&tenant->over[gpu]) ||
                                            atomic_load (&tenant->is_unresponsive) || atomic_load (&tenant->is_paused));
}

/* The scheduler's shortest (nvc/guard/scheduling.py), and beside a service (nvc/guard/service.py), where slices are shorter than the
 * first of these. */
#define SHORTEST_US 250u
#define BESIDE_SERVICE_US 50u

uint32_t schedule_slice (const struct tenant *tenant, uint32_t gpu)
{
    uint32_t slice = atomic_load (&tenant->slice[gpu]), groups = tenant->decided[gpu].groups,
             now = rm_groups (tenant->rm, (int) gpu);
    uint32_t least = slice < 2 * SHORTEST_US ? BESIDE_SERVICE_US : SHORTEST_US;

    if (slice == 0 || groups == 0 || now <= groups)
        return slice;
    slice = (uint32_t) ((uint64_t) slice * groups / now);
    return slice > least ? slice : least;
}

static void take_decision (struct tenant *tenant, uint32_t gpu)
{
    uint32_t slice = atomic_load (&tenant->slice[gpu]), groups;

    if (slice == tenant->decided[gpu].slice)
        return;
    groups = rm_groups (tenant->rm, (int) gpu);
    tenant->decided[gpu].slice = slice;
    tenant->decided[gpu].groups = groups != 0 ? groups : 1;
}

void schedule_apply (struct tenant *tenant, uint32_t gpu)
{
    uint32_t slice;

    take_decision (tenant, gpu);
    slice = schedule_slice (tenant, gpu);

    (void) edges_apply (tenant, gpu);
    if (slice == tenant->status.slice[gpu])
        return;
    tenant->status.slice[gpu] = slice;
    if (slice != tenant->retry.slice[gpu])
        tenant->retry.left[gpu] = RETRIES;
    tenant->retry.slice[gpu] = slice;
    if (slice == 0 || rm_set_timeslice (tenant->rm, (int) gpu, slice) == 0 || tenant->retry.left[gpu] == 0)
        return;
    tenant->retry.left[gpu]--;
    tenant->retry.gpus |= 1u << gpu;
    tenant->retry.at = guard_now () + RETRY_NS;
    tenant_wake (tenant);
}

void schedule_apply_all (struct tenant *tenant)
{
    for (uint32_t gpu = 0; tenant->rm != NULL && gpu < tenant->limits.gpu_count; gpu++)
        schedule_apply (tenant, gpu);
}

uint64_t schedule_again (struct tenant *tenant, uint64_t now)
{
    uint32_t gpus = tenant->retry.gpus;

    if (gpus == 0 || now < tenant->retry.at)
        return gpus != 0 ? tenant->retry.at : 0;
    tenant->retry.gpus = 0;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if ((gpus & 1u << gpu) != 0) {
            tenant->status.slice[gpu] = 0;
            schedule_apply (tenant, gpu);
        }
    return tenant->retry.gpus != 0 ? tenant->retry.at : 0;
}

void tenant_unlock (struct tenant *tenant)
{
    if (tenant->are_edges_old && tenant->rm != NULL) {
        tenant->are_edges_old = false;
        edges_publish (tenant);
    }
    while (atomic_load (&tenant->has_changes)) {
        atomic_store (&tenant->has_changes, false);
        schedule_apply_all (tenant);
    }
    pthread_mutex_unlock (&tenant->lock);
}

int guard_tenant_slice (struct guard *guard, uint32_t gpu, uint32_t microseconds)
{
    struct tenant *tenant = gpu < SHARE_MAX_GPUS ? guard_find (guard) : NULL;

    if (tenant == NULL)
        return -ENOENT;
    atomic_store (&tenant->slice[gpu], microseconds);
    /* Before the lock is asked for: the thread that has it either sees this, or releases it at once. */
    atomic_store (&tenant->has_changes, true);
    if (guard_lock (tenant, PATIENCE_NS))
        tenant_unlock (tenant);
    else
        tenant_wake (tenant);
    guard_let_go (tenant);
    return 0;
}

int guard_tenant_freeze (struct guard *guard, uint32_t gpu, uint32_t frozen)
{
    struct tenant *tenant = gpu < SHARE_MAX_GPUS ? guard_find (guard) : NULL;
    int calls;

    if (tenant == NULL)
        return -ENOENT;
    atomic_store (&tenant->planned_frozen[gpu], frozen != 0);
    if (!frozen)
        late_due (tenant, gpu, guard_now () + PERIOD_NS);
    calls = edges_apply (tenant, gpu);
    guard_let_go (tenant);
    return calls;
}
