/*
 * The state of libnvc-shim-api.so in a process (share.h). Runs in processes of a container that preload it, on the
 * thread that calls the driver's function, under the lock of the state.
 */
#include "share.h"

#include "rm/rm.h"
#include "shim/identity.h"
#include "shim/limits.h"
#include "shim/raw.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* struct api, in pages that are zeroed in a forked child; NULL until it is needed, and without memory. */
static _Atomic (void *) state;

static struct api *the_state (void)
{
    void *found = atomic_load_explicit (&state, memory_order_acquire);
    if (found == NULL) {
        void *pages = raw_pages (sizeof (struct api));
        if (pages == NULL)
            return NULL;
        /* Before Linux 4.14 there is no MADV_WIPEONFORK: a child has its parent's tables then, whose entries it cannot
         * use. */
        RAW3 (SYS_madvise, pages, sizeof (struct api), MADV_WIPEONFORK);
        if (atomic_compare_exchange_strong (&state, &found, pages))
            return pages;
        RAW2 (SYS_munmap, pages, sizeof (struct api));
    }
    return found;
}

static const char *path_of (const char *path, const char *variable)
{
    if (RAW3 (SYS_faccessat, AT_FDCWD, path, F_OK) == 0 || identity_secure ())
        return path;
    const char *other = identity_variable (variable);
    return other != NULL ? other : path;
}

static void read_limits (struct api *api)
{
    api->generation = LOAD (api->shared->generation);
    api->good = limits_read (api->shared, &api->limits);
    api->oversubscribing = api->counting = false;
    for (unsigned i = 0; api->good && i < api->limits.gpu_count; i++)
        api->oversubscribing |= (api->limits.gpus[i].flags & LIMITS_OVERSUBSCRIBE) != 0;
    api->counting = api->good && rm_abi_find (api->limits.driver) == NULL;
    bool active = !api->good || api->counting || api->oversubscribing;
    STORE (api->answer, (uint64_t) api->generation << 32 | (active ? 2u : 0u) | 1u);
}

static void attach (struct api *api)
{
    const char *path = path_of (SHARE_REGION_PATH, SHARE_REGION_ENVIRONMENT);
    bool fits = strlen (path) < sizeof (api->region_path);
    if (fits)
        memcpy (api->region_path, path, strlen (path) + 1);
    api->attached = region_attach (&api->region, fits ? api->region_path : NULL);
}

static void look (struct api *api)
{
    bool there;
    if (!api->looked) {
        api->looked = true;
        api->shared = limits_map (path_of (SHARE_LIMITS_PATH, SHARE_LIMITS_ENVIRONMENT), &there);
        if (api->shared != NULL)
            read_limits (api);
    } else if (api->shared != NULL && LOAD (api->shared->generation) != api->generation) {
        read_limits (api);
    }
    if (api->counting && !api->attached)
        attach (api);
}

struct api *share_lock (uint64_t *signals)
{
    struct api *api = the_state ();
    if (api == NULL)
        return NULL;
    *signals = lock_take (&api->lock);
    look (api);
    return api;
}

void share_unlock (struct api *api, uint64_t signals) { lock_give (&api->lock, signals); }

bool share_is_active (void)
{
    uint64_t signals;
    struct api *api = the_state ();
    if (api == NULL)
        return true;
    /* The usual case: nothing has changed, and two loads replace a lock and two system calls. */
    uint64_t answer = LOAD (api->answer);
    if ((answer & 1) != 0 && LOAD_RELAXED (api->shared->generation) == (uint32_t) (answer >> 32))
        return (answer & 2) != 0;
    api = share_lock (&signals);
    bool active = !api->good || api->counting || api->oversubscribing;
    share_unlock (api, signals);
    return active;
}

struct share share_of_uuid (const uint8_t uuid[16])
{
    struct share share = { .gpu = RM_NO_GPU, .device = -1 };
    uint64_t signals;
    struct api *api = share_lock (&signals);
    memcpy (share.uuid.bytes, uuid, sizeof (share.uuid.bytes));
    if (api == NULL) {
        share.blocked = true;
        return share;
    }
    share.blocked = !api->good;
    if (api->good)
        share.gpu = limits_find_gpu (&api->limits, uuid);
    if (share.gpu != RM_NO_GPU) {
        share.oversubscribed = (api->limits.gpus[share.gpu].flags & LIMITS_OVERSUBSCRIBE) != 0;
        share.counted = api->counting;
        /* no memory; region_attach handles every other failure */
        share.blocked = share.counted && !api->attached;
    }
    share_unlock (api, signals);
    return share;
}

