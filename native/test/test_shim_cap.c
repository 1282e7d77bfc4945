/* Caps and weights: pure arithmetic, on the test's own clock. */
#include "shim/cap.h"
#include "shim/weight.h"
#include "tap.h"

static uint64_t state = 88172645463325252u;

static uint64_t below (uint64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

struct run {
    double share; /* of the time that the GPU was running, in 1/1000 */
    uint64_t longest_on, longest_off;
};

/* Some minutes of a thread that enforces a cap; calls last up to `slowest` ns, and it wakes up to `late` ns late. */
static struct run keep (uint32_t share, uint64_t slowest, uint64_t late, uint64_t spikes)
{
    struct cap cap;
    struct run run = { 0, 0, 0 };
    uint64_t begin = 12345678901u, now = begin, end = begin + 200000000000u, on = 0, since = begin;

    cap_begin (&cap, 0, share, now);
    while (now < end) {
        struct cap_step step = cap_next (&cap);
        uint64_t began, ended, effect;

        now = step.at > now ? step.at : now;
        began = now + (late ? below (late) : 0);
        ended = began + (slowest ? below (slowest) : 0);
        if (spikes && below (spikes) == 0)
            ended += 40000000;
        /* A freeze takes effect in the middle of its call, a thaw at its end. */
        effect = step.freeze ? began + (ended - began) / 2 : ended;
        if (step.freeze) {
            on += effect - since;
            run.longest_on = effect - since > run.longest_on ? effect - since : run.longest_on;
        } else {
            run.longest_off = effect - since > run.longest_off ? effect - since : run.longest_off;
        }
        since = effect;
        cap_done (&cap, step.freeze, began, ended);
        now = ended;
    }
    run.share = 1000.0 * (double) on / (double) (since - begin);
    return run;
}

static bool keeps_all (uint64_t slowest, uint64_t late, uint64_t spikes)
{
    bool good = true;

    for (uint32_t share = 10; share <= 990; share += 10) {
        struct run run = keep (share, slowest, late, spikes);

        if (run.share < share - 1.0 || run.share > share + 1.0) {
            printf ("# share %u: got %.3f\n", share, run.share);
            good = false;
        }
    }
    return good;
}

static void test_shares (void)
{
    struct run half = keep (500, 700000, 60000, 0);

    tap_ok (keeps_all (0, 0, 0), "every cap from 1 to 99 % is exact within 0.1 points with calls that take no time");
    tap_ok (keeps_all (1200000, 100000, 0), "and with calls of up to 1.2 ms and a thread that wakes late");
    tap_ok (keeps_all (3000000, 2000000, 0), "and with calls of up to 3 ms on a busy machine");
    tap_ok (keeps_all (700000, 100000, 100), "and when one call in a hundred takes 40 ms more");
    printf ("# longest on %.1f ms, off %.1f ms\n", (double) half.longest_on / 1e6, (double) half.longest_off / 1e6);
    tap_ok (half.longest_on < 28000000 && half.longest_off < 28000000, "a half is 25 ms on and 25 ms off");
}

static void test_phase (void)
{
    struct cap cap;
    struct cap_step step;
    uint64_t now = 1000 * 50000000ull + 7000000;

    cap_begin (&cap, 0, 300, now);
    step = cap_next (&cap);
    tap_ok (step.freeze && step.at + cap.to_freeze / 2 == now + 43000000 * 3 / 10,
            "what is left of the first period is shared too");
    cap_done (&cap, true, step.at, step.at + 500000);
    step = cap_next (&cap);
    tap_ok (!step.freeze && step.at + cap.to_thaw == 1001 * 50000000ull, "the next on-phase begins at a multiple of the period");
    cap_done (&cap, false, step.at, step.at + 300000);
    step = cap_next (&cap);
    tap_ok (step.freeze && step.at + cap.to_freeze / 2 > 1001 * 50000000ull + 14900000 &&
                step.at + cap.to_freeze / 2 < 1001 * 50000000ull + 15100000,
            "and lasts its share, with calls made early by their duration");
    cap_done (&cap, true, step.at, step.at + 5500000);
    step = cap_next (&cap);
    cap_done (&cap, false, step.at, step.at + 300000);
    step = cap_next (&cap);
    tap_ok (step.at + cap.to_freeze / 2 < 1002 * 50000000ull + 13500000, "an overrun is taken from the next period");
}

static void test_change (void)
{
    struct cap cap;
    struct cap_step step;

    cap_begin (&cap, 20000000, 500, 0);
    cap_done (&cap, true, 3600000000000u, 3600000500000u);
    step = cap_next (&cap);
    tap_ok (step.at < 3600000500000u + 20000000u * (CAP_MEMORY_PERIODS * 2 + 2), "an hour without accounting gives no credit");
    cap_change (&cap, 20000000, 900, step.at);
    step = cap_next (&cap);
    tap_ok (!step.freeze && step.at <= 3600000500000u + 20000000u * (CAP_MEMORY_PERIODS * 2 + 4),
            "a new cap begins with a balance of 0");
}

static void test_weights (void)
{
    bool order = true;

    tap_ok (weight_timeslice (0, 0, PRIORITY_NORMAL, 1) == 0, "a container without a weight has libcuda's timeslice");
    tap_ok (weight_timeslice (0, 0, PRIORITY_NORMAL, 2) == 1024, "and divides it by its groups");
    tap_ok (weight_timeslice (10, 0, PRIORITY_NORMAL, 1) == 2048, "weight 10 is libcuda's timeslice");
    tap_ok (weight_timeslice (30, 0, PRIORITY_NORMAL, 1) == 6144, "weight 30 is three of them");
    tap_ok (weight_timeslice (30, 20, PRIORITY_NORMAL, 1) == 4096, "the container's own weight counts when it is lower");
    tap_ok (weight_timeslice (20, 30, PRIORITY_NORMAL, 1) == 4096, "and not when it is higher");
    tap_ok (weight_timeslice (10, 0, PRIORITY_HIGH, 1) == 20480, "high priority is ten times as long");
    tap_ok (weight_timeslice (10, 0, PRIORITY_LOW, 1) == 1024, "low priority half as long");
    tap_ok (weight_timeslice (1, 0, PRIORITY_LOW, 9) == 500, "no slice is shorter than 0.5 ms");
    tap_ok (weight_timeslice (1000, 0, PRIORITY_HIGH, 1) == 65000, "and none longer than 65 ms");
    for (uint32_t weight = 1; weight < 1000; weight++)
        for (uint32_t groups = 1; groups < 40; groups += 3)
            order &= weight_timeslice (weight, 0, 0, groups) <= weight_timeslice (weight + 1, 0, 0, groups) &&
                     weight_timeslice (weight, 0, 0, groups) >= weight_timeslice (weight, 0, 0, groups + 1);
    tap_ok (order, "more weight never gives less, more groups never give more");
}

int main (void)
{
    test_shares ();
    test_phase ();
    test_change ();
    test_weights ();
    return tap_done ();
}
