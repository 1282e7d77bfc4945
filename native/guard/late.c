/* See late.h. late_tick and what it calls run in the thread "nvc-late", late_due and late_done in those that stop channels. */
#include "late.h"
#include "clock.h"
#include "guard_private.h"
#include "tenant.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

/* Ticks without a stop that is due, after which the thread sleeps until the next one: those of a cap come several times a second. */
#define IDLE_TICKS 20u

void late_due (struct tenant *tenant, uint32_t gpu, uint64_t at)
{
    struct late_watch *watch = &tenant->guard->late;
    uint64_t none = 0;

    atomic_compare_exchange_strong (&tenant->late.due[gpu], &none, at);
    if (!atomic_load (&watch->is_ticking) && !atomic_exchange (&watch->is_ticking, true))
        sem_post (&watch->wake);
}

void late_done (struct tenant *tenant, uint32_t gpu) { atomic_store (&tenant->late.due[gpu], 0); }

/* What another thread than that of a GPU's phases could not stop is tried again by the tenant's. */
static void nudge (struct tenant *tenant)
{
    atomic_store (&tenant->has_changes, true);
    tenant_wake (tenant);
}

/* Whether a stop is late. A tick counts that saw the same stop as the one before, while a thread is about it or after it failed again. */
static bool look_at (struct tenant *tenant, uint64_t now, bool *is_idle)
{
    struct late_stops *late = &tenant->late;
    unsigned failed = atomic_load (&late->failed);
    bool is_tried = atomic_load (&late->switching) != 0 || failed != late->seen_failed, is_late = false;

    late->seen_failed = failed;
    for (uint32_t gpu = 0; gpu < SHARE_MAX_GPUS; gpu++) {
        uint64_t due = atomic_load (&late->due[gpu]);

        *is_idle &= due == 0;
        if (due == 0 || due > now || due != late->seen[gpu]) {
            late->seen[gpu] = due;
            late->ticks[gpu] = 0;
            continue;
        }
        late->ticks[gpu] += is_tried;
        is_late |= late->ticks[gpu] >= LATE_TICKS && now - due >= LATE_NS;
        if (!is_late && atomic_load (&late->switching) == 0)
            nudge (tenant);
    }
    return is_late;
}

/* Whether no stop is due. */
static bool tick (struct guard *guard)
{
    struct tenant *tenant = guard_find (guard);
    bool is_idle = true, is_late;

    if (tenant == NULL)
        return true;
    is_late = look_at (tenant, guard_now (), &is_idle);
    if (is_late)
        guard_note (tenant, RM_EDGE_LATE, 0, 0);
    guard_let_go (tenant);
    if (is_late && guard->late.act != NULL)
        guard->late.act (guard->late.context);
    return is_idle;
}

static void *run (void *argument)
{
    struct guard *guard = argument;
    struct late_watch *watch = &guard->late;
    unsigned idle = IDLE_TICKS;

    prctl (PR_SET_NAME, "nvc-late");
    while (!atomic_load (&watch->stop)) {
        struct timespec until = guard_time_in (LATE_TICK_NS, CLOCK_MONOTONIC);

        if (idle == IDLE_TICKS) {
            atomic_store (&watch->is_ticking, false);
            /* One that came due just before saw the ticks go on. */
            if (tick (guard))
                while (sem_wait (&watch->wake) != 0)
                    continue;
            idle = 0;
        } else if (sem_clockwait (&watch->wake, CLOCK_MONOTONIC, &until) != 0 && errno == ETIMEDOUT)
            idle = tick (guard) ? idle + 1 : 0;
    }
    return NULL;
}

bool late_begin (struct guard *guard)
{
    sem_init (&guard->late.wake, 0, 0);
    guard->late.is_started = pthread_create (&guard->late.runner, NULL, run, guard) == 0;
    return guard->late.is_started;
}

void late_end (struct guard *guard)
{
    if (!guard->late.is_started)
        return;
    atomic_store (&guard->late.stop, true);
    sem_post (&guard->late.wake);
    pthread_join (guard->late.runner, NULL);
    sem_destroy (&guard->late.wake);
}
