/* See phase.h. */
#include "phase.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MICROSECOND 1000u
#define WHOLE 1000u
/* A call that was shorter than this found no channels: what it took says nothing about calls that do. */
#define SHORTEST_CALL_NS 50000u

int phase_check (uint32_t period, const struct guard_phase *phases, uint32_t count)
{
    if (count > PHASE_MOST || (count > 0 && (period < 1000 || period > 1000000)))
        return -EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        const struct guard_phase *phase = &phases[i];

        if (phase->gpu >= SHARE_MAX_GPUS || phase->since >= period || phase->until <= phase->since ||
            phase->until - phase->since > period)
            return -EINVAL;
        for (uint32_t k = 0; k < i; k++)
            if (phases[k].tenant == phase->tenant)
                return -EINVAL;
    }
    return 0;
}

static uint64_t shifted (const struct phase_entry *entry, uint64_t time) { return time > entry->offset ? time - entry->offset : 0; }

/* Of the calls of several clients the first lets the tenant in, and the last one stops it. Both of the clock's time. */
static void count (struct phase_entry *entry, bool frozen, uint64_t began, uint64_t ended)
{
    uint64_t *mean = frozen ? &entry->cap.to_freeze : &entry->cap.to_thaw, before = *mean;

    began = shifted (entry, began);
    ended = shifted (entry, ended);
    cap_done (&entry->cap, frozen, began, ended);
    if (ended - began < SHORTEST_CALL_NS)
        *mean = before;
}

/* A thaw whose moment came, or that waits for no stop any longer. */
static void count_let_in (struct phase_entry *entry, uint64_t at)
{
    uint64_t lasted = entry->let_in_ended - entry->let_in_began;

    entry->let_in = false;
    at = at > entry->let_in_ended ? at : entry->let_in_ended;
    count (entry, false, at - lasted, at);
}

static void count_all_let_in (struct phase_plan *plan, uint64_t at)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->entries[i].let_in)
            count_let_in (&plan->entries[i], at);
}

static void forget (struct phase_plan *plan, uint32_t place) { plan->entries[place] = plan->entries[--plan->count]; }

/* Another part of the period, or of another period. What is owed by now stays owed; but of what a tenant had by another
 * share, only as much as an ordinary phase may be ahead or behind: to go from 70 % to 10 % is no debt. */
static void move (struct phase_entry *entry, uint64_t period, uint64_t offset, uint32_t share, uint64_t now)
{
    struct cap *cap = &entry->cap;
    int64_t most = (int64_t) (cap->share == share ? period : period / WHOLE * share / WHOLE * (WHOLE - share));
    uint64_t since;

    entry->leaving = false;
    if (cap->period == period && cap->share == share && entry->offset == offset)
        return;
    cap_settle (cap, shifted (entry, now));
    since = cap->since + entry->offset; /* of the clock: a call that ended just now may be ahead of `now` */
    entry->offset = offset;
    cap->since = shifted (entry, since);
    cap->period = period;
    cap->share = share;
    cap->balance = cap->balance > most ? most : cap->balance < -most ? -most : cap->balance;
    if (cap->frozen) {
        struct cap_step step = cap_next (cap);

        entry->hurried = step.at + offset + cap->to_thaw > entry->frozen_at + period;
    }
}

/* Room for so many more beside those that are there. */
static bool make_room (struct phase_plan *plan, uint32_t count)
{
    uint32_t room = plan->count + count;
    struct phase_entry *entries;
    struct phase_step *steps;

    if (room <= plan->room)
        return true;
    entries = realloc (plan->entries, room * sizeof (*entries));
    if (entries == NULL)
        return false;
    plan->entries = entries;
    steps = realloc (plan->steps, room * sizeof (*steps));
    if (steps == NULL)
        return false;
    plan->steps = steps;
    plan->room = room;
    return true;
}

void phase_free (struct phase_plan *plan)
{
    free (plan->entries);
    free (plan->steps);
    *plan = (struct phase_plan) { 0 };
}

int phase_set (struct phase_plan *plan, uint32_t period, const struct guard_phase *phases, uint32_t count, uint64_t now)
{
    uint64_t length = (uint64_t) period * MICROSECOND;

    if (!make_room (plan, count))
        return -ENOMEM;
    count_all_let_in (plan, 0);
    for (uint32_t i = 0; i < plan->count; i++)
        plan->entries[i].leaving = true;
    for (uint32_t i = 0; i < count; i++) {
        const struct guard_phase *phase = &phases[i];
        uint32_t share = (uint32_t) ((uint64_t) (phase->until - phase->since) * WHOLE / period), place = 0;
        uint64_t offset = (uint64_t) phase->since * MICROSECOND;

        if (share == 0)
            share = 1;
        while (place < plan->count && (plan->entries[place].tenant != phase->tenant || plan->entries[place].gpu != phase->gpu))
            place++;
        if (share >= WHOLE)
            continue; /* always on */
        if (place < plan->count) {
            move (&plan->entries[place], length, offset, share, now);
            continue;
        }
        plan->entries[plan->count] = (struct phase_entry) { .tenant = phase->tenant, .gpu = phase->gpu, .offset = offset };
        cap_begin (&plan->entries[place].cap, length, share, shifted (&plan->entries[place], now));
        plan->count++;
    }
    for (uint32_t i = plan->count; i-- > 0;) {
        struct phase_entry *entry = &plan->entries[i];

        if (entry->leaving && !entry->cap.frozen)
            forget (plan, i);
    }
    plan->period = count > 0 ? length : 0;
    return 0;
}

