/* The model of an engine's time (manager_engine.h). Pure: no clock, no lock. */
#include "manager_engine.h"

#include <stdlib.h>

void engine_add_group (struct engine *engine, struct engine_group *group)
{
    group->engine = engine;
    if (engine->ring == NULL) {
        group->next = group->previous = group;
        engine->ring = group;
        return;
    }
    group->next = engine->ring;
    group->previous = engine->ring->previous;
    group->previous->next = group;
    group->next->previous = group;
}

static void tell (const struct engine *engine, const struct engine_group *group, bool is_on)
{
    if (engine->switched != NULL && group != NULL)
        engine->switched (engine, group, is_on);
}

void engine_remove_group (struct engine_group *group)
{
    struct engine *engine = group->engine;

    if (engine->incoming == group)
        tell (engine, engine->loaded, true); /* it was not replaced, then */
    else if (engine->loaded == group && engine->incoming == NULL)
        tell (engine, group, false);
    /* The round continues after the group's place; a removed context is never the next one. */
    if (engine->current == group)
        engine->current = NULL;
    if (engine->incoming == group)
        engine->incoming = NULL;
    if (engine->loaded == group)
        engine->loaded = NULL;
    if (engine->ring == group)
        engine->ring = group->next == group ? NULL : group->next;
    group->previous->next = group->next;
    group->next->previous = group->previous;
}

void engine_add_channel (struct engine_group *group, struct engine_channel *channel)
{
    channel->group = group;
    channel->change_at = ENGINE_NEVER;
    channel->next = group->channels;
    group->channels = channel;
}

static void drop_work (struct engine_group *group, struct engine_work **place)
{
    struct engine_work *work = *place;

    *place = work->next;
    free (work);
    group->works--;
    group->last = group->work;
    while (group->last != NULL && group->last->next != NULL)
        group->last = group->last->next;
}

void engine_remove_channel (struct engine_channel *channel)
{
    struct engine_group *group = channel->group;
    struct engine_channel **place = &group->channels;

    for (struct engine_work **work = &group->work; *work != NULL;) {
        if ((*work)->channel == channel)
            drop_work (group, work);
        else
            work = &(*work)->next;
    }
    if (channel->change_at != ENGINE_NEVER)
        group->engine->changes--;
    while (*place != channel)
        place = &(*place)->next;
    *place = channel->next;
}

bool engine_submit (struct engine_channel *channel, uint64_t nanoseconds, uint64_t count)
{
    struct engine_group *group = channel->group;
    struct engine_work *work = group->last;

    if (nanoseconds == 0)
        nanoseconds = 1;
    if (count > UINT64_MAX - channel->submitted)
        return false;
    channel->submitted += count;
    if (work != NULL && work->channel == channel && work->each == nanoseconds) {
        work->count += count;
        return true;
    }
    work = group->works < ENGINE_MAX_WORKS ? calloc (1, sizeof (*work)) : NULL;
    if (work == NULL) {
        channel->submitted -= count;
        return false;
    }
    *work = (struct engine_work) { .channel = channel, .each = nanoseconds, .first = nanoseconds, .count = count };
    if (group->last != NULL)
        group->last->next = work;
    else
        group->work = work;
    group->last = work;
    group->works++;
    return true;
}

void engine_freeze (struct engine_channel *channel, bool frozen, uint64_t after)
{
    struct engine *engine = channel->group->engine;
    bool before = channel->stops != 0;

    if (frozen)
        channel->stops++;
    else if (channel->stops != 0)
        channel->stops--;
    if ((channel->stops != 0) == before)
        return;
    if (channel->change_at == ENGINE_NEVER)
        engine->changes++;
    channel->change_at = engine->now + after;
    channel->change_to = frozen;
}

void engine_set_slice (struct engine_group *group, uint64_t nanoseconds)
{
    struct engine *engine = group->engine;

    group->slice = nanoseconds > 0 ? nanoseconds : 1000;
    if (engine->current == group && engine->slice_left > group->slice)
        engine->slice_left = group->slice;
}

void engine_preempt (struct engine_group *group)
{
    if (group->engine->current == group)
        group->engine->slice_left = 0;
}

/* The first runnable work. */
static struct engine_work **runnable (struct engine_group *group)
{
    for (struct engine_work **work = &group->work; *work != NULL; work = &(*work)->next) {
        if (!(*work)->channel->frozen)
            return work;
    }
    return NULL;
}

static uint64_t total (const struct engine_work *work)
{
    uint64_t rest;

    if (__builtin_mul_overflow (work->count - 1, work->each, &rest) || rest > UINT64_MAX - work->first)
        return UINT64_MAX;
    return rest + work->first;
}

/* The next group in the ring after the loaded one that has work; the loaded one itself comes last. */
static struct engine_group *successor (const struct engine *engine)
{
    struct engine_group *start = engine->loaded != NULL ? engine->loaded->next : engine->ring;
    struct engine_group *group = start;

    if (group == NULL)
        return NULL;
    do {
        if (runnable (group) != NULL)
            return group;
        group = group->next;
    } while (group != start);
    return NULL;
}

/* Applies changes that are due; returns the time of the next one. */
static uint64_t changes (struct engine *engine)
{
    uint64_t next = ENGINE_NEVER;
    struct engine_group *group = engine->ring;

    if (engine->changes == 0 || group == NULL)
        return ENGINE_NEVER;
    do {
        for (struct engine_channel *channel = group->channels; channel != NULL; channel = channel->next) {
            if (channel->change_at <= engine->now) {
                channel->frozen = channel->change_to;
                channel->change_at = ENGINE_NEVER;
                engine->changes--;
            } else if (channel->change_at < next) {
                next = channel->change_at;
            }
        }
        group = group->next;
    } while (group != engine->ring);
    return next;
}

