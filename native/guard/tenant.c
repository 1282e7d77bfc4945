/* A tenant's second thread ("nvc-guard-look"): hears of its processes' ends, looks at what can only be seen afterwards, and answers the
 * listeners that the first one (receive.c) does not have. What both do, each does with tenant->turn.
 * tenant_create, tenant_stop, tenant_destroy and tenant_listen run in the supervisor's main thread. */
#include "clock.h"
#include "edges.h"
#include "fair.h"
#include "guard_private.h"
#include "held_files.h"
#include "host.h"
#include "managed.h"
#include "notify.h"
#include "park.h"
#include "process.h"
#include "reach.h"
#include "reconcile.h"
#include "retained.h"
#include "schedule.h"
#include "space.h"
#include "tenant.h"
#include "unconfirmed.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Between two looks whether calls about a tenant that was removed are still in progress. */
#define USERS_NS 1000000
/* What its removal waits for its lock. */
#define REMOVE_LOCK_NS 5000000u
/* Between looks at processes of which epoll could not be told. */
#define UNWATCHED_MS 5
/* include/uapi/linux/seccomp.h since 6.6; older headers do not have it. */
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS _IOW ('!', 4, uint64_t)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (1UL << 0)
#endif

void tenant_forget_listener (struct tenant *tenant, int listener)
{
    park_drop (tenant, listener);
    pthread_mutex_lock (&tenant->lock);
    unconfirmed_forget (tenant);
    tenant_unlock (tenant);
}

static void listener_done (struct tenant *tenant, int listener)
{
    pthread_mutex_lock (&tenant->listeners_lock);
    for (unsigned i = 0; i < tenant->listener_count; i++)
        if (tenant->listeners[i] == listener) {
            tenant->listeners[i] = tenant->listeners[--tenant->listener_count];
            close (listener);
            break;
        }
    pthread_mutex_unlock (&tenant->listeners_lock);
    tenant_forget_listener (tenant, listener);
}

static bool is_own (struct tenant *tenant, int listener)
{
    bool is_found = false;

    pthread_mutex_lock (&tenant->listeners_lock);
    for (unsigned i = 0; i < tenant->listener_count; i++)
        is_found |= tenant->listeners[i] == listener;
    pthread_mutex_unlock (&tenant->listeners_lock);
    return is_found;
}

void tenant_wake (const struct tenant *tenant) { (void) eventfd_write (tenant->wake, 1); }

/* A process ended. What it had is refunded when the driver says that it holds nothing any more. */
static void process_ended (struct tenant *tenant, uint64_t serial)
{
    pthread_mutex_lock (&tenant->lock);
    struct process *process = process_by_serial (tenant, serial);

    if (process != NULL) {
        process_unwatch (tenant, process);
        process->dead = true;
        tenant->ended_at = guard_now ();
        process->look_at = 0;
        space_orphan (tenant, process);
        reconcile_at (tenant, process, guard_now ());
        /* It makes no call any more. What it won shows as long as its file is held. */
        if (process->is_suspect)
            reconcile_unconfirmed (tenant);
        unconfirmed_release (tenant, serial);
        held_files_process_ended (tenant, serial);
        rm_file_ended (tenant->rm, serial);
        client_files_release (tenant, process);
        retained_check_soon (tenant);
        if (!process->has_clients && process->managed == 0)
            process_forget (tenant, process);
    }
    tenant_unlock (tenant);
}

/* Of a tenant that makes no call what is looked at from time to time is looked at together: each time this thread, the monitor's and the main
 * one are woken. */
static void bring_together (struct tenant *tenant, uint64_t now)
{
    uint64_t most = now + tenant_quiet (tenant, now) / 2;

    if (tenant->look_at != 0 && tenant->look_at <= now)
        reconcile_before (tenant, now, most);
    else if (tenant->ask_at != 0 && tenant->ask_at <= now)
        managed_before (tenant, now, most);
}

/* Of two times; 0: there is none. */
static uint64_t earlier (uint64_t first, uint64_t second) { return first == 0 || (second != 0 && second < first) ? second : first; }

uint64_t tenant_look (struct tenant *tenant, uint64_t now, int *held)
{
    uint64_t next = tenant->parked_count != 0 ? park_look (tenant, now) : 0;

    pthread_mutex_lock (&tenant->lock);
    bring_together (tenant, now);
    managed_refresh (tenant, now);
    reconcile_due (tenant, now);
    next = earlier (next, reach_check (tenant, now));
    retained_check (tenant, now);
    next = earlier (next, edges_assert (tenant, now));
    next = earlier (next, schedule_again (tenant, now));
    next = earlier (next, tenant->retained.look_at);
    next = earlier (next, earlier (tenant->look_at, tenant->ask_at));
    *held = fair_wait (tenant, now);
    tenant_unlock (tenant);
    return next;
}

