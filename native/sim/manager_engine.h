/*
 * Time on a simulated engine: groups with work take turns, each for its timeslice, and switching costs.
 *
 * Exact and lazy: nothing happens between two questions; engine_run computes what happened meanwhile, with whole
 * rounds of slices in closed form. The rules, measured on an H200 (gpu-sharing-kernel.md 4.2-4.4): work conserving (a
 * group alone runs on and never switches), 215 us from one group to another, channels stop 500 us after they are asked
 * to and resume after 300 us. Pieces of work are preempted and go on where they were.
 */
#ifndef NVC_SIM_MANAGER_ENGINE_H
#define NVC_SIM_MANAGER_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#define ENGINE_SWITCH_NS UINT64_C (215000)
#define ENGINE_STOP_NS UINT64_C (500000)
#define ENGINE_RESUME_NS UINT64_C (300000)
#define ENGINE_DEFAULT_SLICE_NS UINT64_C (1024000)
#define ENGINE_NEVER UINT64_MAX
/* Different pieces of work that may wait in a group; more of the same kind count as one. */
#define ENGINE_MAX_WORKS 4096

struct engine_work {
    struct engine_work *next;
    struct engine_channel *channel;
    uint64_t each;  /* nanoseconds of a piece */
    uint64_t first; /* what is left of the first piece */
    uint64_t count;
};

struct engine_channel {
    struct engine_group *group;
    struct engine_channel *next;
    uint64_t submitted, finished;
    uint64_t change_at; /* when `change_to` becomes true; ENGINE_NEVER */
    bool frozen, change_to;
    uint32_t stops; /* disabled this often more than enabled: an H200 counts, and a channel runs again at 0 */
};

struct engine_group {
    struct engine *engine;
    struct engine_group *previous, *next; /* a ring */
    struct engine_channel *channels;
    struct engine_work *work, *last;
    uint32_t works;
    uint64_t slice; /* nanoseconds, not 0 */
    uint64_t busy;  /* nanoseconds on the engine */
};

/* One runlist of a GPU. */
struct engine {
    struct engine *next;
    uint32_t gpu, type;
    uint64_t now;
    struct engine_group *ring;     /* any of the groups */
    struct engine_group *loaded;   /* whose context is on the engine */
    struct engine_group *current;  /* running; NULL: switching or idle */
    struct engine_group *incoming; /* being switched to */
    uint64_t switch_left, slice_left;
    uint32_t changes; /* channels with a change_at */
};

void engine_add_group (struct engine *engine, struct engine_group *group);
/* Its channels must be gone. */
void engine_remove_group (struct engine_group *group);
void engine_add_channel (struct engine_group *group, struct engine_channel *channel);
/* What it had to do is forgotten. */
void engine_remove_channel (struct engine_channel *channel);

/* All of these are about engine->now: call engine_run first. */
bool engine_submit (struct engine_channel *channel, uint64_t nanoseconds, uint64_t count);
/* after: nanoseconds until it holds. */
void engine_freeze (struct engine_channel *channel, bool frozen, uint64_t after);
void engine_set_slice (struct engine_group *group, uint64_t nanoseconds);
/* The group gives its turn away. */
void engine_preempt (struct engine_group *group);
/* The channel cannot have finished `until` pieces before this time; ENGINE_NEVER: not before something changes. */
uint64_t engine_earliest (const struct engine_channel *channel, uint64_t until);

/* Lets time go on to `until` nanoseconds. */
void engine_run (struct engine *engine, uint64_t until);

#endif
