/*
 * One cap for several processes of a container, on a model of the driver: one call at a time, in the order in which
 * they come; a freeze takes about 0.6 ms and takes effect in the middle, a thaw about 0.33 ms and takes effect at its
 * end (measured on an H200). The GPU's rate depends on how many compute, since it switches between them.
 */
#include <string.h>

#include "shim/ring.h"
#include "tap.h"

#define MAX_PROCESSES 16
#define MILLISECOND 1000000u
#define CHECK_NS 50000000u /* a thread wakes at least so often (thread.c) */
#define SHORTEST_SLEEP_NS 100000u
#define SWITCH_US 245.0 /* 1135 kernels/s of three processes, 1545 of one */

static uint64_t state = 88172645463325252u;

static uint64_t between (uint64_t low, uint64_t high)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return low + state % (high - low);
}

struct process {
    struct cap cap;
    uint64_t wakes;
    bool here; /* it has channels */
    bool open, works;
};

struct machine {
    struct process processes[MAX_PROCESSES];
    uint32_t count;       /* of processes that have channels */
    bool separate;        /* without ring.c: every process for itself */
    uint64_t lock_free;   /* when the last call ends */
    uint64_t late;        /* threads wake up to this late, ns */
    uint64_t now;         /* `on` and `work` are counted until then */
    double on, work;      /* ns in which a process with work has the GPU; the same by rate */
};

/* The rate of work of so many processes, relative to that of one. */
static double rate (uint32_t open)
{
    double slice = 2048.0 / open < 500 ? 500 : 2048.0 / open;

    return open > 1 ? slice / (slice + SWITCH_US) : open;
}

static void pass (struct machine *machine, uint64_t time)
{
    uint32_t open = 0;

    for (int i = 0; i < MAX_PROCESSES; i++)
        open += machine->processes[i].here && machine->processes[i].open && machine->processes[i].works;
    if (time <= machine->now)
        return;
    machine->on += open ? (double) (time - machine->now) : 0;
    machine->work += rate (open) * (double) (time - machine->now);
    machine->now = time;
}

static uint32_t rank_of (const struct machine *machine, const struct process *process)
{
    uint32_t rank = 0;

    for (const struct process *other = machine->processes; other < process; other++)
        rank += other->here;
    return rank;
}

/* A wake-up of the thread (schedule_gpu in thread.c). */
static void schedule_gpu (struct machine *machine, struct process *process, uint32_t share)
{
    struct cap *cap = &process->cap;
    uint64_t now = process->wakes, began = now, lasts, effect;
    struct cap_step step;

    if (!machine->separate)
        ring_place (cap, ring_period (CAP_PERIOD_NS, share, machine->count), share, machine->count, rank_of (machine, process),
                    now);
    step = cap_next (cap);
    if (step.at <= now) {
        began = now > machine->lock_free ? now : machine->lock_free;
        lasts = step.freeze ? between (540000, 660000) : between (290000, 370000);
        machine->lock_free = began + lasts;
        effect = step.freeze ? began + lasts / 2 : began + lasts;
        pass (machine, effect);
        process->open = !step.freeze;
        cap_done (cap, step.freeze, now, machine->lock_free);
        now = machine->lock_free;
        step = cap_next (cap);
    }
    process->wakes = step.at > now + SHORTEST_SLEEP_NS ? step.at : now + SHORTEST_SLEEP_NS;
    process->wakes = process->wakes < now + CHECK_NS ? process->wakes : now + CHECK_NS;
    process->wakes += machine->late ? between (0, machine->late) : 0;
}

static struct process *next (struct machine *machine)
{
    struct process *first = NULL;

    for (int i = 0; i < MAX_PROCESSES; i++)
        if (machine->processes[i].here && (!first || machine->processes[i].wakes < first->wakes))
            first = &machine->processes[i];
    return first;
}

static void comes (struct machine *machine, struct process *process, uint32_t share, uint64_t now)
{
    *process = (struct process) { .here = true, .open = true, .works = true };
    cap_begin (&process->cap, 0, share, now);
    process->wakes = now + between (0, MILLISECOND);
    machine->count++;
}

static void begin (struct machine *machine, uint32_t share, uint32_t count)
{
    memset (machine, 0, sizeof *machine);
    machine->late = 80000;
    machine->now = 12345678901u;
    for (uint32_t i = 0; i < count; i++)
        comes (machine, &machine->processes[i], share, machine->now);
}

static void run (struct machine *machine, uint32_t share, uint64_t until)
{
    for (struct process *process = next (machine); process->wakes < until; process = next (machine))
        schedule_gpu (machine, process, share);
    pass (machine, until);
}

struct got {
    double on, work; /* points above the cap; work: relative to as many without a cap */
};

/* One minute. alone: only this process works (-1: all do). */
static struct got keep (uint32_t share, uint32_t count, bool separate, int alone)
{
    struct machine machine;
    double passed;
    uint64_t since;

    begin (&machine, share, count);
    machine.separate = separate;
    for (uint32_t i = 0; i < count && alone >= 0; i++)
        machine.processes[i].works = (int) i == alone;
    run (&machine, share, machine.now + 20000 * (uint64_t) MILLISECOND); /* durations of calls are measured */
    since = machine.now;
    machine.on = machine.work = 0;
    run (&machine, share, machine.now + 60000 * (uint64_t) MILLISECOND);
    passed = (double) (machine.now - since);
    return (struct got) { 100 * machine.on / passed - share / 10.0,
                          100 * machine.work / passed / rate (alone < 0 ? count : 1) - share / 10.0 };
}