/* The container may lower its own limit in the region. 0: none. */
static uint64_t limit_of (const struct api *api, int gpu)
{
    uint64_t limit = api->limits.gpus[gpu].memory, own = LOAD_RELAXED (api->region.header->memory[gpu]);
    return own != 0 && (limit == 0 || own < limit) ? own : limit;
}

/* region_reserve is exact between processes, and the lock makes it so between threads. */
static bool reserve (const struct share *share, uint64_t bytes)
{
    uint64_t signals;
    struct api *api = share_lock (&signals);
    if (api == NULL || !api->attached) {
        if (api != NULL)
            share_unlock (api, signals);
        return false;
    }
    bool granted = region_reserve (&api->region, share->gpu, bytes, limit_of (api, share->gpu));
    share_unlock (api, signals);
    return granted;
}

bool share_take (const struct share *share, uint64_t bytes)
{
    return !share->blocked && (!share->counted || reserve (share, bytes));
}

void share_give (const struct share *share, uint64_t bytes)
{
    uint64_t signals;
    struct api *api = share->counted ? share_lock (&signals) : NULL;
    if (api == NULL)
        return;
    if (api->attached)
        region_refund (&api->region, share->gpu, bytes);
    share_unlock (api, signals);
}

void share_keep (const struct share *share, bool made, enum ledger_kind kind, uint64_t key, uint64_t bytes, bool converted)
{
    uint64_t signals;
    struct api *api;
    if (!made) {
        share_give (share, bytes);
    } else if ((share->counted || converted) && (api = share_lock (&signals)) != NULL) {
        struct ledger_entry entry = { .key = key, .bytes = bytes, .kind = kind, .references = 1, .converted = converted };
        entry.gpu = share->counted ? share->gpu : RM_NO_GPU;
        /* A living allocation has its key alone. The entry is of one that ended unseen, or of this call: a driver's
         * function that calls another one by its exported name reaches that one's wrapper too. */
        struct ledger_entry *old = ledger_find (&api->ledger, kind, key);
        if (old != NULL) {
            if (old->gpu != RM_NO_GPU && api->attached)
                region_refund (&api->region, old->gpu, old->bytes);
            ledger_remove (&api->ledger, old);
        }
        ledger_add (&api->ledger, &entry);
        share_unlock (api, signals);
    }
}

bool share_forget (enum ledger_kind kind, uint64_t key, struct ledger_entry *entry)
{
    uint64_t signals;
    struct api *api = share_lock (&signals);
    struct ledger_entry *found = api != NULL ? ledger_find (&api->ledger, kind, key) : NULL;
    if (found != NULL) {
        *entry = *found;
        ledger_remove (&api->ledger, found);
    }
    if (api != NULL)
        share_unlock (api, signals);
    return found != NULL;
}

void share_freed (const struct ledger_entry *entry, bool freed)
{
    uint64_t signals;
    struct api *api = share_lock (&signals);
    if (api == NULL)
        return;
    if (!freed)
        ledger_add (&api->ledger, entry);
    else if (entry->gpu != RM_NO_GPU && api->attached)
        region_refund (&api->region, entry->gpu, entry->bytes);
    share_unlock (api, signals);
}

bool share_is_converted (uint64_t pointer)
{
    uint64_t signals;
    struct api *api = share_lock (&signals);
    struct ledger_entry *entry = api != NULL ? ledger_find (&api->ledger, LEDGER_POINTER, pointer) : NULL;
    bool converted = entry != NULL && entry->converted;
    if (api != NULL)
        share_unlock (api, signals);
    return converted;
}

bool share_numbers (const struct share *share, uint64_t real_total, uint64_t real_free, struct share_numbers *numbers)
{
    uint64_t signals;
    struct api *api = share->counted ? share_lock (&signals) : NULL;
    if (api == NULL)
        return false;
    uint64_t limit = api->attached ? limit_of (api, share->gpu) : 0;
    uint64_t used = api->attached ? region_sum (&api->region, share->gpu, false) : 0;
    share_unlock (api, signals);
    if (limit == 0)
        return false;
    numbers->total = share->oversubscribed || limit < real_total ? limit : real_total;
    numbers->used = used;
    numbers->free = used < numbers->total ? numbers->total - used : 0;
    if (!share->oversubscribed && numbers->free > real_free)
        numbers->free = real_free;
    return true;
}

uint64_t share_charge (uint64_t bytes)
{
    /* The driver allocates video memory in blocks of 2 MiB and sub-allocates small sizes in steps of 512. */
    uint64_t step = bytes >= 1u << 20 ? 2u << 20 : 512;
    return bytes > UINT64_MAX - step ? bytes : (bytes + step - 1) / step * step;
}