/* Runs the group's first runnable work for this time; the work is at least as long. */
static void consume (struct engine_group *group, struct engine_work **place, uint64_t nanoseconds)
{
    struct engine_work *work = *place;
    uint64_t done = 0;

    group->busy += nanoseconds;
    group->engine->busy += nanoseconds;
    if (nanoseconds < work->first) {
        work->first -= nanoseconds;
        return;
    }
    nanoseconds -= work->first;
    done = 1 + nanoseconds / work->each;
    work->first = work->each - nanoseconds % work->each;
    work->channel->finished += done;
    work->count -= done;
    if (work->count == 0)
        drop_work (group, place);
}

/* At the begin of a slice, with more than one group: skips as many whole rounds as possible. */
static void skip_rounds (struct engine *engine, uint64_t limit)
{
    uint64_t round = 0, rounds = UINT64_MAX;
    struct engine_group *group = engine->ring;

    do {
        struct engine_work **work = runnable (group);
        if (work != NULL) {
            uint64_t fit = (total (*work) - 1) / group->slice;
            round += group->slice + ENGINE_SWITCH_NS;
            rounds = fit < rounds ? fit : rounds;
        }
        group = group->next;
    } while (group != engine->ring);
    if ((limit - engine->now) / round < rounds)
        rounds = (limit - engine->now) / round;
    if (rounds == 0)
        return;
    do {
        struct engine_work **work = runnable (group);
        if (work != NULL)
            consume (group, work, rounds * group->slice);
        group = group->next;
    } while (group != engine->ring);
    engine->now += rounds * round;
}

static uint64_t least (uint64_t first, uint64_t second) { return first < second ? first : second; }

/* The engine is idle: selects the next group. */
static void choose (struct engine *engine, uint64_t limit)
{
    struct engine_group *next = successor (engine);

    if (next == NULL) {
        engine->now = limit;
    } else if (next == engine->loaded) {
        engine->current = next;
        engine->slice_left = next->slice;
    } else {
        tell (engine, engine->loaded, false);
        engine->incoming = next;
        engine->switch_left = ENGINE_SWITCH_NS;
    }
}

static void switch_over (struct engine *engine, uint64_t limit)
{
    uint64_t step = least (limit - engine->now, engine->switch_left);

    engine->now += step;
    engine->switch_left -= step;
    if (engine->switch_left > 0)
        return;
    engine->current = engine->loaded = engine->incoming;
    engine->incoming = NULL;
    engine->slice_left = engine->current->slice;
    tell (engine, engine->current, true);
}

static void work_on (struct engine *engine, uint64_t limit)
{
    struct engine_group *group = engine->current;
    bool alone = successor (engine) == group;

    if (!alone && engine->slice_left == 0) {
        engine->current = NULL;
        return;
    }
    if (!alone && engine->slice_left == group->slice && engine->switched == NULL)
        skip_rounds (engine, limit);
    struct engine_work **work = runnable (group);
    if (work == NULL)
        return; /* not reached: skipped rounds leave some of every group's work */
    uint64_t step = least (limit - engine->now, total (*work));
    if (!alone)
        step = least (step, engine->slice_left);
    consume (group, work, step);
    engine->now += step;
    if (step < engine->slice_left)
        engine->slice_left -= step;
    else if (alone) /* one slice follows the other */
        engine->slice_left = group->slice - (step - engine->slice_left) % group->slice;
    else
        engine->slice_left = 0;
}

void engine_run (struct engine *engine, uint64_t until)
{
    while (engine->now < until) {
        uint64_t limit = least (until, changes (engine));

        if (engine->incoming != NULL) {
            switch_over (engine, limit);
        } else if (engine->current == NULL || runnable (engine->current) == NULL) {
            engine->current = NULL;
            choose (engine, limit);
        } else {
            work_on (engine, limit);
        }
    }
    changes (engine);
}

uint64_t engine_earliest (const struct engine_channel *channel, uint64_t until)
{
    const struct engine_group *group = channel->group;
    const struct engine *engine = group->engine;
    uint64_t missing = until - channel->finished, wait = 0;

    if (until <= channel->finished)
        return engine->now;
    if (until > channel->submitted)
        return ENGINE_NEVER;
    for (const struct engine_work *work = group->work; work != NULL && missing > 0; work = work->next) {
        uint64_t count, rest;
        if (work->channel != channel)
            continue;
        count = least (missing, work->count);
        missing -= count;
        if (__builtin_mul_overflow (count - 1, work->each, &rest) || rest > ENGINE_NEVER / 4 - work->first ||
            wait > ENGINE_NEVER / 4)
            return ENGINE_NEVER;
        wait += rest + work->first;
    }
    if (channel->frozen) {
        if (channel->change_at == ENGINE_NEVER || channel->change_to)
            return ENGINE_NEVER;
        wait += channel->change_at - engine->now;
    } else if (engine->incoming != NULL) {
        wait += engine->switch_left;
    } else if (engine->current != NULL && engine->current != group) {
        wait += ENGINE_SWITCH_NS;
        if (runnable ((struct engine_group *) engine->current) != NULL)
            wait += engine->slice_left;
    }
    return wait < ENGINE_NEVER - engine->now ? engine->now + wait : ENGINE_NEVER;
}
