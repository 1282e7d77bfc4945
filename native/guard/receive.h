/*
 * The thread that receives a tenant's calls ("nvc-guard"). RECV wakes it directly: a poll before it costs half a microsecond a call, and
 * one for the listener, for what else happens and for the time when something is due would be needed before each. So the tenant's other
 * thread (tenant.c) waits for all that, and for the calls of further listeners, which processes that are started by an exec have.
 *
 * Of the two threads one acts at a time: the one that has tenant->turn. What "runs in the tenant's thread" runs in either.
 */
#ifndef NVC_GUARD_RECEIVE_H
#define NVC_GUARD_RECEIVE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tenant;

/* Given to the threads in the order in which they ask: one that makes call after call would have a mutex alone again and again. */
struct turn {
    pthread_mutex_t gate, mutex; /* the one that waits next has the gate; the one that acts, the mutex */
};

void turn_begin (struct turn *turn);
void turn_end (struct turn *turn);
void turn_take (struct turn *turn);
void turn_give (struct turn *turn);

/* Under listeners_lock. */
struct receiver {
    pthread_t thread;
    bool is_started, is_idle; /* idle: it waits for `given` */
    atomic_int listener;      /* that this thread alone receives from, and closes; -1: none */
    bool is_taken;            /* by this thread; one that is over before is closed where that is seen */
    unsigned changes; /* how often it was given one of the other thread's, or let go of one; with the turn */
    sem_t given;
    _Atomic uint64_t armed; /* when the other thread looks what is due, at the latest (CLOCK_MONOTONIC ns) */
};

void receiver_begin (struct receiver *receiver);
/* Gives it the listener, if it has none. false: the caller keeps that. Under listeners_lock. */
bool receiver_take (struct tenant *tenant, int listener);
/* Its listener has no process any more; with the turn. Older kernels do not
 * wake the thread for that, which then waits until this process ends. */
void receiver_drop (struct tenant *tenant, int listener);

#endif
