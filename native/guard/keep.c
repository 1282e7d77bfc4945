/*
 * See keep.h. UVM's MAP_EXTERNAL_ALLOCATION duplicates memory into a client of the kernel's own, which no question shows; a
 * call that only its own process can make, at any moment. So a FREE is the moment to look: nobody but those who have a
 * duplicate by then can ever have one.
 *
 * To look costs some calls of the driver, so small pieces are looked at by chance, more often the larger they are: whoever
 * keeps pieces, of whatever size, has kept CERTAIN_BYTES on the average when the first of them is looked at, and then all
 * are. The dice are thrown when the piece is being freed: nobody can tell before which ones it will be.
 */
#include "tenant.h"

#include "rm/abi.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define FREE 0x29u
#define HEAP 0x4au
#define HEAP_FREE 3u
/* NVOS00: hRoot, hObjectParent, hObjectOld. NVOS32: hRoot, hObjectParent, function, ..., hMemory. */
#define FREE_HANDLE 8u
#define FREE_STATUS 12u
#define HEAP_STATUS 20u
#define HEAP_FUNCTION 8u
#define HEAP_HANDLE 44u

#define CERTAIN_BYTES ((uint64_t) 32 << 20)
#define FIRST_LOOK_NS 5000000u
#define LAST_LOOK_NS 1000000000u
/* Of pieces that one look is about. */
#define LOOK_MOST 256u

static uint32_t word_at (const struct tenant *tenant, unsigned at)
{
    uint32_t word;

    memcpy (&word, tenant->head + at, sizeof (word));
    return word;
}

/* xorshift64*, from a seed that nobody knows. */
static uint64_t throw (struct keep *keep)
{
    while (keep->dice == 0)
        if (getrandom (&keep->dice, sizeof (keep->dice), 0) != sizeof (keep->dice))
            keep->dice = guard_now ();
    keep->dice ^= keep->dice >> 12;
    keep->dice ^= keep->dice << 25;
    keep->dice ^= keep->dice >> 27;
    return keep->dice * 0x2545f4914f6cdd1du >> 20;
}

bool keep_is_looked_at (struct keep *keep, uint64_t bytes)
{
    return keep->was_caught || bytes >= CERTAIN_BYTES || throw (keep) % CERTAIN_BYTES < bytes;
}

struct kept *keep_call (struct tenant *tenant, const struct rm_piece *piece, int file, enum witness_place to)
{
    struct witness *witness = tenant->guard->witness;
    struct kept *kept = calloc (1, sizeof (*kept));

    if (kept == NULL)
        return NULL;
    kept->gpu = (uint32_t) piece->gpu;
    kept->client = piece->client;
    kept->handle = piece->handle;
    kept->piece = (struct witness_piece) { .bytes = piece->bytes,
                                           .gpu = witness_gpu (witness, tenant->limits.gpus[piece->gpu].uuid),
                                           .is_below_subdevice = piece->is_below_subdevice };
    if (kept->piece.gpu >= 0 && witness_call (witness, file, piece->client, piece->handle, to, &kept->piece))
        return kept;
    /* What the guard cannot duplicate UVM cannot either. */
    free (kept);
    return NULL;
}

/* Its process ended, others use its file, and now they free it: it is looked at like everything else. Whether it was there. */
static bool forget_dormant (struct tenant *tenant, const struct rm_piece *piece)
{
    for (struct kept **at = &tenant->keep.dormant; *at != NULL; at = &(*at)->next) {
        struct kept *kept = *at;

        if (kept->client != piece->client || kept->handle != piece->handle)
            continue;
        *at = kept->next;
        witness_free (tenant->guard->witness, &kept->piece, WITNESS_STORE);
        free (kept);
        return true;
    }
    return false;
}

/* On the stand with the lock held, or into the store. */
static void call_all (struct tenant *tenant, const struct rm_piece *pieces, size_t count, enum witness_place to)
{
    struct keep *keep = &tenant->keep;
    bool is_locked = false;

    for (size_t i = 0; i < count; i++) {
        bool is_looked_at = keep_is_looked_at (keep, pieces[i].bytes);
        struct kept *kept;

        if (!is_looked_at && keep->dormant == NULL)
            continue;
        if (!is_locked)
            pthread_mutex_lock (&tenant->guard->witness_lock);
        is_locked = true;
        if (!forget_dormant (tenant, pieces + i) && !is_looked_at)
            continue;
        kept = keep_call (tenant, pieces + i, tenant->copy, to);
        if (kept != NULL) {
            kept->next = keep->called;
            keep->called = kept;
        }
    }
    if (is_locked && (to == WITNESS_STORE || keep->called == NULL))
        pthread_mutex_unlock (&tenant->guard->witness_lock);
}

