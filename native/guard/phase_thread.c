/* Carries phases out: one thread a GPU ("nvc-phases"), which makes the call at each edge. See guard.h for phases, and phase.h for what
 * is done when. Other functions run in the thread of their caller. */
#include "attached.h"
#include "clock.h"
#include "guard.h"
#include "phase.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000u
#define TIMER_SLACK_NS 1000
#define NICE (-15)
/* A tenant for which the driver makes a call is stopped, or started, when that is over: it is looked again so soon. */
#define AGAIN_NS 500000u
/* What the driver did not stop. */
#define FAILED_AGAIN_NS 10000000u

struct phase_thread {
    struct guard_phases *phases;
    uint32_t gpu;
    pthread_t runner;
    pthread_mutex_t lock; /* everything below; held during calls of the driver, which are short */
    pthread_cond_t changed;
    struct phase_plan plan;
    bool stop;
};

struct guard_phases {
    struct guard *guard;
    struct attached_list *attached; /* NULL: it is the guard's tenant that has phases */
    pthread_mutex_t lock; /* threads[] */
    struct phase_thread *threads[SHARE_MAX_GPUS]; /* of the GPUs that had a phase, in the order in which they had their first */
    unsigned count;
};

static void make (struct phase_thread *thread, struct phase_step step)
{
    uint64_t began = guard_now ();
    int result = thread->phases->attached != NULL ? attached_freeze (thread->phases->attached, step.freeze)
                                                  : guard_tenant_freeze (thread->phases->guard, thread->gpu, step.freeze);

    if ((result == -EBUSY || result == -EAGAIN) && !thread->stop) {
        phase_busy (&thread->plan, guard_now () + (result == -EBUSY ? AGAIN_NS : FAILED_AGAIN_NS));
        return;
    }
    /* One that has no channels at the moment took no call, and exists. At the end a busy one is not waited for. */
    phase_done (&thread->plan, step, began, guard_now (),
                result == -ENOENT || result == -EBUSY || result == -EAGAIN ? 0
                : result > 0                                               ? (unsigned) result
                                                                           : 1);
}

static void *run (void *argument)
{
    struct phase_thread *thread = argument;

    prctl (PR_SET_NAME, "nvc-phases");
    /* Edges are kept to some microseconds also where many processes want the processor; not being allowed to is no
     * failure, only less exact. */
    prctl (PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    setpriority (PRIO_PROCESS, (id_t) syscall (SYS_gettid), NICE);
    pthread_mutex_lock (&thread->lock);
    while (!thread->stop || thread->plan.is_active) {
        uint64_t now = guard_now ();
        struct phase_step step;

        if (thread->stop)
            phase_end (&thread->plan);
        step = phase_next (&thread->plan);
        if (step.at <= now) {
            make (thread, step);
        } else if (step.at != UINT64_MAX) {
            struct timespec until = { .tv_sec = (time_t) (step.at / SECOND), .tv_nsec = (long) (step.at % SECOND) };

            pthread_cond_timedwait (&thread->changed, &thread->lock, &until);
        } else if (!thread->stop) {
            pthread_cond_wait (&thread->changed, &thread->lock);
        }
    }
    pthread_mutex_unlock (&thread->lock);
    return NULL;
}

static struct phase_thread *phase_thread_create (struct guard_phases *phases, uint32_t gpu)
{
    struct phase_thread *thread = calloc (1, sizeof (*thread));
    pthread_condattr_t attributes;

    if (thread == NULL)
        return NULL;
    thread->phases = phases;
    thread->gpu = gpu;
    pthread_mutex_init (&thread->lock, NULL);
    pthread_condattr_init (&attributes);
    pthread_condattr_setclock (&attributes, CLOCK_MONOTONIC);
    pthread_cond_init (&thread->changed, &attributes);
    pthread_condattr_destroy (&attributes);
    if (pthread_create (&thread->runner, NULL, run, thread) == 0)
        return thread;
    pthread_cond_destroy (&thread->changed);
    pthread_mutex_destroy (&thread->lock);
    free (thread);
    return NULL;
}

static void phase_thread_destroy (struct phase_thread *thread)
{
    pthread_mutex_lock (&thread->lock);
    thread->stop = true;
    pthread_cond_signal (&thread->changed);
    pthread_mutex_unlock (&thread->lock);
    pthread_join (thread->runner, NULL);
    pthread_cond_destroy (&thread->changed);
    pthread_mutex_destroy (&thread->lock);
    free (thread);
}

struct guard_phases *guard_phases_create (struct guard *guard, bool are_attached)
{
    struct guard_phases *phases = calloc (1, sizeof (*phases));

    if (phases == NULL)
        return NULL;
    phases->guard = guard;
    phases->attached = are_attached ? attached_create (guard) : NULL;
    if (are_attached && phases->attached == NULL) {
        free (phases);
        return NULL;
    }
    pthread_mutex_init (&phases->lock, NULL);
    return phases;
}

void guard_phases_destroy (struct guard_phases *phases)
{
    for (unsigned i = 0; i < phases->count; i++)
        phase_thread_destroy (phases->threads[i]);
    if (phases->attached != NULL)
        attached_destroy (phases->attached);
    pthread_mutex_destroy (&phases->lock);
    free (phases);
}

static struct phase_thread *find (struct guard_phases *phases, uint32_t gpu)
{
    for (unsigned i = 0; i < phases->count; i++)
        if (phases->threads[i]->gpu == gpu)
            return phases->threads[i];
    return NULL;
}

int guard_phases_set (struct guard_phases *phases, uint32_t gpu, const struct guard_phase *phase)
{
    struct phase_thread *thread;
    int result = gpu < SHARE_MAX_GPUS ? phase_check (phase) : -EINVAL;

    if (result != 0)
        return result;
    pthread_mutex_lock (&phases->lock);
    thread = find (phases, gpu);
    if (thread == NULL && phase->period != 0) {
        thread = phase_thread_create (phases, gpu);
        if (thread == NULL)
            result = -EAGAIN;
        else
            phases->threads[phases->count++] = thread;
    }
    if (thread != NULL) {
        pthread_mutex_lock (&thread->lock);
        phase_set (&thread->plan, phase, guard_now ());
        pthread_cond_signal (&thread->changed);
        pthread_mutex_unlock (&thread->lock);
    }
    pthread_mutex_unlock (&phases->lock);
    return result;
}

int guard_attach (struct guard_phases *phases, int pidfd, const struct limits_node *node, const struct guard_channel *channels,
                  uint32_t count)
{
    return attached_add (phases->attached, pidfd, node, channels, count);
}

int guard_attached_status (struct guard_phases *phases, struct guard_attached *status)
{
    return attached_status (phases->attached, status);
}
