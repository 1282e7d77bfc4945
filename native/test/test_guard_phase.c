/* Phases of a GPU's tenants: pure arithmetic, on a clock that the test turns. */
#include "guard/phase.h"
#include "tap.h"

#include <stdlib.h>

#define MILLISECOND UINT64_C (1000000)
#define PERIOD 50000u
#define TENANTS 300

static uint64_t state = 88172645463325252u;
static struct phase_plan plan;
static uint64_t now, on_ns[TENANTS], on_since[TENANTS], off_since[TENANTS], longest_off[TENANTS];
static uint64_t idle_ns, together_ns, nobody_since, together_since, late;
static bool off[TENANTS];
static unsigned running, present, calls = 1;

static uint64_t below (uint64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return limit == 0 ? 0 : state % limit;
}

static void begin (unsigned tenants)
{
    phase_free (&plan);
    now = 12345678901u;
    present = running = tenants;
    for (unsigned i = 0; i < TENANTS; i++) {
        on_ns[i] = longest_off[i] = 0;
        on_since[i] = off_since[i] = now;
        off[i] = false;
    }
    idle_ns = together_ns = 0;
    nobody_since = together_since = now;
}

static void count_time (uint64_t at)
{
    if (running == 0)
        idle_ns += at - nobody_since;
    if (running > 1)
        together_ns += at - together_since;
    nobody_since = together_since = at;
}

/* The plan is run until `end`; a stop takes effect in the middle of its call, a thaw at its end: of several calls, the
 * tenant is on from the first thaw to the last stop. */
static void run_until (uint64_t end)
{
    for (;;) {
        struct phase_step step = phase_next (&plan);
        uint64_t began, ended, effect, one;
        unsigned tenant;

        if (step.entry == PHASE_NONE || step.at >= end)
            break;
        began = (step.at > now ? step.at : now) + below (late);
        one = step.freeze ? 550000 + below (100000) : 300000 + below (60000);
        ended = began + calls * one;
        effect = step.freeze ? ended - one / 2 : began + one;
        tenant = plan.entries[step.entry].tenant;
        if (off[tenant] != step.freeze) {
            count_time (effect);
            if (step.freeze) {
                on_ns[tenant] += effect - on_since[tenant];
                off_since[tenant] = effect;
                running--;
            } else {
                uint64_t lasted = effect - off_since[tenant];

                longest_off[tenant] = lasted > longest_off[tenant] ? lasted : longest_off[tenant];
                on_since[tenant] = effect;
                running++;
            }
            off[tenant] = step.freeze;
        }
        phase_done (&plan, &step, began, ended, calls);
        now = ended;
    }
    now = now > end ? now : end;
    count_time (now);
    for (unsigned i = 0; i < present; i++)
        if (!off[i]) {
            on_ns[i] += now - on_since[i];
            on_since[i] = now;
        }
}

static double part_of (unsigned tenant, uint64_t time) { return (double) on_ns[tenant] / (double) time; }

static bool near (double value, double wanted, double away) { return value > wanted - away && value < wanted + away; }

static void caps (void)
{
    bool kept = true;

    for (uint32_t cap = 100; cap <= 900; cap += 100) {
        struct guard_phase one = { .tenant = 0, .until = PERIOD * cap / 1000 };

        begin (1);
        phase_set (&plan, PERIOD, &one, 1, now);
        run_until (now + 10000 * MILLISECOND);
        kept &= near (part_of (0, 10000 * MILLISECOND), cap / 1000.0, 0.002);
    }
    tap_ok (kept, "caps of 10 to 90 % are kept within 0.2 points");
    kept = true;
    late = 3 * MILLISECOND;
    for (uint32_t cap = 10; cap <= 990; cap += 70) {
        struct guard_phase one = { .tenant = 0, .since = 49000, .until = 49000 + PERIOD * cap / 1000 };

        begin (1);
        phase_set (&plan, PERIOD, &one, 1, now);
        run_until (now + 10000 * MILLISECOND);
        kept &= near (part_of (0, 10000 * MILLISECOND), cap / 1000.0, 0.006);
    }
    late = 0;
    tap_ok (kept, "also by a thread that wakes up to 3 ms late, and caps that are shorter than a call");
}

