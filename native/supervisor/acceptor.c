/*
 * nvc-monitor before it has a tenant: it accepts what runtimes send to DIRECTORY/listen, so that no listener is lost with an
 * agent that ends between accepting and starting a tenant. One acceptor at a time (DIRECTORY/accept.lock); it starts the next
 * one (successor.h) before it waits for the agent (admission.h). A listener of a container that is guarded already goes to that
 * container's monitor without the agent. Runs in the acceptor, which has one thread.
 */
#include "acceptor_watchdog.h"
#include "admission.h"
#include "channel.h"
#include "monitor.h"
#include "runtime_message.h"
#include "successor.h"

#include "guard/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Between two attempts at what is not to be had yet. */
#define RETRY_MS 20
/* For the lock of the acceptor before, which lets go of it when this one may go. */
#define LOCK_MS 2000
/* For a runtime's message, or a monitor's answer, before the next acceptor accepts; and at the longest for the answer. */
#define SOON_MS 20
#define ANSWER_MS 5000
/* Between two looks whether the socket still has its name. */
#define LOOK_S 5
/* Without a connection, after which the tenant's processes are made: not while the container before this one waits for its first answer. */
#define QUIET_MS 20

static volatile sig_atomic_t is_stopped;

static void stop (int number)
{
    (void) number;
    is_stopped = 1;
}

static int milliseconds_until (uint64_t until)
{
    uint64_t now = guard_now_ms ();

    return now < until ? (int) (until - now) : 0;
}

/* A runtime that is stopped in the middle of its message keeps no other container waiting. */
static const char *receive (int connection, struct runtime_message *message, struct successor *successor)
{
    uint64_t now = guard_now_ms ();
    const char *problem = runtime_message_receive (connection, message, now + SOON_MS);

    if (problem != runtime_message_late)
        return problem;
    if (!is_stopped)
        successor_start (successor);
    return runtime_message_receive (connection, message, now + MESSAGE_MS);
}

/* An answer of the monitor in `directory`, or -errno: ENOENT, ECONNREFUSED: it is gone; EAGAIN: what waits for it is full; EPIPE: it
 * took no further connection. */
static int ask_monitor (const char *directory, const struct runtime_message *message, struct successor *successor, uint64_t until)
{
    struct channel_listen request = { .head = { .operation = CHANNEL_LISTEN }, .first = message->state.first };
    struct channel_head answer = { .result = -EPIPE };
    struct pollfd waited[2] = { { .events = POLLIN }, { .fd = message->listener } };
    unsigned none = 0;

    waited[0].fd = channel_connect (directory, "monitor");
    if (waited[0].fd < 0)
        return waited[0].fd;
    if (channel_send (waited[0].fd, &request, sizeof (request), &message->listener, 1)) {
        if (poll (waited, 2, SOON_MS) == 0) {
            successor_start (successor);
            (void) poll (waited, 2, milliseconds_until (until));
        }
        if (waited[0].revents == 0) /* every process that had the filter has ended, or it hangs */
            answer.result = waited[1].revents != 0 ? 0 : -ETIMEDOUT;
        else if (channel_receive (waited[0].fd, &answer, sizeof (answer), NULL, &none) != sizeof (answer))
            answer.result = -EPIPE;
    }
    close (waited[0].fd);
    return answer.result;
}

enum route { ROUTE_TAKEN, ROUTE_AGENT, ROUTE_LATE };

/* To the monitor of a container that is guarded already. Where one is there the agent is not asked: as many listeners as a tenant that hangs
 * has wait here, each in a process of its own, and keep nothing from other containers. */
static enum route route (const struct monitor *self, const struct runtime_message *message, struct successor *successor)
{
    struct pollfd filter = { .fd = message->listener };
    uint64_t until = guard_now_ms () + ANSWER_MS;
    char directory[2 * CHANNEL_PATH + 32];
    int result;

    if (!message->state.is_running || message->state.id[0] == '\0')
        return ROUTE_AGENT;
    snprintf (directory, sizeof (directory), "%s/containers/%s", self->directory, message->state.id);
    while ((result = ask_monitor (directory, message, successor, until)) == -EAGAIN || result == -EPIPE) {
        successor_start (successor);
        if (poll (&filter, 1, RETRY_MS) == 1 && (filter.revents & POLLHUP) != 0)
            return ROUTE_TAKEN; /* every process that had the filter has ended */
        if (guard_now_ms () >= until)
            return ROUTE_LATE;
    }
    return result == 0 ? ROUTE_TAKEN : result == -ETIMEDOUT ? ROUTE_LATE : ROUTE_AGENT;
}

/* An agent that stops takes the socket's name away first; a service manager does with its socket unit. */
static bool has_name (const struct monitor *self)
{
    char path[2 * CHANNEL_PATH];

    snprintf (path, sizeof (path), "%s/listen", self->directory);
    return access (path, F_OK) == 0;
}

