/*
 * When a GPU must be taken away from a process and given back so that it has a share of the time, and no more: pure
 * arithmetic on given times, no clock, no call. One `struct cap` a GPU.
 *
 * The balance is the time that the process is still owed (below 0: had too much) since its cap began. On-phases begin
 * at multiples of the period, for all processes of a container alike; an on-phase ends when the balance will be level
 * at the period's end. So whatever a phase was too long or too short by, because a call took its time or a thread woke
 * late, is made up for by the next ones.
 */
#ifndef NVC_SHIM_CAP_H
#define NVC_SHIM_CAP_H

#include <stdbool.h>
#include <stdint.h>

#define CAP_PERIOD_NS 50000000u
/* The most periods that the balance remembers: a process that was stopped for an hour does not pay for it. */
#define CAP_MEMORY_PERIODS 20

struct cap {
    uint64_t period; /* ns */
    uint32_t share;  /* 1/1000 */
    bool frozen;
    uint64_t since;   /* the balance is of this moment */
    int64_t balance;  /* ns */
    uint64_t to_freeze, to_thaw; /* ns that such a call lasts: moving means */
    /* For processes of a container that keep a cap together (ring.h); 0 for one alone. */
    uint64_t offset; /* ns that its periods begin after a multiple of the period */
    uint64_t lost;   /* ns of each period that it is not on, for the others' calls */
    bool queued;     /* a call may wait until the others' are done */
    uint64_t free_freeze, free_thaw; /* ns that a call lasts when it does not wait: estimates */
};

struct cap_step {
    uint64_t at; /* when to begin the call */
    bool freeze;
};

/* A cap begins, with the GPU running. */
void cap_begin (struct cap *cap, uint64_t period, uint32_t share, uint64_t now);
/* Another share or period from now on; the balance begins anew. */
void cap_change (struct cap *cap, uint64_t period, uint32_t share, uint64_t now);
/* Brings the balance to `now`. */
void cap_settle (struct cap *cap, uint64_t now);
/* As cap_change, for a place in the middle of others' period: from now on it is on and off as if it had been there
 * since the period began, whatever it did so far. After cap_change, with offset and lost set. */
void cap_join (struct cap *cap);
/* What comes next. A time that is over means: at once. */
struct cap_step cap_next (const struct cap *cap);
/*
 * A call was made. The GPU comes back when the call returns, and was gone when half of the call was over: with that,
 * caps of 10 to 90 % were kept within 0.15 points on an H200; counting to the end of both, 0.5 points were missing.
 */
void cap_done (struct cap *cap, bool frozen, uint64_t began, uint64_t ended);

#endif