static void several_processes (void)
{
    bool kept = true, parted = true;
    double both;

    for (calls = 2; calls <= 8; calls += calls) {
        struct guard_phase two[] = { { .tenant = 0, .until = 30000 }, { .tenant = 1, .since = 30000, .until = PERIOD } };

        for (uint32_t cap = 200; cap <= 800; cap += 200) {
            struct guard_phase one = { .tenant = 0, .until = PERIOD * cap / 1000 };

            begin (1);
            phase_set (&plan, PERIOD, &one, 1, now);
            run_until (now + 10000 * MILLISECOND);
            kept &= near (part_of (0, 10000 * MILLISECOND), cap / 1000.0, 0.004);
        }
        begin (2);
        phase_set (&plan, PERIOD, two, 2, now);
        run_until (now + 10000 * MILLISECOND);
        /* While one is let in and the other not yet stopped the GPU serves both, half each. */
        both = (double) together_ns / 1e10;
        parted &= near (part_of (0, 10000 * MILLISECOND) - both / 2, 0.6, 0.005) &&
                  near (part_of (1, 10000 * MILLISECOND) - both / 2, 0.4, 0.005) && both < 0.04 * calls;
    }
    calls = 1;
    tap_ok (kept, "caps of tenants with 2, 4 and 8 processes are kept within 0.4 points, from the first thaw to the last stop");
    tap_ok (parted, "and two such tenants have their parts");
}

static void handing_over (void)
{
    struct guard_phase three[] = { { .tenant = 0, .until = 25000 },
                                   { .tenant = 1, .since = 25000, .until = 40000 },
                                   { .tenant = 2, .since = 40000, .until = 50000 } };

    begin (3);
    phase_set (&plan, PERIOD, three, 3, now);
    run_until (now + 200 * MILLISECOND);
    for (unsigned i = 0; i < 3; i++)
        on_ns[i] = 0;
    idle_ns = together_ns = 0;
    run_until (now + 10000 * MILLISECOND);
    tap_ok (near (part_of (0, 10000 * MILLISECOND), 0.5, 0.01) && near (part_of (1, 10000 * MILLISECOND), 0.3, 0.01) &&
                near (part_of (2, 10000 * MILLISECOND), 0.2, 0.01),
            "three tenants one after the other have their parts");
    tap_ok (idle_ns < 10 * MILLISECOND, "and the GPU is hardly ever idle");
    printf ("# idle: %.3f ms of 10 s\n", (double) idle_ns / 1e6);
    tap_ok (together_ns / 600 < 650000, "nor to two for longer than a call, where one part ends and the next begins");
}

static void moving (void)
{
    bool bounded = true, exact = true;

    begin (3);
    for (unsigned turn = 0; turn < 400; turn++) {
        struct guard_phase phases[3];
        uint32_t since = (uint32_t) below (PERIOD);

        for (unsigned i = 0; i < 3; i++) {
            phases[i] = (struct guard_phase) { .tenant = i, .since = since, .until = since + 10000 };
            since = (since + 10000 + (uint32_t) below (5000)) % PERIOD;
        }
        phase_set (&plan, PERIOD, phases, 3, now);
        run_until (now + below (200 * MILLISECOND));
    }
    for (unsigned i = 0; i < 3; i++) {
        bounded &= longest_off[i] < (PERIOD + 3000) * UINT64_C (1000);
        exact &= near (part_of (i, now - 12345678901u), 0.2, 0.01);
    }
    tap_ok (bounded, "no tenant is off for longer than a period while plans change");
    tap_ok (exact, "and each keeps the part that it has in all of them");
}

static void ending (void)
{
    struct guard_phase two[] = { { .tenant = 0, .until = 10000 }, { .tenant = 1, .since = 10000, .until = 20000 } };
    struct phase_step step;

    begin (2);
    phase_set (&plan, PERIOD, two, 2, now);
    now += 50 * MILLISECOND - now % (50 * MILLISECOND);
    run_until (now + 130 * MILLISECOND); /* both are off */
    tap_ok (off[0] && off[1], "in the rest of the period both are off");
    phase_set (&plan, PERIOD, two, 1, now);
    step = phase_next (&plan);
    tap_ok (step.at == 0 && !step.freeze && plan.entries[step.entry].tenant == 1,
            "a tenant that leaves the plan while it is off is thawed first");
    phase_set (&plan, 0, NULL, 0, now);
    run_until (now + MILLISECOND);
    tap_ok (!off[0] && !off[1] && plan.count == 0 && phase_next (&plan).entry == PHASE_NONE,
            "without a plan all are thawed, and nothing is left to do");
    phase_set (&plan, PERIOD, two, 2, now);
    run_until (now + 100 * MILLISECOND);
    while (plan.count > 0) {
        step = phase_next (&plan);
        phase_done (&plan, &step, step.at, step.at, 0);
    }
    tap_ok (phase_next (&plan).entry == PHASE_NONE, "tenants that are not there any more are forgotten");
}

