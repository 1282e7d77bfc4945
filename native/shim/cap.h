/*
 * When to freeze and thaw a process's channels on a GPU so that it gets its cap of the time and no more. Pure
 * arithmetic on given times: no clock, no system call. One `struct cap` a GPU; implemented in cap.c.
 *
 * The balance is the time that the process is still due (negative: it had too much) since its cap began. On-phases
 * begin at multiples of the period, for all processes of a container alike; an on-phase ends where the balance will be
 * 0 at the period's end. An error of one phase (a slow call, a late wake-up) is thereby compensated in the next ones.
 */
#ifndef NVC_SHIM_CAP_H
#define NVC_SHIM_CAP_H

#include <stdbool.h>
#include <stdint.h>

#define CAP_PERIOD_NS 50000000u
/* The balance is limited to this many periods: a process that was stopped for an hour gets no credit for it. */
#define CAP_MEMORY_PERIODS 20

struct cap {
    uint64_t period; /* ns */
    uint32_t share;  /* 1/1000 */
    bool frozen;
    uint64_t since;   /* the time of `balance` */
    int64_t balance;  /* ns */
    uint64_t to_freeze, to_thaw; /* ns that such a call lasts: moving means */
    /* For several processes of a container under one cap (ring.h); 0 for a single one. */
    uint64_t offset; /* ns that its periods begin after a multiple of the period */
    uint64_t lost;   /* ns of each period that it is off, during the others' calls */
    bool queued;     /* a call may wait for calls of other processes */
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
/* Updates the balance to `now`. */
void cap_settle (struct cap *cap, uint64_t now);
/* Joins a period in progress: from now on the phases are as if the process had had its place since the period began. To
 * be called after cap_change, with offset and lost set. */
void cap_join (struct cap *cap);
/* The next call to make. A time in the past means: at once. */
struct cap_step cap_next (const struct cap *cap);
/*
 * Records a call. A thaw takes effect when it returns, a freeze when half of it is over: with that, caps of 10 to 90 %
 * are exact within 0.15 points on an H200. Counting freezes to their end loses 0.5 points.
 */
void cap_done (struct cap *cap, bool frozen, uint64_t began, uint64_t ended);

#endif
