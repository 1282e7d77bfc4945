/* The guard: its tenants by number, its events, and what the supervisor's main thread calls. */
#include "clock.h"
#include "driver_usage.h"
#include "dup_probe.h"
#include "edges.h"
#include "guard.h"
#include "guard_private.h"
#include "held_files.h"
#include "process.h"
#include "schedule.h"
#include "space.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define SECOND UINT64_C (1000000000)
/* That the threads of all tenants may take to end, and that of one which is removed while others are served. */
#define STOP_NS SECOND
#define REMOVE_NS (SECOND / 5)
/* What a query waits for a tenant's lock. */
#define ASK_NS 1000000u

struct guard *guard_create (const char *device_directory)
{
    struct guard *guard = calloc (1, sizeof (*guard));

    if (guard == NULL)
        return NULL;
    guard->event_descriptor = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
    guard->changed_descriptor = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (guard->event_descriptor < 0 || guard->changed_descriptor < 0) {
        free (guard);
        return NULL;
    }
    pthread_mutex_init (&guard->lock, NULL);
    pthread_mutex_init (&guard->driver_usage_lock, NULL);
    pthread_mutex_init (&guard->probe_lock, NULL);
    guard->contention = -1;
    snprintf (guard->devices, sizeof (guard->devices), "%s", device_directory);
    space_begin (guard);
    closer_start (guard);
    return guard;
}

void guard_set_contention (struct guard *guard, int file) { guard->contention = file; }

bool guard_drop_rights (void) { return tenant_drop_rights (); }

struct driver_usage *guard_driver_usage (struct guard *guard)
{
    if (!guard->has_driver_usage)
        guard->driver_usage = driver_usage_open (guard->devices);
    guard->has_driver_usage = true;
    return guard->driver_usage;
}

struct dup_probe *guard_dup_probe (struct guard *guard)
{
    pthread_mutex_lock (&guard->probe_lock);
    if (!guard->has_dup_probe)
        guard->dup_probe = probe_open (guard->devices);
    guard->has_dup_probe = true;
    pthread_mutex_unlock (&guard->probe_lock);
    return guard->dup_probe;
}

int guard_sees_driver (const struct guard *guard) { return !guard->has_driver_usage || guard->driver_usage != NULL; }

int guard_sees_exec (const struct guard *guard) { return guard->sees_exec; }

/* Takes it off the table; NULL: there is none. */
static struct tenant *take_last (struct guard *guard)
{
    struct tenant *tenant;

    pthread_mutex_lock (&guard->lock);
    tenant = guard->tenant_count > 0 ? guard->tenants[--guard->tenant_count] : NULL;
    pthread_mutex_unlock (&guard->lock);
    return tenant;
}

void guard_destroy (struct guard *guard)
{
    struct timespec until = guard_time_in (STOP_NS, CLOCK_REALTIME);
    struct tenant *tenant;
    bool is_over = !guard->has_detached_threads;

    for (unsigned i = 0; i < guard->tenant_count; i++)
        tenant_stop (guard->tenants[i]);
    while ((tenant = take_last (guard)) != NULL)
        is_over &= tenant_destroy (tenant, &until);
    if (!is_over)
        return; /* a thread still needs it, which ends with this process */
    closer_stop (guard);
    driver_usage_close (guard->driver_usage);
    probe_close (guard->dup_probe);
    space_end (guard);
    close (guard->event_descriptor);
    close (guard->changed_descriptor);
    if (guard->contention >= 0)
        close (guard->contention);
    pthread_mutex_destroy (&guard->driver_usage_lock);
    pthread_mutex_destroy (&guard->probe_lock);
    pthread_mutex_destroy (&guard->lock);
    free (guard);
}

int guard_event_descriptor (const struct guard *guard) { return guard->event_descriptor; }

int guard_changed_descriptor (const struct guard *guard) { return guard->changed_descriptor; }

void guard_changed (struct guard *guard)
{
    uint64_t one = 1;

    if (!atomic_exchange (&guard->is_changed, true) && write (guard->changed_descriptor, &one, sizeof (one)) < 0)
        return; /* it is readable already */
}

void guard_take_changes (struct guard *guard)
{
    uint64_t value;

    if (read (guard->changed_descriptor, &value, sizeof (value)) < 0)
        value = 0; /* it was not readable */
    atomic_store (&guard->is_changed, false);
}

/* Events of one tenant that wait to be read: the table is for all tenants. */
#define EVENTS_OF_ONE 64u

