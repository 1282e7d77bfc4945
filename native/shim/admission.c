/*
 * Admission of memory against the quota (region.h), exact among racing processes. A process writes only to its own
 * slot, so that a kill at any point leaves nothing behind that clearing the slot does not remove.
 *
 * Without a lock first: pending is raised, and the request granted if pending and memory of all slots fit together. Of
 * two processes that race at least one sees the other, and a sum reads pending before memory, so that a grant in
 * progress counts once or twice, never not at all. Otherwise pending is lowered again and the request made in order
 * (reserve_in_order), under a lock on one byte: a process that requests after its slot was seen counts what is pending
 * here, one that requested before has been decided.
 *
 * Runs in every process of a container that allocates video memory, on the allocating thread, under the process's lock.
 */
#include <fcntl.h>

#include "raw.h"
#include "region.h"

static bool admission_lock (int descriptor, short type)
{
    struct flock lock = { .l_type = type, .l_whence = 0, .l_start = (off_t) REGION_ADMISSION, .l_len = 1 };

    return RAW3 (SYS_fcntl, descriptor, F_SETLK, &lock) == 0;
}

/* A process lock (F_SETLK): the kernel frees it when the process ends, and a forked child does not inherit it. Polled
 * with a time limit, so that a stopped holder does not block the other processes. */
static bool admission_begin (int descriptor)
{
    uint64_t end = raw_now () + 2 * (uint64_t) REGION_TIMEOUT_NS;

    for (unsigned attempt = 0; descriptor >= 0; attempt++) {
        if (admission_lock (descriptor, F_WRLCK))
            return true;
        if (raw_now () > end)
            break;
        raw_sleep (attempt < 50 ? 5000 : 200000);
    }
    return false;
}

static void grant (struct region_slot *slot, int gpu, uint64_t bytes)
{
    __atomic_add_fetch (&slot->memory[gpu], bytes, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch (&slot->pending[gpu], bytes, __ATOMIC_SEQ_CST);
}

/*
 * Waits until every other slot has been seen once without pending bytes; false: it timed out, or everything fits by
 * now.
 *
 * This process's pending bytes are published already, so later requests count them. An earlier request has ended once
 * its slot shows no pending bytes, and what it was granted is in its slot's memory. The sum of memory is then decisive.
 */
static bool wait_for_pending (struct region *region, int gpu, uint64_t limit)
{
    uint64_t end = raw_now () + REGION_TIMEOUT_NS;
    uint32_t count = LOAD (region->header->high);

    for (uint32_t i = 0; i < count && i < REGION_SLOTS; i++) {
        for (unsigned attempt = 0; i != region->index && LOAD (region->slots[i].pending[gpu]) != 0; attempt++) {
            if (raw_now () > end || region_sum (region, gpu, true) <= limit)
                return false;
            if (attempt % 64 == 63)
                region_sweep (region);
            raw_sleep (attempt < 50 ? 2000 : 100000);
        }
    }
    return true;
}

static bool reserve_in_order (struct region *region, int gpu, uint64_t bytes, uint64_t limit)
{
    struct region_slot *slot = region->slot;
    int descriptor = region_descriptor (region);
    bool ordered = admission_begin (descriptor);
    bool granted;

    region_sweep (region);
    __atomic_add_fetch (&slot->pending[gpu], bytes, __ATOMIC_SEQ_CST);
    if (wait_for_pending (region, gpu, limit) && (ordered || region->private)) {
        uint64_t sum = region_sum (region, gpu, false);

        granted = sum <= limit && bytes <= limit - sum;
    } else {
        /* Everything requested fits, or a requesting process made no progress in time: its request counts as
         * granted. */
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
    return reserve_in_order (region, gpu, bytes, limit);
}

void region_refund (struct region *region, int gpu, uint64_t bytes)
{
    uint64_t *memory = &region->slot->memory[gpu];
    uint64_t before = LOAD (*memory);

    while (!__atomic_compare_exchange_n (memory, &before, before > bytes ? before - bytes : 0, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
        ;
}