/* Until then, in ms. The other thread wakes this one for what is due earlier. */
static int sleep_until (struct tenant *tenant, uint64_t due)
{
    uint64_t now = guard_now ();

    atomic_store (&tenant->receiver.armed, due != 0 ? due : UINT64_MAX);
    if (due == 0)
        return -1;
    return due <= now ? 0 : (int) ((due - now + 999999) / 1000000);
}

/* Those of which epoll could not be told. */
static void look_at_unwatched (struct tenant *tenant, const struct process *caller)
{
    for (unsigned i = 0; tenant->unwatched != 0 && i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];
        struct pollfd ended = { .fd = process->pidfd, .events = POLLIN };

        if (process->serial != 0 && process->is_unwatched && process != caller && poll (&ended, 1, 0) == 1)
            process_ended (tenant, process->serial);
    }
}

void tenant_take_events (struct tenant *tenant, const struct process *caller)
{
    struct epoll_event events[32];
    int count = epoll_wait (tenant->epoll, events, 32, 0);

    for (int i = 0; i < count; i++)
        if (caller == NULL || events[i].data.u64 != caller->serial)
            process_ended (tenant, events[i].data.u64);
    look_at_unwatched (tenant, caller);
}

/* What is waited for: ends of processes, the other threads, then the listeners, unless the tenant has to wait for others. */
static nfds_t waited_for (struct tenant *tenant, struct pollfd *waited, int held)
{
    nfds_t count = 2;

    waited[0] = (struct pollfd) { .fd = tenant->epoll, .events = POLLIN };
    waited[1] = (struct pollfd) { .fd = tenant->wake, .events = POLLIN };
    pthread_mutex_lock (&tenant->listeners_lock);
    /* POLLHUP alone. */
    waited[count++] = (struct pollfd) { .fd = tenant->receiver.listener };
    for (unsigned i = 0; held == 0 && i < tenant->listener_count; i++)
        /* poll(2) always reports POLLHUP. */
        waited[count++] = (struct pollfd) { .fd = tenant->listeners[i],
                                            .events = atomic_load (&tenant->guard->is_abandoned) ? 0 : POLLIN };
    pthread_mutex_unlock (&tenant->listeners_lock);
    return count;
}

static void tenant_free (struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->listener_count; i++)
        close (tenant->listeners[i]);
    if (tenant->receiver.listener >= 0)
        close (tenant->receiver.listener);
    if (tenant->rm != NULL)
        rm_destroy (tenant->rm);
    retained_release (tenant);
    unconfirmed_release (tenant, 0);
    space_release (tenant);
    edges_end (&tenant->edges);
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        if (tenant->processes[i].serial != 0)
            process_forget (tenant, &tenant->processes[i]);
    if (tenant->epoll >= 0)
        close (tenant->epoll);
    if (tenant->wake >= 0)
        close (tenant->wake);
    sem_destroy (&tenant->ended);
    if (tenant->receiver.is_started)
        return; /* that thread may wait in the kernel, and finds the turn taken when it comes back */
    pthread_mutex_destroy (&tenant->lock);
    pthread_mutex_destroy (&tenant->listeners_lock);
    turn_end (&tenant->turn);
    free (tenant);
}

static void *run (void *argument)
{
    struct tenant *tenant = argument;
    struct pollfd waited[3 + TENANT_LISTENERS];
    eventfd_t woken;
    bool is_due = true; /* something beside notifications was looked at */
    bool is_timer = false; /* because its time had come, and nothing had happened */

    prctl (PR_SET_NAME, "nvc-guard-look");
    turn_take (&tenant->turn);
    while (!atomic_load (&tenant->stop)) {
        int held, timeout = sleep_until (tenant, tenant_look (tenant, guard_now (), &held));
        nfds_t count = waited_for (tenant, waited, held);
        unsigned changes = tenant->receiver.changes;

        if (held != 0 && (timeout < 0 || held < timeout))
            timeout = held;
        if (tenant->unwatched != 0 && (timeout < 0 || UNWATCHED_MS < timeout))
            timeout = UNWATCHED_MS;

        if (guard_has_news (tenant) || (is_due && !is_timer))
            guard_changed (tenant->guard);
        /* poll, because the kernel's "wake up on the same CPU" does not pass through an epoll descriptor. */
        turn_give (&tenant->turn);
        is_timer = is_due = poll (waited, count, timeout) <= 0;
        turn_take (&tenant->turn);
        look_at_unwatched (tenant, NULL);
        /* A listener that the other thread let go of is closed by it, and its number may be a new one's by now. */
        if (is_due || changes != tenant->receiver.changes)
            continue;
        if (waited[0].revents != 0) {
            tenant_take_events (tenant, NULL);
            is_due = true;
        }
        if (waited[1].revents != 0) {
            (void) eventfd_read (tenant->wake, &woken);
            is_due = true;
        }
        if ((waited[2].revents & POLLHUP) != 0) {
            receiver_drop (tenant, waited[2].fd);
            is_due = true;
        }
        for (nfds_t i = 3; i < count; i++)
            if (waited[i].revents != 0 && is_own (tenant, waited[i].fd) &&
                ((waited[i].revents & POLLIN) == 0 || !notify_handle (tenant, waited[i].fd))) {
                listener_done (tenant, waited[i].fd);
                is_due = true;
            }
    }
    /* The turn is not given back: the other thread waits for it, or for a call, until this process ends. */
    pthread_mutex_lock (&tenant->lock);
    schedule_apply_all (tenant); /* after tenant_stop no channels are off */
    tenant_unlock (tenant);
    sem_post (&tenant->ended);
    while (atomic_load (&tenant->users) != 0)
        nanosleep (&(struct timespec) { .tv_nsec = USERS_NS }, NULL);
    tenant_free (tenant);
    return NULL;
}

