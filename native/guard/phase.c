/* See phase.h. */
#include "phase.h"

#include <errno.h>

#define MICROSECOND 1000u
#define WHOLE 1000u
/* A call that was shorter than this found no channels: what it took says nothing about calls that do. */
#define SHORTEST_CALL_NS 50000u

int phase_check (const struct guard_phase *phase)
{
    if (phase->period == 0)
        return 0;
    return phase->period < 1000 || phase->period > 1000000 || phase->since >= phase->period || phase->until <= phase->since ||
                   phase->until - phase->since > phase->period
               ? -EINVAL
               : 0;
}

static uint64_t shifted (const struct phase_plan *plan, uint64_t time) { return time > plan->offset ? time - plan->offset : 0; }

/* Of the calls of several clients the first lets the tenant in, and the last one stops it. Both of the clock's time. */
static void count (struct phase_plan *plan, bool frozen, uint64_t began, uint64_t ended)
{
    uint64_t *mean = frozen ? &plan->cap.to_freeze : &plan->cap.to_thaw, before = *mean;

    began = shifted (plan, began);
    ended = shifted (plan, ended);
    cap_done (&plan->cap, frozen, began, ended);
    if (ended - began < SHORTEST_CALL_NS)
        *mean = before;
}

/* Another part of the period, or of another period. What is owed by now stays owed; but of what a tenant had by another
 * share, only as much as an ordinary phase may be ahead or behind: to go from 70 % to 10 % is no debt. */
static void move (struct phase_plan *plan, uint64_t period, uint64_t offset, uint32_t share, uint64_t now)
{
    struct cap *cap = &plan->cap;
    int64_t most = (int64_t) (cap->share == share ? period : period / WHOLE * share / WHOLE * (WHOLE - share));
    uint64_t since;

    plan->leaving = false;
    if (cap->period == period && cap->share == share && plan->offset == offset)
        return;
    cap_settle (cap, shifted (plan, now));
    since = cap->since + plan->offset; /* of the clock: a call that ended just now may be ahead of `now` */
    plan->offset = offset;
    cap->since = shifted (plan, since);
    cap->period = period;
    cap->share = share;
    cap->balance = cap->balance > most ? most : cap->balance < -most ? -most : cap->balance;
    if (cap->frozen) {
        struct cap_step step = cap_next (cap);

        plan->hurried = step.at + offset + cap->to_thaw > plan->frozen_at + period;
    }
}

void phase_end (struct phase_plan *plan)
{
    plan->leaving = true;
    plan->is_active &= plan->cap.frozen;
}

void phase_set (struct phase_plan *plan, const struct guard_phase *phase, uint64_t now)
{
    uint64_t length = (uint64_t) phase->period * MICROSECOND, offset = (uint64_t) phase->since * MICROSECOND;
    uint32_t share = phase->period == 0 ? WHOLE : (uint32_t) ((uint64_t) (phase->until - phase->since) * WHOLE / phase->period);

    if (share >= WHOLE) {
        phase_end (plan);
        return;
    }
    if (share == 0)
        share = 1;
    if (plan->is_active) {
        move (plan, length, offset, share, now);
        return;
    }
    *plan = (struct phase_plan) { .is_active = true, .offset = offset };
    cap_begin (&plan->cap, length, share, shifted (plan, now));
}

struct phase_step phase_next (const struct phase_plan *plan)
{
    struct phase_step step = { .at = UINT64_MAX };
    struct cap_step next;
    uint64_t at, ahead;

    if (!plan->is_active)
        return step;
    next = cap_next (&plan->cap);
    at = next.at + plan->offset;
    ahead = next.freeze ? plan->ahead : 0;
    step = (struct phase_step) { .at = at > ahead ? at - ahead : 0, .freeze = next.freeze };
    if ((plan->leaving || plan->hurried) && plan->cap.frozen)
        step.at = 0;
    if (step.at < plan->not_before)
        step.at = plan->not_before;
    return step;
}

void phase_busy (struct phase_plan *plan, uint64_t again) { plan->not_before = again; }

void phase_done (struct phase_plan *plan, struct phase_step step, uint64_t began, uint64_t ended, unsigned calls)
{
    uint64_t one = calls > 0 ? (ended - began) / calls : 0, last = ended - one;

    plan->not_before = 0;
    if (calls == 0 || (plan->leaving && !step.freeze)) {
        plan->is_active = false;
        return;
    }
    count (plan, step.freeze, step.freeze ? last : began, step.freeze ? ended : began + one);
    plan->hurried = false;
    if (step.freeze) {
        plan->ahead = calls > 1 ? last - began : 0;
        plan->frozen_at = began;
    }
}
