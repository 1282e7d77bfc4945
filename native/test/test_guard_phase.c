/* Phases of a tenant: pure arithmetic, on a clock that the test turns. */
#include "guard/phase.h"
#include "tap.h"

#define MILLISECOND UINT64_C (1000000)
#define PERIOD 50000u
#define BEGUN UINT64_C (12345678901)

static uint64_t state = 88172645463325252u;
static struct phase_plan plan;
static uint64_t now, on_ns, on_since, off_since, longest_off, late;
static bool off;
static unsigned calls = 1;

static uint64_t below (uint64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return limit == 0 ? 0 : state % limit;
}

static void begin (void)
{
    plan = (struct phase_plan) { 0 };
    now = on_since = BEGUN;
    on_ns = longest_off = 0;
    off = false;
}

static void set (uint32_t since, uint32_t until)
{
    struct guard_phase phase = { .period = PERIOD, .since = since, .until = until };

    phase_set (&plan, &phase, now);
}

/* The plan is run until `end`; a stop takes effect in the middle of its call, a thaw at its end: of several calls, the
 * tenant is on from the first thaw to the last stop. */
static void run_until (uint64_t end)
{
    for (;;) {
        struct phase_step step = phase_next (&plan);
        uint64_t began, ended, effect, one;

        if (step.at >= end)
            break;
        began = (step.at > now ? step.at : now) + below (late);
        one = step.freeze ? 550000 + below (100000) : 300000 + below (60000);
        ended = began + calls * one;
        effect = step.freeze ? ended - one / 2 : began + one;
        if (off != step.freeze) {
            if (step.freeze) {
                on_ns += effect - on_since;
                off_since = effect;
            } else {
                longest_off = effect - off_since > longest_off ? effect - off_since : longest_off;
                on_since = effect;
            }
            off = step.freeze;
        }
        phase_done (&plan, step, began, ended, calls);
        now = ended;
    }
    now = now > end ? now : end;
    if (!off) {
        on_ns += now - on_since;
        on_since = now;
    }
}

static double part_of (uint64_t time) { return (double) on_ns / (double) time; }

static bool near (double value, double wanted, double away) { return value > wanted - away && value < wanted + away; }

/* Of ten seconds. */
static double part_with (uint32_t since, uint32_t cap)
{
    begin ();
    set (since, since + PERIOD * cap / 1000);
    run_until (now + 10000 * MILLISECOND);
    return part_of (10000 * MILLISECOND);
}

static void caps (void)
{
    bool kept = true;

    for (uint32_t cap = 100; cap <= 900; cap += 100)
        kept &= near (part_with (0, cap), cap / 1000.0, 0.002);
    tap_ok (kept, "caps of 10 to 90 % are kept within 0.2 points");
    kept = true;
    late = 3 * MILLISECOND;
    for (uint32_t cap = 10; cap <= 990; cap += 70)
        kept &= near (part_with (49000, cap), cap / 1000.0, 0.006);
    late = 0;
    tap_ok (kept, "also by a thread that wakes up to 3 ms late, and caps that are shorter than a call");
    kept = true;
    for (calls = 2; calls <= 8; calls += calls)
        for (uint32_t cap = 200; cap <= 800; cap += 200)
            kept &= near (part_with (0, cap), cap / 1000.0, 0.004);
    calls = 1;
    tap_ok (kept, "caps of tenants with 2, 4 and 8 processes are kept within 0.4 points, from the first thaw to the last stop");
}

/* The tenant is on in its part and off in the rest, so that another one can have that. */
static void placed (void)
{
    bool is_there = true;

    begin ();
    set (30000, 45000);
    run_until (now + 200 * MILLISECOND);
    for (unsigned turn = 0; turn < 1000; turn++) {
        uint64_t into;

        run_until (now + MILLISECOND + below (MILLISECOND));
        into = now % (PERIOD * UINT64_C (1000));
        /* But for the calls at its edges. */
        if (into > 31 * MILLISECOND && into < 44 * MILLISECOND)
            is_there &= !off;
        if (into < 29 * MILLISECOND || into > 46 * MILLISECOND)
            is_there &= off;
    }
    tap_ok (is_there, "a tenant is on in its part of the period, and in no other");
}

