/*
 * The thread that enforces caps and the pause, nvc-shim: one in a process, which exists only while a GPU of the process
 * has one of them and compute groups. It computes freezes and thaws with cap.c and ring.c under the process's lock, and
 * sleeps without it. thread_start runs on the thread whose call made it necessary.
 */
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#include "lock.h"
#include "next.h"
#include "process.h"
#include "raw.h"
#include "ring.h"
#include "versions.h"

#define STACK_SIZE (128u << 10)
#define SHORTEST_SLEEP_NS 100000u

extern __typeof__ (pthread_create) pthread_create __attribute__ ((weak));
extern __typeof__ (pthread_attr_init) pthread_attr_init __attribute__ ((weak));
extern __typeof__ (pthread_attr_setstacksize) pthread_attr_setstacksize __attribute__ ((weak));
extern __typeof__ (pthread_attr_setdetachstate) pthread_attr_setdetachstate __attribute__ ((weak));
OLDEST_VERSION (pthread_create);
OLDEST_VERSION (pthread_attr_init);
OLDEST_VERSION (pthread_attr_setstacksize);
OLDEST_VERSION (pthread_attr_setdetachstate);

static void set_frozen (struct process *process, int gpu, bool frozen)
{
    uint64_t began = raw_now (), ended;
    long result = rm_freeze (process->rm, gpu, frozen);

    ended = raw_now ();
    if (result != 0)
        log_note (process, frozen ? "freeze-failed" : "thaw-failed", (uint32_t) result);
    if (process->frozen & 1u << gpu) /* frozen until now; frozen again (pause): the count continues */
        __atomic_add_fetch (&process->region.slot->frozen_ns[gpu], ended - process->frozen_since[gpu], __ATOMIC_RELAXED);
    process->frozen_since[gpu] = ended;
    /* A freeze that failed in part counts as frozen, so that it is thawed; a thaw is repeated until it succeeds. */
    process->frozen = frozen || result != 0 ? process->frozen | 1u << gpu : process->frozen & ~(1u << gpu);
    if (process->capped & 1u << gpu)
        cap_done (&process->caps[gpu], process->frozen & 1u << gpu, began, ended);
}

/* The period of a cap: the same on every GPU, and for every process of the container (ring.h). */
static uint64_t period_of (struct process *process)
{
    uint64_t alone = process->limits->period ? process->limits->period * 1000ull : CAP_PERIOD_NS, longest = alone;

    for (int gpu = 0; gpu < (int) process->limits->gpu_count; gpu++) {
        uint32_t share = process_cap (process, gpu);
        uint64_t period = share ? ring_period (alone, share, region_place (&process->region, gpu).count) : alone;

        longest = period > longest ? period : longest;
    }
    return longest;
}

/* Makes the call that is due on a GPU; returns the time of the next one, 0: none on this GPU. */
static uint64_t schedule_gpu (struct process *process, int gpu, uint64_t period)
{
    bool groups = rm_groups (process->rm, gpu) != 0;
    bool paused = groups && (process->limits->flags & LIMITS_PAUSED);
    uint32_t bit = 1u << gpu, share = groups ? process_cap (process, gpu) : 0;
    uint64_t now = raw_now ();
    struct cap *cap = &process->caps[gpu];
    struct region_place place;
    struct cap_step step;

    if (paused || !share) {
        process->capped &= ~bit;
        if (paused != ((process->frozen & bit) != 0))
            set_frozen (process, gpu, paused);
        return paused || (process->frozen & bit) ? now + period : 0;
    }
    if (!(process->capped & bit)) {
        cap_begin (cap, period, share, now);
        cap->frozen = process->frozen & bit;
        process->capped |= bit;
    }
    place = region_place (&process->region, gpu);
    ring_place (cap, period, share, place.count, place.rank, now);
    step = cap_next (cap);
    if (step.at <= now) {
        set_frozen (process, gpu, step.freeze);
        step = cap_next (cap);
    }
    return step.at;
}

/* All GPUs; returns the time of the next round, 0: the thread is not needed. */
static uint64_t schedule_gpus (struct process *process)
{
    uint64_t now, period, next = 0;

    process_check_limits (process);
    region_sweep_throttled (&process->region); /* as killed processes count in region_place */
    period = period_of (process);
    for (int gpu = 0; gpu < (int) process->limits->gpu_count; gpu++) {
        uint64_t at = schedule_gpu (process, gpu, period);

        if (at && (!next || at < next))
            next = at;
    }
    now = raw_now ();
    if (next && next < now + SHORTEST_SLEEP_NS)
        return now + SHORTEST_SLEEP_NS;
    /* Changed limits are applied within a period. */
    return next > now + CAP_PERIOD_NS ? now + CAP_PERIOD_NS : next;
}

static void *run (void *argument)
{
    uint64_t signals, next;

    (void) argument;
    RAW5 (SYS_prctl, PR_SET_NAME, "nvc-shim", 0, 0, 0);
    RAW5 (SYS_prctl, PR_SET_TIMERSLACK, 1, 0, 0, 0);
    for (;;) {
        struct process *process = process_enter_known (&signals);
        struct timespec until;

        if (!process)
            return NULL;
        next = schedule_gpus (process);
        process->thread = next ? THREAD_RUNS : THREAD_NONE;
        STORE (process->current, false);
        if (process_publish (process)) { /* needs a thread: this one goes on */
            process->thread = THREAD_RUNS;
            next = raw_now ();
        }
        process->region.slot->threads_cap = next != 0;
        process_leave (process, signals);
        if (!next)
            return NULL;
        until = (struct timespec) { (time_t) (next / 1000000000u), (long) (next % 1000000000u) };
        RAW4 (SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

void thread_start (struct process *process)
{
    __typeof__ (&pthread_create) create = pthread_create;
    pthread_attr_t attributes;
    pthread_t thread;
    uint64_t signals = signals_block (1);
    int failed = -1;

    if (!create)
        create = (__typeof__ (&pthread_create)) (unsigned long) next_symbol ("pthread_create");
    if (create && pthread_attr_init && pthread_attr_setstacksize && pthread_attr_setdetachstate) {
        pthread_attr_init (&attributes);
        pthread_attr_setdetachstate (&attributes, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize (&attributes, STACK_SIZE);
        failed = create (&thread, &attributes, run, NULL);
        if (failed) { /* the program's static TLS is larger than the stack */
            pthread_attr_setstacksize (&attributes, 8u << 20);
            failed = create (&thread, &attributes, run, NULL);
        }
    }
    signals_restore (signals);
    if (failed) {
        process = process_enter_known (&signals);
        if (process) {
            process->thread = THREAD_NONE;
            STORE (process->current, false); /* the next call retries */
            log_note (process, "no-thread", (uint32_t) failed);
            process_leave (process, signals);
        }
    }
}