void keep_before (struct tenant *tenant, const struct rm_call *call)
{
    uint32_t number = rm_request_number (call->request), client = word_at (tenant, 0), handle;
    struct rm_piece one, *pieces = &one;
    size_t count;

    tenant->keep.is_client = false;
    if (number != FREE && (number != HEAP || word_at (tenant, HEAP_FUNCTION) != HEAP_FREE))
        return;
    tenant->keep.is_heap = number == HEAP;
    handle = word_at (tenant, number == FREE ? FREE_HANDLE : HEAP_HANDLE);
    if (client == 0)
        client = handle; /* a client that frees itself */
    tenant->keep.is_client = client == handle;
    count = rm_pieces (tenant->rm, client, handle, &one, 1);
    if (count == 0 || guard_witness (tenant->guard) == NULL)
        return;
    if (count > 1) {
        pieces = calloc (count, sizeof (*pieces));
        if (pieces == NULL)
            return;
        count = rm_pieces (tenant->rm, client, handle, pieces, count);
    }
    /* Giving a whole client back takes long, and others want the stand. */
    tenant->keep.is_stored = count > 1 || (count == 1 && one.handle != handle);
    call_all (tenant, pieces, count, tenant->keep.is_stored ? WITNESS_STORE : WITNESS_STAND);
    if (pieces != &one)
        free (pieces);
}

/* Whether others hold anything of what is on the stand. What the driver does not say is taken to be held. */
static bool is_shared (struct tenant *tenant, const struct kept *first)
{
    struct witness *witness = tenant->guard->witness;
    uint32_t asked = 0;

    for (const struct kept *kept = first; kept != NULL; kept = kept->next) {
        uint64_t own, others;

        if ((asked >> kept->gpu & 1) != 0)
            continue;
        asked |= 1u << kept->gpu;
        if (!witness_ask (witness, kept->piece.gpu, WITNESS_STAND, &own, &others) || others != 0)
            return true;
    }
    return false;
}

static void free_all (struct tenant *tenant, struct kept *kept, enum witness_place from)
{
    while (kept != NULL) {
        struct kept *next = kept->next;

        if (kept->piece.handle != 0)
            witness_free (tenant->guard->witness, &kept->piece, from);
        free (kept);
        kept = next;
    }
}

/* Off the stand, where it would be taken for another one. What cannot be stored is lost sight of and stays charged. */
static void store (struct tenant *tenant, struct kept *kept)
{
    if (witness_move (tenant->guard->witness, &kept->piece, WITNESS_STORE))
        return;
    witness_free (tenant->guard->witness, &kept->piece, WITNESS_STAND);
    kept->piece.handle = 0;
}

/* A stored piece on the stand alone: it goes when nobody else holds it, and back otherwise. Whether it went. */
static bool examine (struct tenant *tenant, struct kept *kept)
{
    struct witness *witness = tenant->guard->witness;

    if (kept->piece.handle == 0 || !witness_move (witness, &kept->piece, WITNESS_STAND))
        return false;
    kept->next = NULL;
    if (is_shared (tenant, kept)) {
        store (tenant, kept);
        return false;
    }
    witness_free (witness, &kept->piece, WITNESS_STAND);
    return true;
}

void keep_soon (struct tenant *tenant)
{
    struct keep *keep = &tenant->keep;

    if (keep->pieces == NULL)
        return;
    keep->look_delay = FIRST_LOOK_NS;
    keep->look_at = guard_now () + keep->look_delay;
}

static void charge (struct tenant *tenant, struct kept *kept)
{
    struct keep *keep = &tenant->keep;

    kept->next = keep->pieces;
    keep->pieces = kept;
    keep->bytes[kept->gpu] += kept->piece.bytes;
    keep->was_caught = true;
    keep_soon (tenant);
}

static bool stand_all (struct tenant *tenant, struct kept *stored)
{
    for (struct kept *at = stored; at != NULL; at = at->next) {
        if (at->piece.handle != 0 && witness_move (tenant->guard->witness, &at->piece, WITNESS_STAND))
            continue;
        for (; stored != at; stored = stored->next)
            store (tenant, stored);
        return false;
    }
    return true;
}

void keep_settle (struct tenant *tenant, struct kept *stored)
{
    /* Mostly nobody has any of them, and one question tells. Otherwise each has to stand alone. */
    if (stored != NULL && stored->next != NULL && stand_all (tenant, stored)) {
        if (!is_shared (tenant, stored)) {
            free_all (tenant, stored, WITNESS_STAND);
            return;
        }
        for (struct kept *at = stored; at != NULL; at = at->next)
            store (tenant, at);
    }
    while (stored != NULL) {
        struct kept *next = stored->next;

        if (examine (tenant, stored))
            free (stored);
        else
            charge (tenant, stored);
        stored = next;
    }
}