static double distance (double one) { return one < 0 ? -one : one; }

static void test_all_work (void)
{
    static const uint32_t counts[] = { 1, 2, 3, 4, 8, 16 };
    double worst = 0, before = 0;
    char claim[120];

    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (uint32_t share = 100; share <= 900; share += 100) {
            struct got now = keep (share, counts[i], false, -1), was = keep (share, counts[i], true, -1);

            worst = distance (now.on) > worst ? distance (now.on) : worst;
            worst = distance (now.work) > worst ? distance (now.work) : worst;
            before = distance (was.work) > before ? distance (was.work) : before;
            printf ("# %2u processes, cap %2u %%: time %+.2f, work %+.2f points; each for itself %+.2f, %+.2f\n", counts[i],
                    share / 10, now.on, now.work, was.on, was.work);
        }
        snprintf (claim, sizeof claim, "%u processes that all work: caps of 10 to 90 %% within %s", counts[i],
                  counts[i] == 1 ? "0.1 points" : "half a point");
        tap_ok (worst < (counts[i] == 1 ? 0.1 : 0.5), claim);
        if (counts[i] == 3)
            tap_ok (before > 2, "where each of three enforces it alone, it is 2 points and more (32.2 % on an H200)");
        worst = before = 0;
    }
}

static void test_one_works (void)
{
    static const uint32_t counts[] = { 2, 3, 8, 16 };

    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        double most = -100, least = 100;
        char claim[100];

        for (uint32_t share = 100; share <= 900; share += 200)
            for (uint32_t alone = 0; alone < counts[i]; alone += counts[i] > 4 ? 5 : 1) {
                double on = keep (share, counts[i], false, (int) alone).on;

                most = on > most ? on : most;
                least = on < least ? on : least;
            }
        printf ("# one of %u works: %+.2f to %+.2f points\n", counts[i], least, most);
        snprintf (claim, sizeof claim, "one of %u that works beside idle ones loses less than a point", counts[i]);
        tap_ok (least > -1 && most < 0.5, claim);
    }
}

/* One minute, in which a third process starts and ends repeatedly, at independent times. */
static void test_coming_and_going (void)
{
    double most = -100, least = 100;

    for (uint32_t share = 100; share <= 900; share += 200) {
        struct machine machine;
        uint64_t since;
        double got;

        begin (&machine, share, 2);
        since = machine.now;
        while (machine.now - since < 60000 * (uint64_t) MILLISECOND) {
            run (&machine, share, machine.now + between (300, 900) * MILLISECOND);
            comes (&machine, &machine.processes[2], share, machine.now);
            run (&machine, share, machine.now + between (300, 900) * MILLISECOND);
            machine.processes[2].here = false;
            machine.count--;
        }
        got = 100 * machine.on / (double) (machine.now - since) - share / 10.0;
        printf ("# a third process every second, cap %2u %%: %+.2f points\n", share / 10, got);
        most = got > most ? got : most;
        least = got < least ? got : least;
    }
    tap_ok (least > -2 && most < 2, "with a process that starts or ends every second it is exact within 2 points");
}

static void test_busy_machine (void)
{
    double most = -100, least = 100;

    for (uint32_t share = 100; share <= 900; share += 200) {
        struct machine machine;
        uint64_t since;
        double got;

        begin (&machine, share, 3);
        machine.late = 2 * MILLISECOND;
        since = machine.now;
        run (&machine, share, since + 60000 * (uint64_t) MILLISECOND);
        got = 100 * machine.on / (double) (machine.now - since) - share / 10.0;
        printf ("# threads that wake up to 2 ms late, cap %2u %%: %+.2f points\n", share / 10, got);
        most = got > most ? got : most;
        least = got < least ? got : least;
    }
    tap_ok (least > -1 && most < 1, "with three processes whose threads wake up to 2 ms late it is exact within a point");
}

static void test_periods (void)
{
    tap_ok (ring_period (50000000, 300, 1) == 50000000, "one process keeps its period");
    tap_ok (ring_period (50000000, 300, 2) == 125000000 && ring_period (50000000, 300, 16) == 1000000000,
            "62.5 ms of the period for each of several");
    tap_ok (ring_period (50000000, 300, 17) == 1000000000 && ring_period (3000000000u, 300, 2) == 3000000000u,
            "no more than a second for 16 and more, and none shorter than configured");
    tap_ok (ring_period (50000000, 10, 8) == 1200000000, "under a small cap so long that there is time for all calls");
}

/* With one process the result is that of cap.c alone. */
static void test_alone (void)
{
    struct cap one, other;
    uint64_t now = 1000 * 50000000ull + 7000000;
    bool same = true;

    cap_begin (&one, 0, 300, now);
    cap_begin (&other, 0, 300, now);
    for (int i = 0; i < 10000; i++) {
        struct cap_step step, expected = cap_next (&other);
        uint64_t lasts = between (290000, 660000);

        ring_place (&one, CAP_PERIOD_NS, 300, 1, 0, now);
        step = cap_next (&one);
        same &= step.at == expected.at && step.freeze == expected.freeze;
        now = step.at + between (0, 80000);
        cap_done (&one, step.freeze, now, now + lasts);
        cap_done (&other, step.freeze, now, now + lasts);
    }
    tap_ok (same, "one process makes its calls at the same times as without ring.c");
}

int main (void)
{
    test_periods ();
    test_alone ();
    test_all_work ();
    test_one_works ();
    test_coming_and_going ();
    test_busy_machine ();
    return tap_done ();
}