static void moving (void)
{
    begin ();
    for (unsigned turn = 0; turn < 400; turn++) {
        uint32_t since = (uint32_t) below (PERIOD);

        set (since, since + 10000);
        run_until (now + below (200 * MILLISECOND));
    }
    tap_ok (longest_off < (PERIOD + 3000) * UINT64_C (1000), "no tenant is off for longer than a period while its part changes");
    tap_ok (near (part_of (now - BEGUN), 0.2, 0.01), "and has as much as it has in all of them");
}

static void ending (void)
{
    struct phase_step step;

    begin ();
    set (0, 10000);
    now += 50 * MILLISECOND - now % (50 * MILLISECOND);
    run_until (now + 130 * MILLISECOND);
    tap_ok (off, "in the rest of the period it is off");
    phase_end (&plan);
    step = phase_next (&plan);
    tap_ok (step.at == 0 && !step.freeze, "a tenant that has no part any more while it is off is thawed first");
    run_until (now + MILLISECOND);
    tap_ok (!off && !plan.is_active && phase_next (&plan).at == UINT64_MAX, "and then nothing is left to do");
    set (0, 10000);
    run_until (now + 130 * MILLISECOND - now % (50 * MILLISECOND));
    phase_end (&plan);
    set (0, 10000);
    step = phase_next (&plan);
    tap_ok (off && (step.freeze || step.at > now), "one that has its part again before that stays off");
    step = phase_next (&plan);
    phase_done (&plan, step, step.at, step.at, 0);
    tap_ok (phase_next (&plan).at == UINT64_MAX, "a tenant that is not there any more is forgotten");
}

/* The driver makes a call for the tenant when its time comes. */
static void busy (void)
{
    struct phase_step step;

    begin ();
    set (0, 25000);
    run_until (now + 100 * MILLISECOND);
    while (step = phase_next (&plan), !step.freeze)
        run_until (step.at + 1);
    phase_busy (&plan, step.at + 200 * MILLISECOND);
    tap_ok (phase_next (&plan).at == step.at + 200 * MILLISECOND, "a tenant that is busy is stopped later");
    run_until (now + 200 * MILLISECOND);
    on_ns = 0;
    run_until (now + 10000 * MILLISECOND);
    tap_ok (near (part_of (10000 * MILLISECOND), 0.5, 0.02), "and what it had too much is made up for");
}

static bool can_be (struct guard_phase phase) { return phase_check (&phase) == 0; }

static void checking (void)
{
    tap_ok (can_be ((struct guard_phase) { PERIOD, 0, PERIOD, 0 }) && can_be ((struct guard_phase) { PERIOD, 40000, 60000, 0 }) &&
                can_be ((struct guard_phase) { 0 }),
            "phases that can be are taken");
    tap_ok (!can_be ((struct guard_phase) { PERIOD, 0, PERIOD + 1, 0 }) && !can_be ((struct guard_phase) { PERIOD, 5, 5, 0 }) &&
                !can_be ((struct guard_phase) { PERIOD, PERIOD, PERIOD + 5, 0 }) &&
                !can_be ((struct guard_phase) { 999, 0, 5, 0 }) && !can_be ((struct guard_phase) { 1000001, 0, 5, 0 }),
            "and no others");
    begin ();
    set (0, PERIOD);
    tap_ok (phase_next (&plan).at == UINT64_MAX, "a part that is the whole period is no part");
}

int main (void)
{
    caps ();
    placed ();
    moving ();
    ending ();
    busy ();
    checking ();
    return tap_done ();
}