bool acceptor_lock_is_held (const struct monitor *self, const char *name, bool unknown)
{
    char path[2 * CHANNEL_PATH];
    bool is_held;
    int file;

    snprintf (path, sizeof (path), "%s/%s", self->directory, name);
    file = open (path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return unknown;
    /* Not LOCK_SH: the watchdogs of an acceptor and of its successor may look at once. One of them takes the other for the holder then, and one
     * acceptor is started and not two. */
    is_held = flock (file, LOCK_EX | LOCK_NB) != 0;
    close (file);
    return is_held;
}

/* At the second look without an agent: one that is restarted is there by then. absent: looks without one. */
static void look_for_agent (const struct monitor *self, unsigned *absent)
{
    /* The agent holds it for as long as it lives, and tries again where a look has it (nvc/agent/agent.py). */
    if (acceptor_lock_is_held (self, "lock", true)) {
        *absent = 0;
        return;
    }
    if (++*absent != 2)
        return;
    monitor_log (self, "warning",
                 "\"message\": \"no agent runs. Containers that run are guarded all the same, and denials are "
                 "counted, not logged; a container that starts waits for an agent, a minute at most, and is "
                 "ended then; attached processes were released\", \"hint\": \"systemctl start nvc-agent\"");
}

/* SIGTERM says that the socket has no name any more: what waits there is refused, and then this process ends. It comes only while
 * a connection is waited for. */
static int wait_for_connection (struct monitor *self, struct successor *successor)
{
    struct pollfd waited = { .fd = successor->socket, .events = POLLIN };
    struct timespec quiet = { .tv_nsec = QUIET_MS * 1000000 }, look = { .tv_sec = LOOK_S };
    bool is_prepared = false;
    unsigned absent = 0;
    sigset_t none;

    sigemptyset (&none);
    if (is_stopped) /* where the socket still has its name another acceptor serves it */
        return !has_name (self) && poll (&waited, 1, 0) == 1 ? accept4 (waited.fd, NULL, NULL, SOCK_CLOEXEC) : -1;
    while (ppoll (&waited, 1, is_prepared ? &look : &quiet, &none) != 1 && !is_stopped) {
        /* What cannot be made now may be when it is needed. */
        acceptor_watchdog_start (self, successor->argv);
        successor_prepare (successor);
        (void) monitor_prepare (self);
        is_stopped = is_prepared && !has_name (self);
        if (is_prepared && !is_stopped)
            look_for_agent (self, &absent);
        is_prepared = true;
    }
    return is_stopped ? wait_for_connection (self, successor) : accept4 (waited.fd, NULL, NULL, SOCK_CLOEXEC);
}

/* The lock's file says which process accepts on which socket: the agent starts another acceptor where that is not the one at DIRECTORY/listen. */
static int take_lock (const struct monitor *self, int socket)
{
    char path[2 * CHANNEL_PATH], text[64];
    struct stat found;
    int lock, size;

    snprintf (path, sizeof (path), "%s/accept.lock", self->directory);
    lock = open (path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0 || fstat (socket, &found) != 0)
        return -1;
    /* The one before lets go of it at once; behind any other one there is nothing to do. */
    for (unsigned i = 0; flock (lock, LOCK_EX | LOCK_NB) != 0; i++) {
        if (is_stopped || i == LOCK_MS)
            return -1;
        poll (NULL, 0, 1);
    }
    if (!has_name (self))
        is_stopped = 1;
    size = snprintf (text, sizeof (text), "%-10d %-20llu\n", (int) getpid (), (unsigned long long) found.st_ino);
    return pwrite (lock, text, (size_t) size, 0) == size ? lock : -1;
}

int acceptor_run (struct monitor *self, int socket, char **argv)
{
    struct runtime_message message = { .listener = -1, .pidfd = -1, .text = malloc (CONTAINER_STATE_MOST) };
    struct sigaction action = { .sa_handler = stop };
    struct successor successor = { .socket = socket, .go = -1, .argv = argv };
    char more[160];
    sigset_t ends;

    self->own_watch = privileged_watch (0); /* now: no container waits */
    acceptor_watchdog_start (self, argv);
    if (argv[4] != NULL && !successor_may_go (atoi (argv[4])))
        return 0;
    sigemptyset (&ends);
    sigaddset (&ends, SIGTERM);
    sigaction (SIGTERM, &action, NULL);
    successor.lock = take_lock (self, socket);
    sigprocmask (SIG_BLOCK, &ends, NULL);
    if (successor.lock < 0 || message.text == NULL)
        return 1;
    for (;;) {
        int connection = wait_for_connection (self, &successor);
        const char *problem;

        if (connection < 0) {
            if (is_stopped || errno == EINVAL || errno == EBADF) {
                successor_end (&successor);
                return 0;
            }
            poll (NULL, 0, RETRY_MS);
            continue;
        }
        message.size = 0;
        problem = channel_is_root (connection) ? receive (connection, &message, &successor) : "its user is not root";
        close (connection);
        if (problem != NULL) {
            snprintf (more, sizeof (more), "\"socket\": \"listen\", \"message\": \"%s\"", problem);
            if (*problem != '\0')
                monitor_log (self, "refused", more);
            runtime_message_drain (&message);
            runtime_message_close (&message);
            if (successor.socket < 0)
                return 0; /* the next one accepts by now */
            continue;
        }
        message.pidfd = message.state.pid > 0 ? (int) syscall (SYS_pidfd_open, message.state.pid, 0) : -1;
        admission_note_pending (self, &message);
        switch (route (self, &message, &successor)) {
        case ROUTE_TAKEN:
            break;
        case ROUTE_LATE:
            admission_refuse (self, &message, "its container's monitor does not answer");
            break;
        case ROUTE_AGENT:
            if (!is_stopped) {
                signal (SIGTERM, SIG_IGN);
                sigprocmask (SIG_UNBLOCK, &ends, NULL);
                return admission_run (self, &message, &successor);
            }
            admission_refuse (self, &message, "the agent was stopped");
            break;
        }
        admission_note_pending (self, NULL);
        runtime_message_close (&message);
        if (successor.socket < 0)
            return 0; /* the next one accepts by now */
    }
}