static struct phase_step step_of (const struct phase_plan *plan, uint32_t place)
{
    const struct phase_entry *entry = &plan->entries[place];
    struct cap_step next = cap_next (&entry->cap);
    uint64_t at = next.at + entry->offset, ahead = next.freeze ? entry->ahead : 0;
    struct phase_step step = { .at = at > ahead ? at - ahead : 0, .entry = place, .freeze = next.freeze };

    if ((entry->leaving || entry->hurried) && entry->cap.frozen)
        step.at = 0;
    if (step.at < entry->not_before)
        step.at = entry->not_before;
    return step;
}

/* How long the calls last that stop a tenant. */
static uint64_t stop_lasts (const struct phase_entry *entry) { return entry->ahead + entry->cap.to_freeze; }

/* The first call that stops another tenant and would be made while this thaw is; NULL: none. */
static const struct phase_step *stop_beside (const struct phase_plan *plan, const struct phase_step *thaw)
{
    const struct phase_step *found = NULL;

    for (uint32_t i = 0; i < plan->count; i++) {
        const struct phase_step *stop = &plan->steps[i];

        if (!plan->entries[i].let_in && stop->freeze && stop->at < thaw->at + plan->entries[thaw->entry].cap.to_thaw &&
            stop->at + stop_lasts (&plan->entries[i]) > thaw->at && (found == NULL || stop->at < found->at))
            found = stop;
    }
    return found;
}

/* A thaw is made so early that it is over when another tenant is stopped, if that falls together. */
static struct phase_step before_a_stop (const struct phase_plan *plan, struct phase_step step)
{
    const struct phase_step *stop = step.freeze || step.at == 0 ? NULL : stop_beside (plan, &step);
    uint64_t lasts = plan->entries[step.entry].cap.to_thaw;

    if (stop == NULL)
        return step;
    step.before_a_stop = true;
    step.at = stop->at > lasts ? stop->at - lasts : 0;
    return step;
}

struct phase_step phase_next (const struct phase_plan *plan)
{
    struct phase_step first = { .at = UINT64_MAX, .entry = PHASE_NONE };
    uint64_t longest = 0, soonest = UINT64_MAX;

    for (uint32_t i = 0; i < plan->count; i++) {
        const struct phase_entry *entry = &plan->entries[i];

        plan->steps[i] = step_of (plan, i);
        longest = stop_lasts (entry) > longest ? stop_lasts (entry) : longest;
        if (!entry->let_in && plan->steps[i].at < soonest)
            soonest = plan->steps[i].at;
    }
    for (uint32_t i = 0; i < plan->count; i++) {
        struct phase_step step = plan->steps[i];
        uint64_t earlier = longest + plan->entries[i].cap.to_thaw;

        /* No thaw is made earlier by more than that, so the others are not asked about those that lie farther ahead. */
        if (plan->entries[i].let_in || (step.at > earlier && step.at - earlier > soonest))
            continue;
        step = before_a_stop (plan, step);
        /* Of two at a time, the thaw. */
        if (step.at < first.at || (step.at == first.at && !step.freeze && first.freeze))
            first = step;
    }
    return first;
}

void phase_busy (struct phase_plan *plan, const struct phase_step *step, uint64_t again)
{
    plan->entries[step->entry].not_before = again;
    /* A tenant that was let in before this one's stop is on, and is counted now. */
    if (step->freeze)
        count_all_let_in (plan, 0);
}

void phase_done (struct phase_plan *plan, const struct phase_step *step, uint64_t began, uint64_t ended, unsigned calls)
{
    struct phase_entry *entry = &plan->entries[step->entry];
    uint64_t one = calls > 0 ? (ended - began) / calls : 0;

    entry->not_before = 0;
    if (calls == 0 || (entry->leaving && !step->freeze)) {
        /* A tenant that was let in before this one's stop is not to wait for it for ever. */
        if (step->freeze)
            count_all_let_in (plan, 0);
        forget (plan, step->entry);
    } else if (step->before_a_stop) {
        entry->let_in = true;
        entry->let_in_began = began;
        entry->let_in_ended = began + one;
    } else {
        uint64_t last = ended - one;

        count (entry, step->freeze, step->freeze ? last : began, step->freeze ? ended : began + one);
        entry->hurried = false;
        if (step->freeze) {
            entry->ahead = calls > 1 ? last - began : 0;
            entry->frozen_at = began;
            count_all_let_in (plan, last + one / 2);
        }
    }
}
