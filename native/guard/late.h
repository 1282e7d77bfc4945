/*
 * Stops of channels that are due and not done. A tenant whose channels cannot be stopped would compute beyond its cap, its quota or a
 * pause; after LATE_NS nothing but the end of its container is left.
 *
 * Time is counted by ticks of a thread of this process, beside the clock: a machine that was suspended or a supervisor that was stopped
 * counts one tick, however long that lasted, and the phase thread, of higher priority, runs first.
 */
#ifndef NVC_GUARD_LATE_H
#define NVC_GUARD_LATE_H

#include "shim/share.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct guard;
struct tenant;

#define LATE_NS UINT64_C (500000000)
#define LATE_TICKS 5u
#define LATE_TICK_NS (LATE_NS / LATE_TICKS)

/* Of a tenant's stops, for the thread to read without a lock. */
struct late_stops {
    _Atomic uint64_t due[SHARE_MAX_GPUS]; /* since when a stop is (CLOCK_MONOTONIC ns), also in the future; 0: none is */
    atomic_uint switching;                /* threads that make such calls now, or wait for one that does */
    atomic_uint failed;                   /* times that channels could not be stopped */
    /* The thread's own. */
    uint64_t seen[SHARE_MAX_GPUS];
    unsigned ticks[SHARE_MAX_GPUS], seen_failed;
};

struct late_watch {
    pthread_t runner;
    sem_t wake;
    atomic_bool is_ticking, stop;
    bool is_started;
    void (*act) (void *context);
    void *context;
};

/* false: no thread could be started. */
bool late_begin (struct guard *guard);
void late_end (struct guard *guard);
/* A stop on the GPU is due from then on, unless one was before. */
void late_due (struct tenant *tenant, uint32_t gpu, uint64_t at);
/* It is done, or no stop is due any more. */
void late_done (struct tenant *tenant, uint32_t gpu);

#endif