void keep_after (struct tenant *tenant, bool is_made)
{
    struct keep *keep = &tenant->keep;
    struct kept *called = keep->called;
    bool is_freed = is_made && word_at (tenant, keep->is_heap ? HEAP_STATUS : FREE_STATUS) == 0;

    if (keep->is_client && is_freed)
        keep_let_go (tenant, word_at (tenant, FREE_HANDLE));
    if (called == NULL)
        return;
    keep->called = NULL;
    if (keep->is_stored)
        pthread_mutex_lock (&tenant->guard->witness_lock);
    if (!is_freed)
        free_all (tenant, called, keep->is_stored ? WITNESS_STORE : WITNESS_STAND);
    else if (keep->is_stored)
        keep_settle (tenant, called);
    else if (!is_shared (tenant, called))
        free_all (tenant, called, WITNESS_STAND);
    else {
        store (tenant, called);
        charge (tenant, called);
    }
    pthread_mutex_unlock (&tenant->guard->witness_lock);
}

bool keep_is_inherited (const struct keep *keep)
{
    for (const struct kept *kept = keep->pieces; kept != NULL; kept = kept->next)
        if (kept->serial != 0)
            return true;
    return false;
}

/* Whether anything in the store is held by nobody else any more, of whichever tenant: otherwise there is nothing to do. */
static bool is_released (struct tenant *tenant)
{
    uint32_t asked = 0;

    for (const struct kept *kept = tenant->keep.pieces; kept != NULL; kept = kept->next) {
        uint64_t own, others;

        if ((asked >> kept->gpu & 1) != 0)
            continue;
        asked |= 1u << kept->gpu;
        if (witness_ask (tenant->guard->witness, kept->piece.gpu, WITNESS_STORE, &own, &others) && own != 0)
            return true;
    }
    return false;
}

/* Pieces that could not be stored: with the last process nobody can have them for long. */
static void drop_lost (struct tenant *tenant)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        if (tenant->processes[i].serial != 0)
            return;
    for (struct kept **at = &tenant->keep.pieces; *at != NULL;) {
        struct kept *kept = *at;

        if (kept->piece.handle != 0) {
            at = &kept->next;
            continue;
        }
        tenant->keep.bytes[kept->gpu] -= kept->piece.bytes;
        *at = kept->next;
        free (kept);
    }
}

void keep_look (struct tenant *tenant, uint64_t now)
{
    struct keep *keep = &tenant->keep;
    struct kept *kept, *rest = NULL, **end = &rest;
    unsigned looked = 0;

    if (keep->pieces == NULL || (now != 0 && now < keep->look_at))
        return;
    drop_lost (tenant);
    pthread_mutex_lock (&tenant->guard->witness_lock);
    if (is_released (tenant)) {
        /* Those that were looked at go to the end. */
        while ((kept = keep->pieces) != NULL && (now == 0 || looked++ < LOOK_MOST)) {
            keep->pieces = kept->next;
            if (examine (tenant, kept)) {
                keep->bytes[kept->gpu] -= kept->piece.bytes;
                free (kept);
                continue;
            }
            kept->next = NULL;
            *end = kept;
            end = &kept->next;
        }
        for (end = &keep->pieces; *end != NULL; end = &(*end)->next)
            continue;
        *end = rest;
        keep->look_delay = FIRST_LOOK_NS;
    }
    pthread_mutex_unlock (&tenant->guard->witness_lock);
    now = guard_now ();
    keep->look_at = keep->pieces != NULL ? now + keep->look_delay : 0;
    keep->look_delay = keep->look_delay > LAST_LOOK_NS / 2 ? LAST_LOOK_NS : keep->look_delay * 2;
}

void keep_release (struct tenant *tenant)
{
    struct kept *kept;

    while (tenant->keep.file_count > 0)
        keep_let_go (tenant, tenant->keep.files[0].client);
    /* A tenant that never began goes under guard->lock. */
    if (tenant->keep.pieces == NULL && tenant->keep.dormant == NULL)
        return;
    pthread_mutex_lock (&tenant->guard->witness_lock);
    while ((kept = tenant->keep.pieces) != NULL || (kept = tenant->keep.dormant) != NULL) {
        *(tenant->keep.pieces != NULL ? &tenant->keep.pieces : &tenant->keep.dormant) = kept->next;
        if (kept->piece.handle != 0)
            witness_free (tenant->guard->witness, &kept->piece, WITNESS_STORE);
        free (kept);
    }
    pthread_mutex_unlock (&tenant->guard->witness_lock);
}
