/* A tenant's supervisor: what supervisor.c and publish.c share. */
#ifndef NVC_SUPERVISOR_SUPERVISOR_H
#define NVC_SUPERVISOR_SUPERVISOR_H

#include "containers.h"
#include "guard/guard.h"
#include "pages.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Between two publications, which changes of the tenant's status cause. */
#define PUBLISH_NS UINT64_C (20000000)
/* Between two looks whether the tenant's thread still waits for its container (guard/wait.c); no shorter wait is published. */
#define WAITS_NS UINT64_C (250000000)

struct supervisor {
    int monitor, plan_file, watch, counters_file;
    int published_file; /* an eventfd: the agent hears of what the counters' file got */
    uint32_t tenant;
    bool has_listened; /* false: the first listener is still to come, and the tenant is not over */
    bool is_attached; /* without a listener: channels of processes that ran already */
    struct guard *guard;
    struct guard_phases *phases;
    struct {
        pid_t pid;
        int file;
    } kills[CONTAINERS_MOST]; /* cgroup.kill of the containers' own cgroups, by first process */
    unsigned kill_count;
    struct plan plan;     /* in force, but for what is pending */
    struct plan next;     /* as read last */
    bool is_pending;      /* next is not wholly in force */
    uint64_t publish_at, events_at; /* not before these times (CLOCK_MONOTONIC) */
    uint64_t waits_at; /* at this time also when nothing changed: the tenant's thread waits; 0: it does not */
    uint32_t index;       /* of the valid counters */
    pthread_mutex_t events_lock; /* event_count: main, and "nvc-late" before the end */
    uint64_t event_count;
    struct counters counters, published; /* of now, and what the file has */
};

/* publish.c: the counters of now; publish_at is moved on. What is not to be had while the driver makes a call for the tenant stays what it
 * was: -EBUSY. In main. */
int supervisor_publish (struct supervisor *self);
/* The events that came since the last time. In main, and in "nvc-late" before the end. */
void supervisor_publish_events (struct supervisor *self);

#endif
