/*
 * Admission of memory, exact among racing processes, and consistent wherever one of them is killed: everything that a
 * dead process wrote is in its own slot, and goes with it.
 */
#include <fcntl.h>

#include "raw.h"
#include "region.h"

static bool admission_lock (int descriptor, short type)
{
    struct flock lock = { .l_type = type, .l_whence = 0, .l_start = (off_t) REGION_ADMISSION, .l_len = 1 };

    return RAW3 (SYS_fcntl, descriptor, F_SETLK, &lock) == 0;
}

/* A process lock, since the kernel frees it with this process and a forked child has no part in it. Polled: a holder
 * that was stopped must not stop everybody. */
static bool admission_begin (int descriptor)
{
    uint64_t end = raw_now () + 2 * (uint64_t) REGION_PATIENCE_NS;

    for (unsigned attempt = 0; descriptor >= 0; attempt++) {
        if (admission_lock (descriptor, F_WRLCK))
            return true;
        if (raw_now () > end)
            break;
        raw_rest (attempt < 50 ? 5000 : 200000);
    }
    return false;
}

static void grant (struct region_slot *slot, int gpu, uint64_t bytes)
{
    __atomic_add_fetch (&slot->memory[gpu], bytes, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch (&slot->pending[gpu], bytes, __ATOMIC_SEQ_CST);
}

/*
 * Our own pending is posted, so whoever asks from now on counts it. Every other process that asked before is waited for
 * until it was seen once with nothing pending: what it got meanwhile is in its memory, what it asks for later it asks
 * for beside us. Then the sum of memory decides.
 */
static bool others_settled (struct region *region, int gpu, uint64_t limit)
{
    uint64_t end = raw_now () + REGION_PATIENCE_NS;
    uint32_t count = LOAD (region->header->high);

    for (uint32_t i = 0; i < count && i < REGION_SLOTS; i++) {
        for (unsigned attempt = 0; i != region->index && LOAD (region->slots[i].pending[gpu]) != 0; attempt++) {
            if (raw_now () > end || region_sum (region, gpu, true) <= limit)
                return false;
            if (attempt % 64 == 63)
                region_sweep (region);
            raw_rest (attempt < 50 ? 2000 : 100000);
        }
    }
    return true;
}

static bool reserve_slowly (struct region *region, int gpu, uint64_t bytes, uint64_t limit)
{
    struct region_slot *slot = region->slot;
    int descriptor = region_descriptor (region);
    bool ordered = admission_begin (descriptor);
    bool granted;

    region_sweep (region);
    __atomic_add_fetch (&slot->pending[gpu], bytes, __ATOMIC_SEQ_CST);
    if (others_settled (region, gpu, limit) && (ordered || region->private)) {
        uint64_t sum = region_sum (region, gpu, false);

        granted = sum <= limit && bytes <= limit - sum;
    } else {
        /* All that is asked for fits, or somebody asks and does not go on: then it counts like granted. */
        granted = region_sum (region, gpu, true) <= limit;
    }
    if (granted)
        grant (slot, gpu, bytes);
    else
        __atomic_sub_fetch (&slot->pending[gpu], bytes, __ATOMIC_SEQ_CST);
    if (ordered)
        admission_lock (descriptor, F_UNLCK);
    return granted;
}

bool region_reserve (struct region *region, int gpu, uint64_t bytes, uint64_t limit)
{
    struct region_slot *slot = region->slot;

    region_identify (region);
    if (limit == 0) {
        __atomic_add_fetch (&slot->memory[gpu], bytes, __ATOMIC_SEQ_CST);
        return true;
    }
    if (bytes > limit)
        return false;
    __atomic_add_fetch (&slot->pending[gpu], bytes, __ATOMIC_SEQ_CST);
    if (region_sum (region, gpu, true) <= limit) {
        grant (slot, gpu, bytes);
        return true;
    }
    __atomic_sub_fetch (&slot->pending[gpu], bytes, __ATOMIC_SEQ_CST);
    return reserve_slowly (region, gpu, bytes, limit);
}

void region_refund (struct region *region, int gpu, uint64_t bytes)
{
    uint64_t *memory = &region->slot->memory[gpu];
    uint64_t before = LOAD (*memory);

    while (!__atomic_compare_exchange_n (memory, &before, before > bytes ? before - bytes : 0, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
        ;
}
