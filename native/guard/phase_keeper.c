/* Keeps the time of phase plans: one thread a GPU. See guard.h, and phase.h for what it does when. */
#include "attached.h"
#include "phase.h"
#include "tenant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND 1000000u
#define SECOND 1000000000u
#define TIMER_SLACK_NS 1000
#define NICE (-15)
/* A tenant for which the driver makes a call is stopped, or started, when that is over: it is looked again so soon. */
#define AGAIN_NS 500000u

struct keeper {
    struct guard *guard;
    struct attached_list *attached;
    uint8_t uuid[16];
    pthread_t runner;
    pthread_mutex_t lock; /* everything below; held during calls of the driver, which are short */
    pthread_cond_t changed;
    struct phase_plan plan;
    uint64_t ends; /* when the plan has not been renewed in time */
    bool stale, stop;
};

struct guard_phases {
    struct guard *guard;
    struct attached_list *attached;
    pthread_mutex_t lock; /* keepers[] */
    struct keeper *keepers[SHARE_MAX_GPUS];
    unsigned count;
};

static void make (struct keeper *keeper, const struct phase_step *step)
{
    const struct phase_entry *entry = &keeper->plan.entries[step->entry];
    uint64_t began = guard_now ();
    int result = (entry->tenant & GUARD_ATTACHED) != 0
                     ? attached_freeze (keeper->attached, entry->tenant, step->freeze)
                     : guard_tenant_freeze (keeper->guard, entry->tenant, entry->gpu, step->freeze);

    if (result == -EBUSY && !keeper->stop) {
        phase_busy (&keeper->plan, step, guard_now () + AGAIN_NS);
        return;
    }
    /* One that has no channels at the moment took no call, and exists. At the end nobody waits for one that is busy. */
    phase_done (&keeper->plan, step, began, guard_now (), result == -ENOENT || result == -EBUSY ? 0 : result > 0 ? (unsigned) result : 1);
}