void *tenant_allocate (struct tenant *tenant, size_t count, size_t size)
{
    void *made = calloc (count, size);

    if (made != NULL)
        return made;
    guard_note (tenant, RM_NO_MEMORY, 0, 0);
    if (tenant->guard->late.act != NULL)
        tenant->guard->late.act (tenant->guard->late.context);
    _exit (1);
}

struct tenant *tenant_create (struct guard *guard, uint32_t id, const struct limits *limits, int *error)
{
    struct tenant *tenant = calloc (1, sizeof (*tenant));
    char version[sizeof (limits->driver) + 1] = { 0 };

    *error = -ENOMEM;
    if (tenant == NULL)
        return NULL;
    tenant->guard = guard;
    tenant->id = id;
    tenant->limits = *limits;
    atomic_store (&tenant->is_paused, (limits->flags & LIMITS_PAUSED) != 0);
    edges_begin (&tenant->edges);
    tenant->copy = -1;
    tenant->epoll = tenant->wake = -1;
    pthread_mutex_init (&tenant->lock, NULL);
    pthread_mutex_init (&tenant->listeners_lock, NULL);
    turn_begin (&tenant->turn);
    receiver_begin (&tenant->receiver);
    sem_init (&tenant->ended, 0, 0);
    memcpy (version, limits->driver, sizeof (limits->driver));
    tenant->abi = rm_abi_find (version);
    if (tenant->abi == NULL)
        *error = -EOPNOTSUPP;
    else if ((tenant->rm = rm_create (tenant->abi, RM_POSTURE_GUARD, &guard_host, tenant)) != NULL) {
        if ((limits->flags & LIMITS_GRAPHICS) != 0)
            rm_allow_graphics (tenant->rm);
        tenant->epoll = epoll_create1 (EPOLL_CLOEXEC);
        tenant->wake = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (tenant->epoll >= 0 && tenant->wake >= 0 && (errno = pthread_create (&tenant->runner, NULL, run, tenant)) == 0) {
            *error = 0;
            return tenant;
        }
        *error = errno != 0 ? -errno : -EAGAIN;
    }
    tenant_free (tenant);
    return NULL;
}

void tenant_stop (struct tenant *tenant)
{
    atomic_fetch_add (&tenant->users, 1); /* until tenant_destroy */
    atomic_store (&tenant->stop, true);
    atomic_store (&tenant->has_changes, true); /* the thread that has its lock thaws what is frozen */
    tenant_wake (tenant);
}

bool tenant_destroy (struct tenant *tenant, const struct timespec *until)
{
    pthread_t runner = tenant->runner;
    bool has_ended;

    while (!(has_ended = sem_timedwait (&tenant->ended, until) == 0) && errno == EINTR)
        continue;
    if (!has_ended && guard_lock (tenant, REMOVE_LOCK_NS)) {
        schedule_apply_all (tenant);
        retained_release (tenant);
        tenant_unlock (tenant);
    }
    guard_let_go (tenant);
    if (has_ended)
        pthread_join (runner, NULL);
    else
        pthread_detach (runner);
    return has_ended;
}

int tenant_listen (struct tenant *tenant, int listener)
{
    uint64_t flags = SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP;
    int own = fcntl (listener, F_DUPFD_CLOEXEC, 0);
    bool is_full = false;

    if (own < 0)
        return -errno;
    /* Waiter and guard run one after the other: waking on the same CPU saves most of the time (6.6; refused before). */
    ioctl (own, SECCOMP_IOCTL_NOTIF_SET_FLAGS, flags);
    pthread_mutex_lock (&tenant->listeners_lock);
    if (!receiver_take (tenant, own)) {
        is_full = tenant->listener_count + (tenant->receiver.listener >= 0) == TENANT_LISTENERS;
        if (!is_full)
            tenant->listeners[tenant->listener_count++] = own;
    }
    pthread_mutex_unlock (&tenant->listeners_lock);
    if (is_full) {
        close (own);
        return -EMFILE;
    }
    tenant_wake (tenant);
    return 0;
}
