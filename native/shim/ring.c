/* Places of processes under a common cap (ring.h). Pure; called by thread.c on the nvc-shim thread. */
#include "ring.h"

static uint64_t larger (uint64_t one, uint64_t other) { return one > other ? one : other; }

uint64_t ring_period (uint64_t period, uint32_t share, uint32_t count)
{
    if (count <= 1)
        return period;
    period = larger (period, (uint64_t) RING_EACH_NS * (count < RING_MAX_PROCESSES ? count : RING_MAX_PROCESSES));
    return share ? larger (period, (uint64_t) RING_SHORTEST_NS * 1000 * count / share) : period;
}

/* Places follow the measured durations of calls, and so move a little all the time. */
static void place (struct cap *cap, uint32_t count, uint32_t rank)
{
    uint64_t before = rank * cap->free_thaw, after = (count - 1 - rank) * cap->free_freeze;
    uint64_t half = cap->period / 2000 * cap->share;

    /* However long calls take, a process gets at least half of the cap's time. */
    cap->offset = before < half ? before : half;
    cap->lost = before + after < half ? before + after : half;
}

void ring_place (struct cap *cap, uint64_t period, uint32_t share, uint32_t count, uint32_t rank, uint64_t now)
{
    bool changed;

    count = count ? count : 1;
    rank = rank < count ? rank : count - 1;
    changed = cap->share != share || cap->period != period || cap->queued != (count > 1);
    if (changed)
        cap_change (cap, period, share, now);
    else if (count > 1)
        cap_settle (cap, now);
    cap->queued = count > 1;
    place (cap, count, rank);
    if (changed && count > 1)
        cap_join (cap);
}
