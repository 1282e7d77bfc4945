/*
 * Time on a simulated engine: groups with work run round-robin, each for its timeslice, with a cost of switching.
 * Implemented in manager_engine.c.
 *
 * Exact and lazy: nothing happens between two calls; engine_run computes the time since the last one, with whole rounds
 * of slices in closed form. The rules, measured on an H200 (gpu-sharing-kernel.md 4.2-4.4): work conserving (a single
 * group runs on without switches), 215 us from one group to another, channels stop 500 us after the request and resume
 * after 300 us. Pieces of work are preempted and resumed.
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
/* Distinct pieces of work that may be queued in a group; consecutive equal ones count as one. */
#define ENGINE_MAX_WORKS 4096

struct engine_work {
    struct engine_work *next;
    struct engine_channel *channel;
    uint64_t each;  /* nanoseconds of a piece */
    uint64_t first; /* rest of the first piece */
    uint64_t count;
};

struct engine_channel {
    struct engine_group *group;
    struct engine_channel *next;
    uint64_t submitted, finished;
    uint64_t change_at; /* when `change_to` takes effect; ENGINE_NEVER */
    bool frozen, change_to;
    uint32_t stops; /* disables minus enables: an H200 counts them, and a channel runs at 0 */
    bool scheduled; /* GPFIFO_SCHEDULE was called for it: for tests, work of the simulated libcuda runs without it */
};

struct engine_group {
    struct engine *engine;
    struct engine_group *previous, *next; /* a ring */
    struct engine_channel *channels;
    struct engine_work *work, *last;
    uint32_t works;
    uint64_t slice; /* nanoseconds, not 0; in force */
    uint64_t written; /* the last one that was written, in nanoseconds; 0: none */
    bool is_started; /* by GPFIFO_SCHEDULE of the group itself */
    bool is_preemptible; /* its kernels stop at any instruction; the driver's own mode is that they end first (H100) */
    uint64_t busy;  /* nanoseconds on the engine */
    uint32_t objects; /* of clients, that are this group: duplicates share it */
    bool has_context; /* of the graphics engine */
    uint32_t process; /* that made it */
    uint64_t context; /* bytes of video memory */
};

/* One runlist of a GPU. */
struct engine {
    struct engine *next;
    uint32_t gpu, type;
    uint64_t now;
    struct engine_group *ring;     /* any of the groups */
    struct engine_group *loaded;   /* the one whose context is on the engine */
    struct engine_group *current;  /* running; NULL: switching or idle */
    struct engine_group *incoming; /* being switched to */
    uint64_t switch_left, slice_left;
    uint32_t changes; /* channels with a change_at */
    uint64_t busy;    /* nanoseconds, of all groups, those that have ended too */
    /* Whose context is on the engine from engine->now on, or no longer; NULL: switches are not traced. A context stays until another one comes. */
    void (*switched) (const struct engine *engine, const struct engine_group *group, bool is_on);
    void *context; /* of `switched` */
};

void engine_add_group (struct engine *engine, struct engine_group *group);
/* Its channels must have been removed. */
void engine_remove_group (struct engine_group *group);
void engine_add_channel (struct engine_group *group, struct engine_channel *channel);
/* Its unfinished work is dropped. */
void engine_remove_channel (struct engine_channel *channel);

/* The following apply at engine->now: engine_run must be called first. */
bool engine_submit (struct engine_channel *channel, uint64_t nanoseconds, uint64_t count);
/* after: nanoseconds until it takes effect. */
void engine_freeze (struct engine_channel *channel, bool frozen, uint64_t after);
void engine_set_slice (struct engine_group *group, uint64_t nanoseconds);
/* Ends the group's slice (yield). */
void engine_preempt (struct engine_group *group);
/* The channel cannot have finished `until` pieces before this time; ENGINE_NEVER: not before something changes. */
uint64_t engine_earliest (const struct engine_channel *channel, uint64_t until);

/* Advances the time to `until` nanoseconds. */
void engine_run (struct engine *engine, uint64_t until);

#endif
