/*
 * See foreign.h. A handle of an object in a tenant's client can be mapped by UVM from the moment on in which the driver has made it, by a call that
 * no guard sees. So what a call would give is looked at in the guard's own client first, and compared there with the tenant's own memory: both are
 * duplicates, which stay what they are whatever another process puts into an export meanwhile.
 */
#include "foreign.h"
#include "clock.h"
#include "dup_probe.h"
#include "guard_private.h"
#include "held_files.h"
#include "host.h"
#include "process.h"
#include "retained.h"
#include "tenant.h"

#include "rm/bytes.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"

/* How long the duplicate of another tenant's piece is kept at the most. */
#define FOREIGN_NS UINT64_C (10000000000)

/* A descriptor of the open file of a client of the tenant's; -1: the guard has none. */
static int file_of (const struct tenant *tenant, uint32_t client)
{
    return tenant->current != NULL && tenant->copy >= 0 && tenant->copy_node == RM_NODE_CONTROL && get32 (tenant->head, 0) == client
               ? tenant->copy
               : held_file_of (tenant, client);
}

bool foreign_hold (void *context, int gpu, const struct rm_source *source, uint64_t *bytes)
{
    struct tenant *tenant = context;
    struct dup_probe *probe = guard_dup_probe (tenant->guard);
    struct probe_piece *held = &tenant->retained.held;
    int number = probe != NULL && gpu >= 0 ? probe_gpu (probe, tenant->limits.gpus[gpu].uuid) : -1;
    int file = source->params == NULL && source->is_own ? file_of (tenant, source->client) : -1;
    bool is_held;

    if (number < 0 || (file < 0 && source->params == NULL && source->is_own))
        return false;
    pthread_mutex_lock (&tenant->guard->probe_lock);
    is_held = source->params != NULL ? probe_import (probe, source, number, held)
                                     : probe_take (probe, file, source->client, source->handle, number, held);
    if (is_held)
        *bytes = probe_bytes (probe, held, QUARANTINE_CLIENT);
    pthread_mutex_unlock (&tenant->guard->probe_lock);
    return is_held;
}

void foreign_let_go (void *context)
{
    struct tenant *tenant = context;

    pthread_mutex_lock (&tenant->guard->probe_lock);
    probe_free (tenant->guard->dup_probe, &tenant->retained.held, QUARANTINE_CLIENT);
    pthread_mutex_unlock (&tenant->guard->probe_lock);
}

bool foreign_is_held (void *context, uint32_t client, uint32_t handle)
{
    struct tenant *tenant = context;
    struct dup_probe *probe = tenant->guard->dup_probe;
    const struct probe_piece *held = &tenant->retained.held;
    struct probe_piece own;
    int file = file_of (tenant, client);
    bool is_same = false;

    if (file < 0)
        return false;
    pthread_mutex_lock (&tenant->guard->probe_lock);
    if (probe_take (probe, file, client, handle, held->gpu, &own)) {
        is_same = probe_is_same (probe, held, &own);
        probe_free (probe, &own, QUARANTINE_CLIENT);
    }
    pthread_mutex_unlock (&tenant->guard->probe_lock);
    return is_same;
}

/* Compared with the pieces of the quarantine: rm has no handle of them any more. */
bool foreign_is_retained (void *context)
{
    const struct tenant *tenant = context;
    const struct probe_piece *held = &tenant->retained.held;
    uint32_t compared = 0;
    bool is_same = false;

    pthread_mutex_lock (&tenant->guard->probe_lock);
    for (const struct retained_piece *entry = tenant->retained.pieces; entry != NULL && !is_same && compared < RM_COMPARED_MAX;
         entry = entry->next)
        if (entry->piece.gpu == held->gpu && entry->piece.handle != 0) {
            is_same = probe_is_same (tenant->guard->dup_probe, &entry->piece, held);
            compared++;
        }
    pthread_mutex_unlock (&tenant->guard->probe_lock);
    return is_same;
}

void foreign_give_back (void *context, int gpu, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle)
{
    struct tenant *tenant = context;
    struct dup_probe *probe = guard_dup_probe (tenant->guard);
    struct rm_piece piece = { .gpu = gpu, .client = client, .handle = handle, .is_foreign = true };
    _Alignas (uint64_t) NVOS00_PARAMETERS head = { .hRoot = client, .hObjectParent = parent, .hObjectOld = handle };
    int own = file_of (tenant, client);
    struct retained_piece *entry = NULL;

    pthread_mutex_lock (&tenant->guard->probe_lock);
    if (probe != NULL && gpu >= 0 && own >= 0)
        entry = retained_duplicate (tenant, &piece, own, PROBE_CLIENT);
    if (entry != NULL)
        entry->piece.bytes = probe_bytes (probe, &entry->piece, PROBE_CLIENT);
    guard_host.ioctl (tenant, file, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
    if (entry != NULL)
        retained_settle (tenant, entry);
    pthread_mutex_unlock (&tenant->guard->probe_lock);
}

/* Where the guards of two tenants have a piece in their quarantines each is the other one's holder, and neither would ever let go of it: the
 * tenant that did not make it gives its duplicate up. It is charged as a lost one. With guard->probe_lock. */
void foreign_yield (struct tenant *tenant)
{
    bool is_over = !tenant_has_process (tenant) && !tenant_has_filter (tenant);

    for (struct retained_piece *entry = tenant->retained.pieces; entry != NULL; entry = entry->next) {
        if (!entry->is_foreign || entry->piece.handle == 0 || (!is_over && guard_now () - entry->since < FOREIGN_NS))
            continue;
        probe_free (tenant->guard->dup_probe, &entry->piece, QUARANTINE_CLIENT);
        entry->piece.handle = 0;
    }
}
