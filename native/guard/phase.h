/*
 * When a tenant is on and off on a GPU so that it is on in its part of a period: pure arithmetic on given times, no clock, no call, no
 * lock. One `struct phase_plan` a GPU of the tenant; phase_thread.c runs it.
 *
 * The times of its `struct cap` (native/shim/cap.h) are shifted so that its on-phases begin where its part does: what a phase was too
 * long or too short by is made up for by the next ones, also across changes of the part. Parts of several tenants do not overlap because
 * nvc/guard/phases.py lays them so; each tenant's supervisor keeps its own.
 */
#ifndef NVC_GUARD_PHASE_H
#define NVC_GUARD_PHASE_H

#include "guard.h"
#include "shim/cap.h"

/* All zero: the tenant is always on. */
struct phase_plan {
    bool is_active; /* the tenant is stopped and started, or is to be started a last time */
    bool leaving; /* it has no part any more: thawed as soon as can be, then nothing is left to do */
    bool hurried; /* is to be thawed at once: it would be off for longer than a period, since its part changed */
    uint64_t offset; /* ns: its on-phases begin at multiples of the period and this */
    struct cap cap; /* its times are offset earlier than the clock's */
    uint64_t frozen_at; /* when it was last taken off */
    uint64_t ahead; /* ns: of the calls that stop it, how long all but the last take */
    uint64_t not_before; /* its next call: the tenant was busy */
};

/* The next call: to stop or start the tenant at this time, or at once when the time is over. at UINT64_MAX: there is nothing to do. */
struct phase_step {
    uint64_t at;
    bool freeze;
};

/* 0 or -EINVAL: what phase_set would refuse. */
int phase_check (const struct guard_phase *phase);
/* Another part from now on. It must have been checked. */
void phase_set (struct phase_plan *plan, const struct guard_phase *phase, uint64_t now);
/* None any more. */
void phase_end (struct phase_plan *plan);
struct phase_step phase_next (const struct phase_plan *plan);
/* It was made, by so many calls of the driver, one after the other; 0: there is no such tenant any more. */
void phase_done (struct phase_plan *plan, struct phase_step step, uint64_t began, uint64_t ended, unsigned calls);
/* It could not be made, because the driver makes a call for the tenant. It is made not before this time. */
void phase_busy (struct phase_plan *plan, uint64_t again);

#endif
