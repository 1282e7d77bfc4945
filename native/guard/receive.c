/* See receive.h. receiver_begin and receiver_take run in the supervisor's main thread, receiver_drop in the tenant's other thread. */
#include "receive.h"
#include "clock.h"
#include "guard_private.h"
#include "notify.h"
#include "tenant.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND 1000000

void turn_begin (struct turn *turn)
{
    pthread_mutex_init (&turn->gate, NULL);
    pthread_mutex_init (&turn->mutex, NULL);
}

void turn_end (struct turn *turn)
{
    pthread_mutex_destroy (&turn->gate);
    pthread_mutex_destroy (&turn->mutex);
}

void turn_take (struct turn *turn)
{
    pthread_mutex_lock (&turn->gate);
    pthread_mutex_lock (&turn->mutex);
    pthread_mutex_unlock (&turn->gate);
}

void turn_give (struct turn *turn) { pthread_mutex_unlock (&turn->mutex); }

/* One of the other thread's, if there is one: that waits for its calls, but receives none without the turn, which this thread has. */
static void take_next (struct tenant *tenant)
{
    struct receiver *receiver = &tenant->receiver;

    if (receiver->listener < 0 && tenant->listener_count > 0) {
        receiver->listener = tenant->listeners[--tenant->listener_count];
        receiver->changes++;
    }
    receiver->is_idle = receiver->listener < 0;
}

static int own_listener (struct tenant *tenant)
{
    struct receiver *receiver = &tenant->receiver;
    int listener;

    for (;;) {
        turn_take (&tenant->turn);
        pthread_mutex_lock (&tenant->listeners_lock);
        take_next (tenant);
        listener = receiver->listener;
        receiver->is_taken = listener >= 0;
        pthread_mutex_unlock (&tenant->listeners_lock);
        turn_give (&tenant->turn);
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

/* 0 or errno. A descriptor from which nothing can be received is kept until there would be something. */
static int receive_one (int listener, struct seccomp_notif *notification)
{
    struct pollfd waited = { .fd = listener, .events = POLLIN };
    int error = notify_receive (listener, notification);

    if (error != 0 && !notify_is_passing (error))
        poll (&waited, 1, -1);
    return error;
}

/* Lets go of the listener if it is over. error: of its last RECV. */
static void check_listener (struct tenant *tenant, int listener, int error)
{
    if (error == 0 || (notify_is_passing (error) && has_processes (listener)))
        return;
    receiver_drop (tenant, listener);
    guard_changed (tenant->guard);
}

/* Receives the calls of this listener and answers them, until it has no process any more. */
static void serve (struct tenant *tenant, int listener)
{
    struct receiver *receiver = &tenant->receiver;
    struct seccomp_notif notification;
    int error = EAGAIN; /* of RECV: nothing was received yet */

    for (;;) {
        struct timespec delay = { 0 };
        uint64_t due;
        bool is_own;
        int held;

        /* Once the tenant has ended it is not given, and nothing of the tenant or the guard is used any more. */
        turn_take (&tenant->turn);
        if (atomic_load (&tenant->guard->is_abandoned)) {
            /* What was received waits until this process ends (supervisor.c). */
            turn_give (&tenant->turn);
            for (;;)
                poll (NULL, 0, -1);
        }
        due = tenant_look (tenant, error == 0 ? notify_answer (tenant, listener, &notification) : guard_now (), &held);
        if (due != 0 && due < atomic_load (&receiver->armed))
            tenant_wake (tenant);
        check_listener (tenant, listener, error);
        is_own = atomic_load (&receiver->listener) == listener;
        turn_give (&tenant->turn);
        if (!is_own)
            break;
        error = EAGAIN;
        delay.tv_nsec = held * MILLISECOND;
        if (held != 0)
            nanosleep (&delay, NULL);
        else
            error = receive_one (listener, &notification);
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
    if (atomic_load (&tenant->receiver.listener) == listener) {
        atomic_store (&tenant->receiver.listener, -1);
        tenant->receiver.changes++;
        if (!tenant->receiver.is_taken)
            close (listener);
        tenant->receiver.is_taken = false;
    }
    pthread_mutex_unlock (&tenant->listeners_lock);
    tenant_forget_listener (tenant, listener);
}
