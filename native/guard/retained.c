/*
 * See retained.h. UVM's MAP_EXTERNAL_ALLOCATION duplicates memory into a client of the kernel's own, which no query shows; a call that
 * only its own process can make, at any moment. So a piece is probed at its FREE: no process without a duplicate by then can ever
 * have one.
 * Runs in the tenant's thread.
 */
#include "clock.h"
#include "dup_probe.h"
#include "fair.h"
#include "foreign.h"
#include "guard_private.h"
#include "held_files.h"
#include "process.h"
#include "retained.h"
#include "tenant.h"

#include "rm/abi.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_LOOK_NS 5000000u
#define LAST_LOOK_NS 1000000000u
/* Pieces that are probed at once, under the lock; and how long before a quota is enforced by them, of this thread's own time. */
#define LOOK_MOST 256u
#define LOOK_NS 1000000000u

struct retained_piece *retained_duplicate (struct tenant *tenant, const struct rm_piece *piece, int file, enum probe_client to)
{
    struct dup_probe *probe = tenant->guard->dup_probe;
    struct retained_piece *entry = tenant_allocate (tenant, 1, sizeof (*entry));

    entry->gpu = (uint32_t) piece->gpu;
    entry->client = piece->client;
    entry->handle = piece->handle;
    entry->is_foreign = piece->is_foreign;
    entry->piece = (struct probe_piece) { .bytes = piece->bytes,
                                          .gpu = probe != NULL ? probe_gpu (probe, tenant->limits.gpus[piece->gpu].uuid) : -1,
                                          .is_below_subdevice = piece->is_below_subdevice };
    /* Without a probe, or its device on this GPU: other holders of the piece are not known. */
    if (entry->piece.gpu < 0 || probe_duplicate (probe, file, piece->client, piece->handle, to, &entry->piece) != PROBE_NONE)
        return entry;
    free (entry);
    return NULL;
}

void retained_forget_dormant (struct tenant *tenant, const struct retained_piece *made, uint64_t serial, unsigned *questions)
{
    struct dup_probe *probe = tenant->guard->dup_probe;

    for (struct retained_piece **at = &tenant->retained.dormant; *at != NULL;) {
        struct retained_piece *entry = *at;
        bool is_same = entry->client == made->client && entry->handle == made->handle;
        bool are_duplicates = entry->piece.handle != 0 && made->piece.handle != 0;

        if (!is_same && are_duplicates && entry->gpu == made->gpu && entry->serial != serial &&
            entry->piece.bytes == made->piece.bytes && *questions > 0) {
            (*questions)--;
            is_same = probe_is_same (probe, &entry->piece, &made->piece);
        }
        if (entry->gpu != made->gpu || !is_same) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        probe_free (probe, &entry->piece, QUARANTINE_CLIENT);
        free (entry);
    }
}

/* Into PROBE_CLIENT with the lock held, or into QUARANTINE_CLIENT. All of them, or none: thousands of small ones in one call
 * would each have a small probability, decided before the first one that is found. */
static void duplicate_all (struct tenant *tenant, const struct rm_piece *pieces, size_t count, enum probe_client to)
{
    struct retained *retained = &tenant->retained;

    /* One of a process that ended may have another handle by now, under which it is not found. */
    if (retained->dormant == NULL && !retained_is_sampled (retained, retained_weight (pieces, count)))
        return;
    pthread_mutex_lock (&tenant->guard->probe_lock);
    for (size_t i = 0; i < count; i++) {
        struct retained_piece *entry;

        entry = retained_duplicate (tenant, pieces + i, tenant->copy, to);
        if (entry != NULL) {
            entry->next = retained->freeing;
            retained->freeing = entry;
        }
    }
    if (to == QUARANTINE_CLIENT || retained->freeing == NULL)
        pthread_mutex_unlock (&tenant->guard->probe_lock);
}

void retained_before_call (struct tenant *tenant, const struct rm_call *call)
{
    const NVOS00_PARAMETERS *freed = (const void *) tenant->head;
    const NVOS32_PARAMETERS *heap = (const void *) tenant->head;
    bool is_heap = rm_request_number (call->request) == NV_ESC_RM_VID_HEAP_CONTROL;
    uint32_t client = is_heap ? heap->hRoot : freed->hRoot, handle = is_heap ? heap->data.Free.hMemory : freed->hObjectOld;
    struct rm_piece one, *pieces = &one;
    size_t count;

    tenant->retained.is_client = false;
    if (is_heap ? heap->function != NVOS32_FUNCTION_FREE : rm_request_number (call->request) != NV_ESC_RM_FREE)
        return;
    tenant->retained.is_heap = is_heap;
    if (client == 0)
        client = handle; /* a client that frees itself */
    tenant->retained.is_client = !is_heap && client == handle;
    count = rm_pieces (tenant->rm, client, handle, &one, 1);
    if (count == 0)
        return;
    (void) guard_dup_probe (tenant->guard);
    if (count > 1) {
        pieces = tenant_allocate (tenant, count, sizeof (*pieces));
        count = rm_pieces (tenant->rm, client, handle, pieces, count);
    }
    /* Giving a whole client back takes long, and other tenants need the probe. */
    tenant->retained.is_quarantined = count > 1 || (count == 1 && one.handle != handle) || tenant->retained.dormant != NULL;
    duplicate_all (tenant, pieces, count, tenant->retained.is_quarantined ? QUARANTINE_CLIENT : PROBE_CLIENT);
    if (pieces != &one)
        free (pieces);
}

