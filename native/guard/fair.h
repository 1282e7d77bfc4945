/* A tenant's allowance of the driver's time. */
#ifndef NVC_GUARD_FAIR_H
#define NVC_GUARD_FAIR_H

#include "rm/rm.h"

#include <stdatomic.h>
#include <stdint.h>

struct guard;
struct tenant;

struct fair {
    uint64_t debt, counted_at; /* ns of the driver's time, at that time (CLOCK_MONOTONIC ns) */
    uint64_t until;            /* its calls wait; 0: no need */
    uint64_t begun_at;         /* the current call (CLOCK_MONOTONIC ns) */
    _Atomic uint64_t closed;   /* ns that closing its files took, and that are not counted yet */
};

/* What a call took of the driver, ns. */
void fair_spent (struct tenant *tenant, uint64_t nanoseconds);
/* Closing a file of the tenant, which need not be there any more, took so long, by fair_cpu. */
void fair_closed (struct guard *guard, uint64_t nanoseconds);
uint64_t fair_cpu (void); /* of the calling thread, ns */
/* Around a call of the driver: what it took is the tenant's debt; of one that allocates or frees a piece of so many bytes, no more than that can take. */
void fair_begin (struct tenant *tenant);
void fair_end (struct tenant *tenant, enum rm_piece_call kind, uint64_t bytes);
/* Milliseconds that the tenant's calls have to wait; 0: none. */
int fair_wait (struct tenant *tenant, uint64_t now);

#endif
