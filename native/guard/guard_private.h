/*
 * The guard as the files of native/guard see it.
 *
 * Locks, each taken only after those before it: guard_phases.lock; that of a phase thread; that of the attached processes, or a
 * tenant's turn; a tenant's; probe_lock or driver_usage_lock; guard->lock or edges.lock; listeners_lock. Of two named with "or" a thread
 * has one at a time.
 */
#ifndef NVC_GUARD_GUARD_PRIVATE_H
#define NVC_GUARD_GUARD_PRIVATE_H

#include "guard.h"
#include "late.h"
#include "privsep.h"

#include "rm/rm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct driver_usage;
struct dup_probe;
struct tenant;

#define GUARD_EVENTS 1024

struct guard {
    pthread_mutex_t lock; /* tenant and events */
    struct tenant *tenant; /* NULL: there is none yet, or any more */
    int event_descriptor, changed_descriptor, waits_descriptor;
    atomic_bool is_changed; /* changed_descriptor is readable */
    struct guard_event events[GUARD_EVENTS];
    unsigned event_count;
    struct privsep privsep;
    atomic_bool is_abandoned; /* its monitor is gone */
    int contention;    /* the node's usage page (usage_page.h); -1: none */
    /* Clients of the driver take milliseconds to be made, so they are made when they are needed first. */
    pthread_mutex_t driver_usage_lock;
    struct driver_usage *driver_usage; /* NULL: no device node could be opened */
    pthread_mutex_t probe_lock; /* after a tenant's lock */
    struct dup_probe *dup_probe; /* NULL as well */
    bool has_driver_usage; /* opening it was tried */
    uint64_t dup_probe_at; /* when it is to be tried again */
    bool sees_exec;
    struct late_watch late;
    pthread_t closer;
    int closing[2]; /* descriptors for it; -1: none */
};

/* The guard's clients of the driver; NULL: there are none. With driver_usage_lock, and without probe_lock. */
struct driver_usage *guard_driver_usage (struct guard *guard);
struct dup_probe *guard_dup_probe (struct guard *guard);
/* The tenant, which cannot go away until guard_let_go; NULL: there is none. */
struct tenant *guard_find (struct guard *guard);
void guard_let_go (struct tenant *tenant);
/* Takes its lock, unless another thread has it for longer than so many ns. */
bool guard_lock (struct tenant *tenant, uint64_t patience);
void guard_note (struct tenant *tenant, enum rm_reason reason, uint32_t number, pid_t pid);
/* Whether the tenant's status is another one than was read last. In its second thread, with the turn, without the lock. */
bool guard_has_news (struct tenant *tenant);
/* Its status is read. Under its lock. */
void guard_news_told (struct tenant *tenant);

#endif