/* Whether anything of PROBE_CLIENT has other holders. What the driver does not say is taken to be held. */
static bool is_shared (struct tenant *tenant, const struct retained_piece *first)
{
    struct dup_probe *probe = tenant->guard->dup_probe;
    uint32_t asked = 0;

    for (const struct retained_piece *entry = first; entry != NULL; entry = entry->next) {
        uint64_t own, others;

        if ((asked >> entry->gpu & 1) != 0)
            continue;
        asked |= 1u << entry->gpu;
        if (!probe_query (probe, entry->piece.gpu, PROBE_CLIENT, &own, &others) || others != 0)
            return true;
    }
    return false;
}

static void free_all (struct tenant *tenant, struct retained_piece *entry, enum probe_client from)
{
    while (entry != NULL) {
        struct retained_piece *next = entry->next;

        probe_free (tenant->guard->dup_probe, &entry->piece, from);
        free (entry);
        entry = next;
    }
}

/* Out of PROBE_CLIENT, where it would be taken for another one. What cannot be quarantined is lost sight of and stays charged. */
static void quarantine (struct tenant *tenant, struct retained_piece *entry)
{
    if (probe_move (tenant->guard->dup_probe, &entry->piece, QUARANTINE_CLIENT))
        return;
    probe_free (tenant->guard->dup_probe, &entry->piece, PROBE_CLIENT);
    entry->piece.handle = 0;
}

/* Probes a quarantined piece alone: it is freed without other holders, and goes back otherwise. Whether it was freed. */
static bool examine (struct tenant *tenant, struct retained_piece *entry)
{
    struct dup_probe *probe = tenant->guard->dup_probe;

    if (entry->piece.handle == 0 || !probe_move (probe, &entry->piece, PROBE_CLIENT))
        return false;
    entry->next = NULL;
    if (is_shared (tenant, entry)) {
        quarantine (tenant, entry);
        return false;
    }
    probe_free (probe, &entry->piece, PROBE_CLIENT);
    return true;
}

static void look_in (struct retained *retained, uint64_t now)
{
    uint64_t at = now + retained->look_delay;

    retained->look_at = retained->pieces == NULL ? 0 : at > retained->look_not_before ? at : retained->look_not_before;
}

void retained_check_soon (struct tenant *tenant)
{
    struct retained *retained = &tenant->retained;

    if (retained->pieces == NULL)
        return;
    retained->look_delay = FIRST_LOOK_NS;
    look_in (retained, guard_now ());
}

static void charge (struct tenant *tenant, struct retained_piece *entry)
{
    struct retained *retained = &tenant->retained;

    entry->since = guard_now ();
    entry->next = retained->pieces;
    retained->pieces = entry;
    retained->bytes[entry->gpu] += entry->piece.bytes;
    retained->sample_all = true;
    retained_check_soon (tenant);
}

static bool probe_all (struct tenant *tenant, struct retained_piece *quarantined)
{
    for (struct retained_piece *at = quarantined; at != NULL; at = at->next) {
        if (at->piece.handle != 0 && probe_move (tenant->guard->dup_probe, &at->piece, PROBE_CLIENT))
            continue;
        for (; quarantined != at; quarantined = quarantined->next)
            quarantine (tenant, quarantined);
        return false;
    }
    return true;
}

void retained_examine_all (struct tenant *tenant, struct retained_piece *quarantined)
{
    /* Mostly none has another holder, and one query tells. Otherwise each is probed alone. */
    if (quarantined != NULL && quarantined->next != NULL && probe_all (tenant, quarantined)) {
        if (!is_shared (tenant, quarantined)) {
            free_all (tenant, quarantined, PROBE_CLIENT);
            return;
        }
        for (struct retained_piece *at = quarantined; at != NULL; at = at->next)
            quarantine (tenant, at);
    }
    while (quarantined != NULL) {
        struct retained_piece *next = quarantined->next;

        if (examine (tenant, quarantined))
            free (quarantined);
        else
            charge (tenant, quarantined);
        quarantined = next;
    }
}

void retained_settle (struct tenant *tenant, struct retained_piece *entry)
{
    if (entry->piece.handle == 0)
        charge (tenant, entry);
    else if (entry->piece.bytes == 0 || !is_shared (tenant, entry))
        free_all (tenant, entry, PROBE_CLIENT);
    else {
        quarantine (tenant, entry);
        charge (tenant, entry);
    }
}

