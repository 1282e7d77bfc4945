/* The guard: its tenant, and what the supervisor's main thread calls. */
#include "clock.h"
#include "driver_usage.h"
#include "dup_probe.h"
#include "edges.h"
#include "guard.h"
#include "guard_private.h"
#include "held_files.h"
#include "late.h"
#include "process.h"
#include "schedule.h"
#include "space.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define SECOND UINT64_C (1000000000)
/* That the tenant's threads may take to end. */
#define STOP_NS SECOND
/* A probe that was not had is tried again: after so many times what the try took, which delays the tenant's calls. */
#define PROBE_AGAIN 10u
/* UVM gives memory back some milliseconds after a process. What another tenant's process has by then would keep
 * the tenant, and its supervisor, for as long as that lives. */
#define LONELY_NS (5 * SECOND)
/* What a query waits for a tenant's lock. */
#define ASK_NS 1000000u

struct guard *guard_create (int privsep)
{
    /* Mapped, so that the places of events that never came are not there: calloc writes zeros to all of it. */
    struct guard *guard = mmap (NULL, sizeof (*guard), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (guard == MAP_FAILED)
        return NULL;
    guard->event_descriptor = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
    guard->changed_descriptor = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
    guard->waits_descriptor = timerfd_create (CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (guard->event_descriptor < 0 || guard->changed_descriptor < 0 || guard->waits_descriptor < 0) {
        munmap (guard, sizeof (*guard));
        return NULL;
    }
    pthread_mutex_init (&guard->lock, NULL);
    pthread_mutex_init (&guard->driver_usage_lock, NULL);
    pthread_mutex_init (&guard->probe_lock, NULL);
    guard->contention = -1;
    privsep_begin (&guard->privsep, privsep);
    space_begin (guard);
    if (closer_start (guard) && late_begin (guard))
        return guard;
    guard_destroy (guard);
    errno = EAGAIN;
    return NULL;
}

void guard_on_failure (struct guard *guard, void (*act) (void *context), void *context)
{
    guard->late.context = context;
    guard->late.act = act;
}

void guard_set_contention (struct guard *guard, int file) { guard->contention = file; }

struct driver_usage *guard_driver_usage (struct guard *guard)
{
    if (!guard->has_driver_usage)
        guard->driver_usage = driver_usage_open (&guard->privsep);
    guard->has_driver_usage = true;
    return guard->driver_usage;
}

struct dup_probe *guard_dup_probe (struct guard *guard)
{
    uint64_t begun = guard_now ();

    pthread_mutex_lock (&guard->probe_lock);
    if (guard->dup_probe == NULL && begun >= guard->dup_probe_at) {
        guard->dup_probe = probe_open (&guard->privsep);
        guard->dup_probe_at = guard_now () + PROBE_AGAIN * (guard_now () - begun);
    }
    pthread_mutex_unlock (&guard->probe_lock);
    return guard->dup_probe;
}

int guard_sees_driver (const struct guard *guard) { return !guard->has_driver_usage || guard->driver_usage != NULL; }

int guard_sees_exec (const struct guard *guard) { return guard->sees_exec; }

void guard_destroy (struct guard *guard)
{
    struct timespec until = guard_time_in (STOP_NS, CLOCK_REALTIME);
    struct tenant *tenant = guard->tenant;
    bool is_over = true;

    if (tenant != NULL) {
        tenant_stop (tenant);
        pthread_mutex_lock (&guard->lock);
        guard->tenant = NULL;
        pthread_mutex_unlock (&guard->lock);
        is_over = tenant_destroy (tenant, &until);
    }
    late_end (guard);
    if (!is_over)
        return; /* a thread still needs it, which ends with this process */
    closer_stop (guard);
    driver_usage_close (guard->driver_usage);
    probe_close (guard->dup_probe);
    privsep_end (&guard->privsep);
    close (guard->event_descriptor);
    close (guard->changed_descriptor);
    close (guard->waits_descriptor);
    if (guard->contention >= 0)
        close (guard->contention);
    pthread_mutex_destroy (&guard->driver_usage_lock);
    pthread_mutex_destroy (&guard->probe_lock);
    pthread_mutex_destroy (&guard->lock);
    munmap (guard, sizeof (*guard));
}

void guard_abandon (struct guard *guard)
{
    struct tenant *tenant = guard_find (guard);

    atomic_store (&guard->is_abandoned, true);
    if (tenant == NULL)
        return;
    atomic_store (&tenant->is_paused, true);
    atomic_store (&tenant->has_changes, true); /* applied when its lock is released */
    tenant_wake (tenant);
    guard_let_go (tenant);
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

    if (error != 0)
        return error;
    pthread_mutex_lock (&guard->lock);
    if (guard->tenant != NULL)
        error = -EEXIST;
    else
        guard->tenant = tenant_create (guard, id, limits, &error);
    pthread_mutex_unlock (&guard->lock);
    return error;
}

struct tenant *guard_find (struct guard *guard)
{
    struct tenant *tenant;

    pthread_mutex_lock (&guard->lock);
    tenant = guard->tenant;
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

/* Its tenant, and its lock. 0, -ENOENT, or -EBUSY. release gives both back, and returns the result. */
static int hold (struct guard *guard, struct tenant **tenant)
{
    *tenant = guard_find (guard);
    if (*tenant == NULL)
        return -ENOENT;
    if (guard_lock (*tenant, ASK_NS))
        return 0;
    guard_let_go (*tenant);
    return -EBUSY;
}

static int release (struct tenant *tenant, int result)
{
    tenant_unlock (tenant);
    guard_let_go (tenant);
    return result;
}

int guard_tenant_update (struct guard *guard, const struct limits *limits)
{
    struct tenant *tenant;
    int error = check (limits);

    if (error == 0)
        error = hold (guard, &tenant);
    if (error != 0)
        return error;
    /* Indices of GPUs are in rm's ledger: a share can change, its GPUs cannot. */
    if (limits->gpu_count != tenant->limits.gpu_count)
        return release (tenant, -EINVAL);
    for (uint32_t i = 0; i < limits->gpu_count; i++)
        if (memcmp (limits->gpus[i].uuid, tenant->limits.gpus[i].uuid, sizeof (limits->gpus[i].uuid)) != 0)
            return release (tenant, -EINVAL);
    tenant->limits = *limits;
    atomic_store (&tenant->is_paused, (limits->flags & LIMITS_PAUSED) != 0);
    schedule_apply_all (tenant);
    return release (tenant, 0);
}

int guard_tenant_listen (struct guard *guard, int listener)
{
    struct tenant *tenant = guard_find (guard);
    int result;

    if (tenant == NULL)
        return -ENOENT;
    result = tenant_listen (tenant, listener);
    guard_let_go (tenant);
    return result;
}

int guard_tenant_status (struct guard *guard, struct guard_status *status)
{
    struct tenant *tenant;
    int error = hold (guard, &tenant);

    if (error != 0)
        return error;
    wait_check (tenant, guard_now ());
    guard_news_told (tenant);
    *status = tenant->status;
    status->listeners = tenant_listeners (tenant);
    status->called_ns = atomic_load (&tenant->called_at);
    if (tenant->waits_since != 0) {
        status->waits_for = (uint32_t) tenant->waits_for;
        status->waits_ns = guard_now () - tenant->waits_since;
    }
    for (unsigned i = 0; i < tenant->process_end; i++)
        status->processes += tenant->processes[i].serial != 0 && !tenant->processes[i].is_inherited;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        status->memory[gpu] = tenant_used (tenant, gpu);
        status->managed[gpu] = tenant->managed[gpu];
        status->groups[gpu] = rm_groups (tenant->rm, (int) gpu);
        status->frozen[gpu] = edges_frozen (&tenant->edges, gpu, &status->frozen_ns[gpu]);
    }
    return release (tenant, 0);
}

int guard_tenant_processes (struct guard *guard, struct guard_process *processes, uint32_t capacity)
{
    struct tenant *tenant;
    int error = hold (guard, &tenant);
    uint32_t count = 0;

    if (error != 0)
        return error;
    for (unsigned i = 0; i < tenant->process_end; i++) {
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
    return release (tenant, (int) count);
}

int guard_tenant_gone (struct guard *guard)
{
    struct tenant *tenant;
    int error = hold (guard, &tenant), gone = 1;
    bool is_inherited = false;

    if (error != 0)
        return error;
    for (unsigned i = 0; i < tenant->process_end; i++) {
        gone &= tenant->processes[i].serial == 0 || tenant->processes[i].is_inherited;
        is_inherited |= tenant->processes[i].serial != 0;
    }
    gone &= tenant_listeners (tenant) == 0 && tenant->orphan_space_count == 0;
    if (gone && (is_inherited || tenant->retained.pieces != NULL)) {
        /* Others hold what it lent, for as long as they like. */
        if (tenant->lonely_since == 0)
            tenant->lonely_since = guard_now ();
        gone = guard_now () - tenant->lonely_since > LONELY_NS;
    } else
        tenant->lonely_since = 0;
    return release (tenant, gone);
}
