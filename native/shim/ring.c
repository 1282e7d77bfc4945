#include "ring.h"

static uint64_t most (uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

uint64_t ring_period (uint64_t period, uint32_t share, uint32_t count)
{
    if (count <= 1)
        return period;
    period = most (period, (uint64_t) RING_EACH_NS * (count < RING_MOST ? count : RING_MOST));
    return share ? most (period, (uint64_t) RING_SHORTEST_NS * 1000 * count / share) : period;
}

/* The place by what calls take: that is measured all the time, and so the place moves a little. */
static void place (struct cap *cap, uint32_t count, uint32_t rank)
{
    uint64_t before = rank * cap->free_thaw, after = (count - 1 - rank) * cap->free_freeze;
    uint64_t half = cap->period / 2000 * cap->share;

    /* On a machine where calls take this long, a process has half of the cap's time at least. */
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
