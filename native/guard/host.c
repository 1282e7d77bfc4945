/* What rm needs of its host. In the tenant's thread or the supervisor's main thread, under the tenant's lock, as all of rm. */
#include "foreign.h"
#include "guard_private.h"
#include "host.h"
#include "managed.h"
#include "pids.h"
#include "process.h"
#include "reach.h"
#include "reconcile.h"
#include "refund.h"
#include "retained.h"
#include "schedule.h"
#include "tenant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

static void *host_allocate (void *context, size_t size) { return tenant_allocate (context, 1, size); }

static void host_release (void *context, void *memory, size_t size)
{
    (void) size;
    (void) context;
    free (memory);
}

/* An ioctl of rm's own: through the copy of the current call, or through a new copy of the client's descriptor. */
static long host_ioctl (void *context, uint64_t file, uint32_t request, void *argument)
{
    struct tenant *tenant = context;
    struct process *process = process_by_serial (tenant, file);
    long result;

    /* hClient is the first field of every such struct. A child, or another process that was sent the file, calls by the client of the process
     * that made it. */
    if (tenant->current != NULL && process != NULL && tenant->copy >= 0 && tenant->copy_node == RM_NODE_CONTROL &&
        memcmp (argument, tenant->head, sizeof (uint32_t)) == 0) {
        result = reach_through (tenant->copy, request, argument);
        if (result != -EBADF || tenant->current == process || process->dead)
            return result;
    }
    if (process == NULL)
        return -ESRCH;
    return reach_ioctl (tenant, process, request, argument);
}

static int host_find_gpu (void *context, const uint8_t uuid[16])
{
    const struct tenant *tenant = context;

    for (uint32_t i = 0; i < tenant->limits.gpu_count && i < SHARE_MAX_GPUS; i++)
        if (memcmp (tenant->limits.gpus[i].uuid, uuid, 16) == 0)
            return (int) i;
    return RM_NO_GPU;
}

bool host_has_room (const struct tenant *tenant, int gpu, uint64_t bytes)
{
    uint64_t limit = tenant->limits.gpus[gpu].memory, used = tenant_used (tenant, (uint32_t) gpu);

    return limit == 0 || (used <= limit && bytes <= limit - used);
}

/* What a process had that has just ended is about to come back, and nothing tells when managed memory is unmapped, nor when
 * memory that only the driver knew of, or UVM retained, is gone: before a quota is enforced by it, or it is reported, it is looked at
 * again: once a call, at the caller's cost. */
bool host_can_refresh (const struct tenant *tenant)
{
    if (tenant->refreshed_at == tenant->status.notifications)
        return false;
    if (refund_is_expected (tenant))
        return true;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if (tenant->managed[gpu] != 0 || tenant->excess[gpu] != 0 || tenant->retained.bytes[gpu] != 0)
            return true;
    return false;
}

void host_refresh (struct tenant *tenant)
{
    bool is_excess = false;

    tenant->refreshed_at = tenant->status.notifications;
    if (refund_is_expected (tenant))
        refund_await (tenant);
    tenant->wants_refresh = false;
    managed_now (tenant);
    retained_check (tenant, 0);
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        is_excess |= tenant->excess[gpu] != 0;
    if (is_excess)
        reconcile_all (tenant);
}

static bool host_reserve (void *context, int gpu, uint64_t bytes)
{
    struct tenant *tenant = context;

    if (!host_has_room (tenant, gpu, bytes)) {
        /* Not here: to look can take long, and rm is in the middle of something. The call is begun again (call.c). */
        tenant->wants_refresh |= tenant->current != NULL && host_can_refresh (tenant);
        tenant->wanted_gpu = gpu;
        tenant->wanted = bytes;
        return false;
    }
    tenant->used[gpu] += bytes;
    return true;
}

static void host_refund (void *context, int gpu, uint64_t bytes)
{
    struct tenant *tenant = context;

    tenant->used[gpu] -= bytes < tenant->used[gpu] ? bytes : tenant->used[gpu];
}

/* Handed out already: it counts, whatever the limit says. */
static void host_charge (void *context, int gpu, uint64_t bytes)
{
    struct tenant *tenant = context;

    tenant->used[gpu] += bytes;
}

static struct rm_numbers host_numbers (void *context, int gpu)
{
    const struct tenant *tenant = context;

    return (struct rm_numbers) { .limit = tenant->limits.gpus[gpu].memory, .used = tenant_used (tenant, (uint32_t) gpu) };
}

static uint32_t host_timeslice (void *context, int gpu)
{
    const struct tenant *tenant = context;

    return schedule_slice (tenant, (uint32_t) gpu);
}

static void host_groups_changed (void *context, int gpu)
{
    struct tenant *tenant = context;

    tenant->are_edges_old = true;
    if (gpu >= 0)
        schedule_apply (tenant, (uint32_t) gpu);
}

static void host_note (void *context, enum rm_reason reason, uint32_t number)
{
    struct tenant *tenant = context;

    if (reason == RM_OVER_QUOTA && tenant->wants_refresh)
        return; /* perhaps not, after a refresh */
    guard_note (tenant, reason, number, tenant->current ? tenant->current->pid : 0);
}

const struct rm_host guard_host = {
    .allocate = host_allocate,
    .release = host_release,
    .ioctl = host_ioctl,
    .find_gpu = host_find_gpu,
    .reserve = host_reserve,
    .refund = host_refund,
    .charge = host_charge,
    .numbers = host_numbers,
    .timeslice = host_timeslice,
    .hold = foreign_hold,
    .let_go = foreign_let_go,
    .is_held = foreign_is_held,
    .is_retained = foreign_is_retained,
    .give_back = foreign_give_back,
    .shown_pid = pids_shown,
    .driver_pid = pids_of_driver,
    .groups_changed = host_groups_changed,
    .note = host_note,
};