void guard_note (struct tenant *tenant, enum rm_reason reason, uint32_t number, pid_t pid)
{
    struct guard *guard = tenant->guard;
    struct timespec now;
    bool is_end = reason == RM_TOCTOU_KILLED || reason == RM_UNREACHABLE;
    unsigned own = 0;
    uint64_t one = 1;

    if ((unsigned) reason < GUARD_REASONS)
        tenant->status.reasons[reason]++;
    clock_gettime (CLOCK_REALTIME, &now);
    pthread_mutex_lock (&guard->lock);
    for (unsigned i = 0; i < guard->event_count; i++) {
        struct guard_event *event = &guard->events[i];

        /* A tenant that tries a thousand times makes one line. */
        if (event->tenant == tenant->id && event->reason == (uint32_t) reason && event->number == number) {
            event->repeated++;
            pthread_mutex_unlock (&guard->lock);
            return;
        }
        own += event->tenant == tenant->id;
    }
    /* Each of these cost a process its life. */
    if ((own < EVENTS_OF_ONE || is_end) && guard->event_count < GUARD_EVENTS)
        guard->events[guard->event_count++] =
            (struct guard_event) { .when_ns = (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec,
                                   .tenant = tenant->id,
                                   .reason = (uint32_t) reason,
                                   .number = number,
                                   .pid = (uint32_t) pid };
    pthread_mutex_unlock (&guard->lock);
    if (write (guard->event_descriptor, &one, sizeof (one)) < 0)
        return; /* full: it is readable already */
}

int guard_events (struct guard *guard, struct guard_event *events, uint32_t capacity)
{
    uint64_t value;
    unsigned count;

    pthread_mutex_lock (&guard->lock);
    count = guard->event_count < capacity ? guard->event_count : capacity;
    memcpy (events, guard->events, count * sizeof (*events));
    guard->event_count -= count;
    memmove (guard->events, guard->events + count, guard->event_count * sizeof (*events));
    if (guard->event_count == 0 && read (guard->event_descriptor, &value, sizeof (value)) < 0)
        value = 0; /* it was not readable */
    pthread_mutex_unlock (&guard->lock);
    return (int) count;
}

static struct tenant *find (struct guard *guard, uint32_t id)
{
    for (unsigned i = 0; i < guard->tenant_count; i++)
        if (guard->tenants[i]->id == id)
            return guard->tenants[i];
    return NULL;
}

static int check (const struct limits *limits)
{
    return limits->magic == LIMITS_MAGIC && limits->version == LIMITS_VERSION && limits->gpu_count <= SHARE_MAX_GPUS &&
                   limits->node_count <= SHARE_MAX_NODES
               ? 0
               : -EINVAL;
}

int guard_tenant_add (struct guard *guard, uint32_t id, const struct limits *limits)
{
    int error = check (limits);
    struct tenant *tenant;

    if (error != 0)
        return error;
    pthread_mutex_lock (&guard->lock);
    if (find (guard, id) != NULL)
        error = -EEXIST;
    else if (guard->tenant_count == GUARD_TENANTS)
        error = -EMFILE;
    else if ((tenant = tenant_create (guard, id, limits, &error)) != NULL) {
        guard->tenants[guard->tenant_count++] = tenant;
        error = 0;
    }
    pthread_mutex_unlock (&guard->lock);
    return error;
}

int guard_tenant_remove (struct guard *guard, uint32_t id)
{
    struct tenant *tenant;
    struct timespec until;

    pthread_mutex_lock (&guard->lock);
    tenant = find (guard, id);
    for (unsigned i = 0; i < guard->tenant_count; i++)
        if (guard->tenants[i] == tenant) {
            guard->tenants[i] = guard->tenants[--guard->tenant_count];
            break;
        }
    pthread_mutex_unlock (&guard->lock);
    if (tenant == NULL)
        return -ENOENT;
    until = guard_time_in (REMOVE_NS, CLOCK_REALTIME);
    tenant_stop (tenant);
    guard->has_detached_threads |= !tenant_destroy (tenant, &until);
    return 0;
}

struct tenant *guard_find (struct guard *guard, uint32_t id)
{
    struct tenant *tenant;

    pthread_mutex_lock (&guard->lock);
    tenant = find (guard, id);
    if (tenant != NULL)
        atomic_fetch_add (&tenant->users, 1);
    pthread_mutex_unlock (&guard->lock);
    return tenant;
}

void guard_let_go (struct tenant *tenant) { atomic_fetch_sub (&tenant->users, 1); }

bool guard_lock (struct tenant *tenant, uint64_t patience)
{
    struct timespec until;

    if (pthread_mutex_trylock (&tenant->lock) == 0)
        return true;
    until = guard_time_in (patience, CLOCK_MONOTONIC);
    return pthread_mutex_clocklock (&tenant->lock, CLOCK_MONOTONIC, &until) == 0;
}

int guard_hold (struct guard *guard, uint32_t id, uint64_t patience, struct tenant **tenant)
{
    *tenant = guard_find (guard, id);
    if (*tenant == NULL)
        return -ENOENT;
    if (guard_lock (*tenant, patience))
        return 0;
    guard_let_go (*tenant);
    return -EBUSY;
}

int guard_release (struct tenant *tenant, int result)
{
    tenant_unlock (tenant);
    guard_let_go (tenant);
    return result;
}

int guard_tenant_update (struct guard *guard, uint32_t id, const struct limits *limits)
{
    struct tenant *tenant;
    int error = check (limits);

    if (error == 0)
        error = guard_hold (guard, id, ASK_NS, &tenant);
    if (error != 0)
        return error;
    /* Indices of GPUs are in rm's ledger: a share can change, its GPUs cannot. */
    if (limits->gpu_count != tenant->limits.gpu_count)
        return guard_release (tenant, -EINVAL);
    for (uint32_t i = 0; i < limits->gpu_count; i++)
        if (memcmp (limits->gpus[i].uuid, tenant->limits.gpus[i].uuid, sizeof (limits->gpus[i].uuid)) != 0)
            return guard_release (tenant, -EINVAL);
    tenant->limits = *limits;
    atomic_store (&tenant->is_paused, (limits->flags & LIMITS_PAUSED) != 0);
    for (uint32_t i = 0; i < limits->gpu_count; i++)
        schedule_apply (tenant, i);
    return guard_release (tenant, 0);
}

int guard_tenant_listen (struct guard *guard, uint32_t id, int listener)
{
    struct tenant *tenant = guard_find (guard, id);
    int result;

    if (tenant == NULL)
        return -ENOENT;
    result = tenant_listen (tenant, listener);
    guard_let_go (tenant);
    return result;
}

int guard_tenant_status (struct guard *guard, uint32_t id, struct guard_status *status)
{
    struct tenant *tenant;
    int error = guard_hold (guard, id, ASK_NS, &tenant);

    if (error != 0)
        return error;
    wait_check (tenant, guard_now ());
    *status = tenant->status;
    status->listeners = tenant->listener_count;
    status->called_ns = atomic_load (&tenant->called_at);
    if (tenant->waits_since != 0) {
        status->waits_for = (uint32_t) tenant->waits_for;
        status->waits_ns = guard_now () - tenant->waits_since;
    }
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        status->processes += tenant->processes[i].serial != 0;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        status->memory[gpu] = tenant_used (tenant, gpu);
        status->managed[gpu] = tenant->managed[gpu];
        status->groups[gpu] = rm_groups (tenant->rm, (int) gpu);
        status->frozen[gpu] = edges_frozen (&tenant->edges, gpu, &status->frozen_ns[gpu]);
    }
    return guard_release (tenant, 0);
}

int guard_tenant_processes (struct guard *guard, uint32_t id, struct guard_process *processes, uint32_t capacity)
{
    struct tenant *tenant;
    int error = guard_hold (guard, id, ASK_NS, &tenant);
    uint32_t count = 0;

    if (error != 0)
        return error;
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        const struct process *process = &tenant->processes[i];

        if (process->serial == 0)
            continue;
        if (count < capacity) {
            processes[count] = (struct guard_process) { .pid = (uint32_t) process->pid,
                                                        .clients = process->client_count,
                                                        .start_time = process->start_time };
            memcpy (processes[count].memory, process->driver_usage, sizeof (process->driver_usage));
        }
        count++;
    }
    return guard_release (tenant, (int) count);
}

int guard_tenant_gone (struct guard *guard, uint32_t id)
{
    struct tenant *tenant;
    int error = guard_hold (guard, id, ASK_NS, &tenant), gone = 1;

    if (error != 0)
        return error;
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        gone &= tenant->processes[i].serial == 0;
    gone &= tenant->listener_count == 0 && tenant->retained.pieces == NULL && tenant->orphan_space_count == 0;
    return guard_release (tenant, gone);
}
