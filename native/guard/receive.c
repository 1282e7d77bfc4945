/* See receive.h. receiver_begin and receiver_take run in the supervisor's main thread, receiver_drop in the tenant's other thread. */
#include "receive.h"
#include "clock.h"
#include "fair.h"
#include "guard_private.h"
#include "notify.h"
#include "schedule.h"
#include "tenant.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND 1000000

/* One of the other thread's, if there is one: that waits for its calls, but receives none without the turn, which this thread has. */
static void take_next (struct tenant *tenant)
{
    struct receiver *receiver = &tenant->receiver;

    if (receiver->listener < 0 && tenant->listener_count > 0)
        receiver->listener = tenant->listeners[--tenant->listener_count];
    receiver->is_idle = receiver->listener < 0;
}

static int own_listener (struct tenant *tenant)
{
    struct receiver *receiver = &tenant->receiver;
    int listener;

    for (;;) {
        pthread_mutex_lock (&tenant->turn);
        pthread_mutex_lock (&tenant->listeners_lock);
        take_next (tenant);
        listener = receiver->listener;
        pthread_mutex_unlock (&tenant->listeners_lock);
        pthread_mutex_unlock (&tenant->turn);
        if (listener >= 0)
            return listener;
        while (sem_wait (&receiver->given) != 0)
            continue;
    }
}

static bool has_processes (int listener)
{
    struct pollfd asked = { .fd = listener, .events = 0 };

    return poll (&asked, 1, 0) == 0;
}

/* Whether the listener is this thread's still. error: of its last RECV. */
static bool keep (struct tenant *tenant, int listener, int error)
{
    struct receiver *receiver = &tenant->receiver;
    bool is_over = error != 0 && (!notify_is_passing (error) || !has_processes (listener)), is_kept;

    pthread_mutex_lock (&tenant->listeners_lock);
    if (is_over && receiver->listener == listener)
        receiver->listener = -1;
    is_kept = receiver->listener == listener;
    pthread_mutex_unlock (&tenant->listeners_lock);
    if (is_over)
        guard_changed (tenant->guard);
    return is_kept;
}

/* How many ms the tenant has to wait before its next call (fair.h). */
static int wait_for_others (struct tenant *tenant)
{
    int held;

    pthread_mutex_lock (&tenant->lock);
    held = fair_wait (tenant, guard_now ());
    tenant_unlock (tenant);
    return held;
}

/* Receives the calls of this listener and answers them, until it has no process any more. */
static void serve (struct tenant *tenant, int listener)
{
    struct seccomp_notif notification;
    int error = EAGAIN; /* of RECV: nothing was received yet */

    for (;;) {
        struct timespec delay = { 0 };
        uint64_t due;
        bool is_kept;

        /* Once the tenant has ended it is not given, and nothing of the tenant or the guard is used any more. */
        pthread_mutex_lock (&tenant->turn);
        if (atomic_load (&tenant->guard->is_abandoned)) {
            /* What was received waits until this process ends (supervisor.c). */
            pthread_mutex_unlock (&tenant->turn);
            for (;;)
                poll (NULL, 0, -1);
        }
        if (error == 0)
            notify_answer (tenant, listener, &notification);
        due = tenant_look (tenant);
        if (due != 0 && due < atomic_load (&tenant->receiver.armed))
            tenant_wake (tenant);
        is_kept = keep (tenant, listener, error);
        delay.tv_nsec = wait_for_others (tenant) * MILLISECOND;
        pthread_mutex_unlock (&tenant->turn);
        if (!is_kept)
            break;
        error = EAGAIN;
        if (delay.tv_nsec != 0)
            nanosleep (&delay, NULL);
        else
            error = notify_receive (listener, &notification);
    }
    close (listener);
}

static void *receive (void *argument)
{
    struct tenant *tenant = argument;

    prctl (PR_SET_NAME, "nvc-guard");
    for (;;)
        serve (tenant, own_listener (tenant));
    return NULL;
}

void receiver_begin (struct receiver *receiver)
{
    receiver->listener = -1;
    sem_init (&receiver->given, 0, 0);
}

bool receiver_take (struct tenant *tenant, int listener)
{
    struct receiver *receiver = &tenant->receiver;

    if (receiver->listener >= 0 || (receiver->is_started && !receiver->is_idle))
        return false;
    receiver->listener = listener;
    if (receiver->is_started) {
        receiver->is_idle = false;
        sem_post (&receiver->given);
    } else
        receiver->is_started = pthread_create (&receiver->thread, NULL, receive, tenant) == 0;
    if (receiver->is_started)
        return true;
    receiver->listener = -1;
    return false;
}

void receiver_drop (struct tenant *tenant, int listener)
{
    pthread_mutex_lock (&tenant->listeners_lock);
    if (tenant->receiver.listener == listener)
        tenant->receiver.listener = -1;
    pthread_mutex_unlock (&tenant->listeners_lock);
}
