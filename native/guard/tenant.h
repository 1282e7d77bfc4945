/* A tenant of the guard. Private to native/guard. */
#ifndef NVC_GUARD_TENANT_H
#define NVC_GUARD_TENANT_H

#include "edges.h"
#include "fair.h"
#include "guard.h"
#include "inflight.h"
#include "late.h"
#include "memory.h"
#include "notify.h"
#include "park.h"
#include "process.h"
#include "receive.h"
#include "retained.h"
#include "space.h"
#include "unconfirmed.h"

#include "rm/rm.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#define TENANT_LISTENERS 256 /* one a process that the runtime started in the container (run, exec) */
#define QUIET_MOST_NS UINT64_C (16000000000) /* as long as processes of a tenant that has 512 wait for their turn */
#define SCRATCH_SIZE (64u * 1024)
/* No more than 1 / LOOK_PART of the time goes into looks at processes and memory, and into questions about them to the driver. */
#define LOOK_PART 8u

struct tenant {
    struct guard *guard;
    uint32_t id;
    pthread_t runner;
    atomic_bool stop; /* its channels are not stopped any more */
    sem_t ended; /* posted once, by the thread: nothing of it runs any more */
    atomic_uint users; /* calls about it that are in progress: it is freed, by its thread, when there are none */
    int epoll, wake; /* epoll: the ends of processes */

    /* What the scheduler has set, without the lock: put into force when the lock is released (tenant_unlock), if has_changes. */
    atomic_bool has_changes, planned_frozen[SHARE_MAX_GPUS];
    /* Why its channels are off beside that; the phase thread reads them too. */
    atomic_bool over[SHARE_MAX_GPUS]; /* above its quota by what could only be seen afterwards */
    atomic_bool is_unresponsive; /* its thread waits for too long */
    atomic_bool is_paused; /* limits say so */
    struct edges edges;
    struct late_stops late;
    _Atomic uint32_t slice[SHARE_MAX_GPUS];
    /* Under the lock: the slice that is in force, and how many groups there were when it was put there. */
    struct {
        uint32_t slice, groups;
    } decided[SHARE_MAX_GPUS];
    /* Slices that the driver did not take: of which GPUs, when they are written again, and how often more. */
    struct {
        uint64_t at;
        uint32_t gpus, slice[SHARE_MAX_GPUS], left[SHARE_MAX_GPUS];
    } retry;

    struct turn turn; /* whichever of its two threads acts (receive.h); the first of all locks */
    struct receiver receiver;
    pthread_mutex_t listeners_lock; /* listeners; the last of all locks, and never held for long */
    int listeners[TENANT_LISTENERS];
    unsigned listener_count;

    pthread_mutex_t lock; /* everything below */
    struct limits limits;
    const struct rm_abi *abi;
    struct rm *rm;
    struct process processes[TENANT_PROCESSES];
    unsigned process_end; /* from this place on all are free: mostly a few of 512 are not, each of them a page of its own */
    struct thread_entry threads[TENANT_THREADS];
    struct inflight_call inflight[TENANT_INFLIGHT];
    unsigned inflight_count;
    uint64_t inflight_looked_at; /* CLOCK_MONOTONIC ns */
    struct parked_call parked[TENANT_PARKED];
    unsigned parked_count;
    uint64_t parked_until; /* of the one that is begun again; 0: the current call is new */
    bool is_last_try; /* it is not parked again */
    unsigned unwatched; /* processes that are not in epoll */
    unsigned suspects; /* processes that are; asked at each FREE, where to look at all of them would cost a cache miss each */
    uint64_t next_serial;
    uint64_t refreshed_at; /* status.notifications then */
    uint64_t ended_at; /* the last of its processes that did (CLOCK_MONOTONIC ns); 0: all of them are refunded */
    bool wants_refresh; /* the current call was refused for what may have been given back by now: */
    int wanted_gpu;
    uint64_t wanted; /* bytes */
    uint64_t look_at, ask_at; /* the earliest of its processes' times (CLOCK_MONOTONIC ns); 0: none */
    bool unreached; /* one of its processes is */
    uint64_t waits_since; /* for something of a process, without the lock (CLOCK_MONOTONIC ns); 0: it does not */
    pid_t waits_for;
    bool are_edges_old; /* rm's channels changed since edges_publish */
    uint64_t used[SHARE_MAX_GPUS]; /* what rm reserved */
    uint64_t managed[SHARE_MAX_GPUS]; /* mappings of the UVM node, on every GPU of the share: they can move to any */
    struct orphan_space orphan_spaces[TENANT_SPACES], orphan_overflow; /* the last: what stays charged for good */
    unsigned orphan_space_count;
    bool shares_uvm; /* ranges of a UVM file that it mapped outlive a process */
    uint64_t spaces_at, spaces_delay; /* when to look at them (CLOCK_MONOTONIC ns) */
    uint64_t excess[SHARE_MAX_GPUS]; /* driver-reported usage above the ledger, charged too: the sum of the processes' */
    uint64_t raced[SHARE_MAX_GPUS]; /* won by continued calls: charged until there is no process any more */
    uint64_t raced_reported[SHARE_MAX_GPUS]; /* of them, what the driver reports still: the sum of the processes' */
    bool has_won[SHARE_MAX_GPUS]; /* more than the quota, since it is stopped for that */
    uint64_t kept_since; /* more than the quota, by what was won (CLOCK_MONOTONIC ns); 0: no more than that */
    unsigned unconfirmed_calls; /* continued calls that may have taken what is not charged yet, at the most */
    struct unconfirmed_file unconfirmed[UNCONFIRMED_FILES];
    unsigned unconfirmed_count;
    uint64_t lonely_since; /* CLOCK_MONOTONIC ns: nothing of it is left but memory that others hold; 0: more is */
    struct fair fair;
    _Atomic uint64_t called_at; /* its last call (CLOCK_MONOTONIC ns) */
    bool is_watched; /* the main thread comes by while its thread waits (wait.h) */
    uint64_t news; /* of the status that was read last (guard_has_news) */
    struct retained retained; /* what was freed and lives on, charged too */
    struct guard_status status; /* counters */