void retained_after_call (struct tenant *tenant, bool is_made)
{
    struct retained *retained = &tenant->retained;
    struct retained_piece *freeing = retained->freeing;
    unsigned questions = RM_COMPARED_MAX;
    const NVOS00_PARAMETERS *freed = (const void *) tenant->head;
    const NVOS32_PARAMETERS *heap = (const void *) tenant->head;
    bool is_freed = is_made && (retained->is_heap ? heap->status : freed->status) == 0;

    if (retained->is_client && is_freed)
        held_file_release (tenant, freed->hObjectOld);
    if (freeing == NULL)
        return;
    retained->freeing = NULL;
    if (retained->is_quarantined)
        pthread_mutex_lock (&tenant->guard->probe_lock);
    /* Not before: a FREE that the driver refuses, as through another client's file, leaves what an ended process had where it is. */
    for (const struct retained_piece *at = is_freed ? freeing : NULL; at != NULL; at = at->next)
        retained_forget_dormant (tenant, at, 0, &questions);
    if (!is_freed)
        free_all (tenant, freeing, retained->is_quarantined ? QUARANTINE_CLIENT : PROBE_CLIENT);
    else if (retained->is_quarantined)
        retained_examine_all (tenant, freeing);
    else
        retained_settle (tenant, freeing);
    pthread_mutex_unlock (&tenant->guard->probe_lock);
}

bool retained_is_inherited (const struct retained *retained)
{
    for (const struct retained_piece *entry = retained->pieces; entry != NULL; entry = entry->next)
        if (entry->serial != 0)
            return true;
    return false;
}

/* Whether any piece of the quarantine, of whichever tenant, has no other holder any more: otherwise there is nothing to do. */
static bool is_released (struct tenant *tenant)
{
    uint32_t asked = 0;

    for (const struct retained_piece *entry = tenant->retained.pieces; entry != NULL; entry = entry->next) {
        uint64_t own, others;

        if (entry->piece.handle == 0 || (asked >> entry->gpu & 1) != 0)
            continue;
        asked |= 1u << entry->gpu;
        if (probe_query (tenant->guard->dup_probe, entry->piece.gpu, QUARANTINE_CLIENT, &own, &others) && own != 0)
            return true;
    }
    return false;
}

/* Pieces that are in no quarantine: without a process behind the filter they have no holder for long. One that never called the driver may have
 * UVM's file. */
static void drop_lost (struct tenant *tenant)
{
    if (tenant_has_process (tenant) || tenant_has_filter (tenant))
        return;
    for (struct retained_piece **at = &tenant->retained.pieces; *at != NULL;) {
        struct retained_piece *entry = *at;

        if (entry->piece.handle != 0) {
            at = &entry->next;
            continue;
        }
        tenant->retained.bytes[entry->gpu] -= entry->piece.bytes;
        *at = entry->next;
        free (entry);
    }
}

void retained_check (struct tenant *tenant, uint64_t now)
{
    struct retained *retained = &tenant->retained;
    struct retained_piece *entry, *rest = NULL, **end = &rest;
    uint64_t begun, spent;
    unsigned looked = 0;

    if (retained->pieces == NULL || (now != 0 && now < retained->look_at))
        return;
    begun = fair_cpu ();
    pthread_mutex_lock (&tenant->guard->probe_lock);
    foreign_yield (tenant);
    drop_lost (tenant);
    if (is_released (tenant)) {
        /* Those that were probed go to the end. */
        while ((entry = retained->pieces) != NULL && (now == 0 ? fair_cpu () - begun < LOOK_NS : looked++ < LOOK_MOST)) {
            retained->pieces = entry->next;
            if (examine (tenant, entry)) {
                retained->bytes[entry->gpu] -= entry->piece.bytes;
                free (entry);
                continue;
            }
            entry->next = NULL;
            *end = entry;
            end = &entry->next;
        }
        for (end = &retained->pieces; *end != NULL; end = &(*end)->next)
            continue;
        *end = rest;
        retained->look_delay = FIRST_LOOK_NS;
    }
    pthread_mutex_unlock (&tenant->guard->probe_lock);
    now = guard_now ();
    /* The tenant's burden: it has UVM let go of a piece, or asks for more than there is, as often as it likes. */
    spent = fair_cpu () - begun;
    fair_spent (tenant, spent);
    retained->look_not_before = now + spent * LOOK_PART;
    look_in (retained, now);
    retained->look_delay = retained->look_delay > LAST_LOOK_NS / 2 ? LAST_LOOK_NS : retained->look_delay * 2;
}

void retained_release (struct tenant *tenant)
{
    struct retained_piece *entry;

    while (tenant->retained.file_count > 0)
        held_file_release (tenant, tenant->retained.files[0].client);
    /* A tenant that never began goes under guard->lock. */
    if (tenant->retained.pieces == NULL && tenant->retained.dormant == NULL)
        return;
    pthread_mutex_lock (&tenant->guard->probe_lock);
    while ((entry = tenant->retained.pieces) != NULL || (entry = tenant->retained.dormant) != NULL) {
        *(tenant->retained.pieces != NULL ? &tenant->retained.pieces : &tenant->retained.dormant) = entry->next;
        probe_free (tenant->guard->dup_probe, &entry->piece, QUARANTINE_CLIENT);
        free (entry);
    }
    pthread_mutex_unlock (&tenant->guard->probe_lock);
}