static void *run (void *argument)
{
    struct keeper *keeper = argument;

    prctl (PR_SET_NAME, "nvc-phases");
    /* Edges are kept to some microseconds also where many processes want the processor; not being allowed to is no
     * failure, only less exact. */
    prctl (PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    setpriority (PRIO_PROCESS, (id_t) syscall (SYS_gettid), NICE);
    /* As the tenants' threads: calls are made in a container's place. */
    if (!tenant_drop_rights ())
        return NULL; /* the plan is never begun: nobody is frozen */
    pthread_mutex_lock (&keeper->lock);
    while (!keeper->stop || keeper->plan.count > 0) {
        uint64_t now = guard_now (), at;
        struct phase_step step;

        if (keeper->plan.period != 0 && (keeper->stop || now >= keeper->ends)) {
            keeper->stale = !keeper->stop;
            (void) phase_set (&keeper->plan, 0, NULL, 0, now); /* which needs no room */
        }
        step = phase_next (&keeper->plan);
        if (step.entry != PHASE_NONE && step.at <= now) {
            make (keeper, &step);
            continue;
        }
        if (step.entry == PHASE_NONE && keeper->stop)
            break;
        at = keeper->plan.period != 0 && keeper->ends < step.at ? keeper->ends : step.at;
        if (at == UINT64_MAX) {
            pthread_cond_wait (&keeper->changed, &keeper->lock);
        } else {
            struct timespec until = { .tv_sec = (time_t) (at / SECOND), .tv_nsec = (long) (at % SECOND) };

            pthread_cond_timedwait (&keeper->changed, &keeper->lock, &until);
        }
    }
    pthread_mutex_unlock (&keeper->lock);
    return NULL;
}

static struct keeper *keeper_create (struct guard_phases *phases, const uint8_t uuid[16])
{
    struct keeper *keeper = calloc (1, sizeof (*keeper));
    pthread_condattr_t attributes;

    if (keeper == NULL)
        return NULL;
    keeper->guard = phases->guard;
    keeper->attached = phases->attached;
    memcpy (keeper->uuid, uuid, sizeof (keeper->uuid));
    pthread_mutex_init (&keeper->lock, NULL);
    pthread_condattr_init (&attributes);
    pthread_condattr_setclock (&attributes, CLOCK_MONOTONIC);
    pthread_cond_init (&keeper->changed, &attributes);
    pthread_condattr_destroy (&attributes);
    if (pthread_create (&keeper->runner, NULL, run, keeper) == 0)
        return keeper;
    pthread_cond_destroy (&keeper->changed);
    pthread_mutex_destroy (&keeper->lock);
    free (keeper);
    return NULL;
}

static void keeper_destroy (struct keeper *keeper)
{
    pthread_mutex_lock (&keeper->lock);
    keeper->stop = true;
    pthread_cond_signal (&keeper->changed);
    pthread_mutex_unlock (&keeper->lock);
    pthread_join (keeper->runner, NULL);
    phase_free (&keeper->plan);
    pthread_cond_destroy (&keeper->changed);
    pthread_mutex_destroy (&keeper->lock);
    free (keeper);
}

struct guard_phases *guard_phases_create (struct guard *guard)
{
    struct guard_phases *phases = calloc (1, sizeof (*phases));

    if (phases == NULL)
        return NULL;
    phases->guard = guard;
    phases->attached = attached_create (guard);
    if (phases->attached == NULL) {
        free (phases);
        return NULL;
    }
    pthread_mutex_init (&phases->lock, NULL);
    return phases;
}

void guard_phases_destroy (struct guard_phases *phases)
{
    for (unsigned i = 0; i < phases->count; i++)
        keeper_destroy (phases->keepers[i]);
    attached_destroy (phases->attached);
    pthread_mutex_destroy (&phases->lock);
    free (phases);
}

static struct keeper *find (struct guard_phases *phases, const uint8_t uuid[16])
{
    for (unsigned i = 0; i < phases->count; i++)
        if (memcmp (phases->keepers[i]->uuid, uuid, 16) == 0)
            return phases->keepers[i];
    return NULL;
}

int guard_phases_set (struct guard_phases *phases, const uint8_t uuid[16], uint32_t period, const struct guard_phase *plan,
                      uint32_t count, uint32_t valid)
{
    int result = phase_check (period, plan, count);
    struct keeper *keeper;

    if (result != 0)
        return result;
    pthread_mutex_lock (&phases->lock);
    keeper = find (phases, uuid);
    if (keeper == NULL && count > 0) {
        if (phases->count == SHARE_MAX_GPUS)
            result = -ENOSPC;
        else if ((keeper = keeper_create (phases, uuid)) == NULL)
            result = -EAGAIN;
        else
            phases->keepers[phases->count++] = keeper;
    }
    if (keeper != NULL) {
        pthread_mutex_lock (&keeper->lock);
        result = phase_set (&keeper->plan, period, plan, count, guard_now ());
        if (result == 0) {
            keeper->ends = guard_now () + (uint64_t) valid * MILLISECOND;
            keeper->stale = false;
        }
        pthread_cond_signal (&keeper->changed);
        pthread_mutex_unlock (&keeper->lock);
    }
    pthread_mutex_unlock (&phases->lock);
    return result;
}

int guard_phases_renew (struct guard_phases *phases, uint32_t valid)
{
    int result = 0;

    pthread_mutex_lock (&phases->lock);
    for (unsigned i = 0; i < phases->count; i++) {
        struct keeper *keeper = phases->keepers[i];

        pthread_mutex_lock (&keeper->lock);
        if (keeper->stale)
            result = -ESTALE;
        keeper->ends = guard_now () + (uint64_t) valid * MILLISECOND;
        pthread_mutex_unlock (&keeper->lock);
    }
    pthread_mutex_unlock (&phases->lock);
    return result;
}

int guard_attach (struct guard_phases *phases, uint32_t id, int pidfd, const struct limits_node *node,
                  const struct guard_channel *channels, uint32_t count)
{
    return attached_add (phases->attached, id, pidfd, node, channels, count);
}

int guard_detach (struct guard_phases *phases, uint32_t id) { return attached_remove (phases->attached, id); }

int guard_attached_status (struct guard_phases *phases, uint32_t id, struct guard_attached *status)
{
    return attached_status (phases->attached, id, status);
}
