/*
 * When the tenants of a GPU are on and off so that each is on in its own part of a period: pure arithmetic on given
 * times, no clock, no call, no lock. One `struct phase_plan` a GPU; phase_thread.c runs it.
 *
 * Each tenant has a `struct cap` (native/shim/cap.h), whose times are shifted so that its on-phases begin where its
 * part does: what a phase was too long or too short by is made up for by the next ones, also across changes of the
 * plan. Where one tenant's part ends and another's begins, the next one is let in first, just before the call that
 * stops the first: the first one goes on until that takes effect, so the GPU is not idle in between, and both count from
 * there.
 */
#ifndef NVC_GUARD_PHASE_H
#define NVC_GUARD_PHASE_H

#include "guard.h"
#include "shim/cap.h"

/* Tenants in a plan: as many as a guard has. How many caps a GPU can hold is decided where plans are made (nvc/guard/scheduling.py). */
#define PHASE_MOST 4096u
#define PHASE_NONE UINT32_MAX

struct phase_entry {
    uint32_t tenant, gpu;
    uint64_t offset; /* ns: its on-phases begin at multiples of the period and this */
    struct cap cap; /* its times are offset earlier than the clock's */
    uint64_t frozen_at; /* when it was last taken off */
    bool leaving; /* no longer in the plan: thawed as soon as can be, then forgotten */
    bool hurried; /* is to be thawed at once: it would be off for longer than a period, since the plan changed */
    bool let_in; /* thawed, and counted as soon as the tenant before it is stopped */
    uint64_t let_in_began, let_in_ended;
    uint64_t ahead; /* ns: of the calls that stop it, how long all but the last take */
    uint64_t not_before; /* its next call: the tenant was busy */
};

struct phase_step;
/* All zero: there is no plan, and nothing to be freed. */
struct phase_plan {
    uint64_t period; /* ns; 0: there is no plan */
    uint32_t count, room;
    struct phase_entry *entries;
    struct phase_step *steps; /* room for one of each */
};

/* The next call: guard_tenant_freeze for this entry at this time, or at once when the time is over. entry PHASE_NONE:
 * there is nothing to do. */
struct phase_step {
    uint64_t at;
    uint32_t entry;
    bool freeze;
    bool before_a_stop; /* a thaw that comes before another tenant's stop */
};

/* 0 or -EINVAL: what phase_set would refuse. */
int phase_check (uint32_t period, const struct guard_phase *phases, uint32_t count);
/* Another plan from now on; count 0: none. Phases must have been checked. 0, or -ENOMEM: the plan is what it was. */
int phase_set (struct phase_plan *plan, uint32_t period, const struct guard_phase *phases, uint32_t count, uint64_t now);
struct phase_step phase_next (const struct phase_plan *plan);
/* It was made, by so many calls of the driver, one after the other; 0: there is no such tenant any more. */
void phase_done (struct phase_plan *plan, const struct phase_step *step, uint64_t began, uint64_t ended, unsigned calls);
/* It could not be made, because the driver makes a call for that tenant. It is made not before this time; others do not wait. */
void phase_busy (struct phase_plan *plan, const struct phase_step *step, uint64_t again);
void phase_free (struct phase_plan *plan);

#endif