    /* The current call: rm's own ioctls on its file go through this copy. */
    struct notified notified;
    struct process *current;
    int copy;
    enum rm_node copy_node; /* of what the copy is: the other nodes take no controls */
    struct memory_window window;
    uint8_t head[4096], params[SCRATCH_SIZE], list[SCRATCH_SIZE], rights[16];
    uint32_t params_used; /* bytes of params; all behind them are 0 */
    uint8_t head_before[4096], params_before[SCRATCH_SIZE]; /* before rm began the call; long params only if it may begin again */
};

/* Bytes that count against the quota of a GPU. */
static inline uint64_t tenant_used (const struct tenant *tenant, uint32_t gpu)
{
    uint64_t parts[] = { tenant->excess[gpu], tenant->raced[gpu], tenant->managed[gpu], tenant->retained.bytes[gpu],
                         tenant->rm != NULL ? rm_unconfirmed (tenant->rm) * RM_CONTEXT_BYTES : 0 },
             sum = tenant->used[gpu];

    for (unsigned i = 0; i < sizeof (parts) / sizeof (parts[0]); i++)
        if (__builtin_add_overflow (sum, parts[i], &sum))
            return UINT64_MAX;
    return sum;
}

/* For how long the tenant made no call: so long, up to QUIET_MOST_NS, may what is looked at from time to time wait. */
static inline uint64_t tenant_quiet (const struct tenant *tenant, uint64_t now)
{
    uint64_t called_at = atomic_load (&tenant->called_at), quiet = now > called_at ? now - called_at : 0;

    return quiet < QUIET_MOST_NS ? quiet : QUIET_MOST_NS;
}

/* Whether a process that called the driver is there, or was not released yet. */
static inline bool tenant_has_process (const struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->process_end; i++)
        if (tenant->processes[i].serial != 0)
            return true;
    return false;
}

/* How many listeners have processes still, of both threads. */
static inline unsigned tenant_listeners (struct tenant *tenant)
{
    unsigned count;

    pthread_mutex_lock (&tenant->listeners_lock);
    count = tenant->listener_count + (tenant->receiver.listener >= 0);
    pthread_mutex_unlock (&tenant->listeners_lock);
    return count;
}

/* Whether any process is behind the filter, also one that never called the driver. */
static inline bool tenant_has_filter (struct tenant *tenant) { return tenant_listeners (tenant) != 0; }

/* Zeroed, for a record of what the driver did or may have done: without it something would not be counted, or not be stopped. So this
 * process ends where there is no memory, and with it the container; never NULL. */
void *tenant_allocate (struct tenant *tenant, size_t count, size_t size);
struct tenant *tenant_create (struct guard *guard, uint32_t id, const struct limits *limits, int *error);
/* Its thread is to end. Afterwards, tenant_destroy: waits for that, until this time (CLOCK_REALTIME) at the most. false: it has
 * not; it frees the tenant when it does, and the guard has to stay. The tenant is not on the table any more. */
void tenant_stop (struct tenant *tenant);
bool tenant_destroy (struct tenant *tenant, const struct timespec *until);
/* What is not a notification: processes that ended, and changes by other threads. With the turn, without the lock. The caller of the current call is kept, its
 * end is there the next time; NULL: there is no call. */
void tenant_take_events (struct tenant *tenant, const struct process *caller);
/* Does what is due. held: ms that the tenant has to wait before its next call (fair.h). When it is to be called again, at the latest
 * (CLOCK_MONOTONIC ns, as now); 0: nothing is to be looked at. */
uint64_t tenant_look (struct tenant *tenant, uint64_t now, int *held);
/* No process has this listener any more: what is known of calls that came by it. Without a lock. */
void tenant_forget_listener (struct tenant *tenant, int listener);
/* Its second thread looks at once. */
void tenant_wake (const struct tenant *tenant);
/* 0 or -errno. */
int tenant_listen (struct tenant *tenant, int listener);

#endif