/* More tenants than any node has, in periods as nvc/guard/scheduling.py makes them: none of them loses its cap. */
static void many (void)
{
    static const struct {
        unsigned tenants;
        uint32_t period;
    } rows[] = { { 65, 200000 }, { 129, 400000 }, { 300, 800000 } };
    static struct guard_phase phases[TENANTS];
    bool taken = true, kept = true;

    for (unsigned row = 0; row < sizeof (rows) / sizeof (rows[0]); row++) {
        uint32_t count = rows[row].tenants, length = rows[row].period / 10;
        double least = 1, most = 0;

        for (uint32_t i = 0; i < count; i++) {
            uint32_t since = i * length % rows[row].period;

            phases[i] = (struct guard_phase) { .tenant = i, .since = since, .until = since + length };
        }
        begin (count);
        taken &= phase_check (rows[row].period, phases, count) == 0 && phase_set (&plan, rows[row].period, phases, count, now) == 0;
        run_until (now + 16000 * MILLISECOND);
        for (unsigned i = 0; i < count; i++) {
            double part = part_of (i, 16000 * MILLISECOND);

            least = part < least ? part : least;
            most = part > most ? part : most;
        }
        printf ("# %u tenants with 10 %%: %.2f to %.2f %%\n", count, 100 * least, 100 * most);
        kept &= least > 0.09 && most < 0.115;
    }
    tap_ok (taken, "plans of 65, 129 and 300 tenants are taken");
    tap_ok (kept, "and the caps of all of them kept");
    phase_free (&plan);
}

/* The driver makes a call for a tenant when its time comes: the others do not wait for that. */
static void busy (void)
{
    struct guard_phase two[] = { { .tenant = 0, .until = 25000 }, { .tenant = 1, .since = 25000, .until = 50000 } };
    struct phase_step step;

    begin (2);
    (void) phase_set (&plan, PERIOD, two, 2, now);
    run_until (now + 100 * MILLISECOND);
    while (step = phase_next (&plan), !step.freeze || plan.entries[step.entry].tenant != 0)
        run_until (step.at + 1);
    phase_busy (&plan, &step, step.at + 200 * MILLISECOND);
    on_ns[1] = 0;
    run_until (now + 200 * MILLISECOND);
    tap_ok (near (part_of (1, 200 * MILLISECOND), 0.5, 0.08), "beside a tenant that is busy the other one keeps its part");
    on_ns[0] = on_ns[1] = 0;
    run_until (now + 10000 * MILLISECOND);
    tap_ok (near (part_of (0, 10000 * MILLISECOND), 0.5, 0.02) && near (part_of (1, 10000 * MILLISECOND), 0.5, 0.02),
            "and what the busy one had too much is made up for");
}

static void checking (void)
{
    struct guard_phase good[] = { { .tenant = 1, .until = PERIOD }, { .tenant = 2, .since = 40000, .until = 60000 } };
    struct guard_phase twice[] = { good[0], good[0] }, long_one = { .until = PERIOD + 1 }, empty = { .since = 5, .until = 5 };
    struct guard_phase late_one = { .since = PERIOD, .until = PERIOD + 5 }, nowhere = { .gpu = 32, .until = 5 };

    tap_ok (phase_check (PERIOD, good, 2) == 0 && phase_check (0, NULL, 0) == 0, "plans that can be are taken");
    tap_ok (phase_check (PERIOD, twice, 2) != 0 && phase_check (PERIOD, &long_one, 1) != 0 &&
                phase_check (PERIOD, &empty, 1) != 0 && phase_check (PERIOD, &late_one, 1) != 0 &&
                phase_check (PERIOD, &nowhere, 1) != 0 && phase_check (999, good, 1) != 0 &&
                phase_check (PERIOD, good, PHASE_MOST + 1) != 0,
            "and no others");
    begin (1);
    phase_set (&plan, PERIOD, good, 1, now);
    tap_ok (phase_next (&plan).entry == PHASE_NONE, "a part that is the whole period is no part");
}

int main (void)
{
    caps ();
    several_processes ();
    handing_over ();
    moving ();
    ending ();
    many ();
    busy ();
    checking ();
    phase_free (&plan);
    return tap_done ();
}
