/*
 * nvc-monitor: one process a tenant, root. It holds a copy of each of the tenant's listeners, so that the tenant's calls wait
 * and are never answered ENOSYS by the kernel; it starts the supervisor (supervisor.c), and when the supervisor ends without
 * a request to, it ends the tenant's containers. It holds nothing of another tenant.
 *
 * usage: nvc-monitor SOCKET DIRECTORY SUPERVISOR [GO]
 *        SOCKET: a descriptor. A listening socket: accept runtimes' listeners (acceptor.c), and become the monitor of the
 *        first container that the agent admits. Otherwise the agent's end of a connection, by which CHANNEL_START comes.
 *        DIRECTORY: the agent's. SUPERVISOR: path of the other program. GO: a descriptor, for an acceptor that waits (successor.h).
 */
#include "acceptor_watchdog.h"
#include "drain.h"
#include "monitor.h"
#include "own_cgroup.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MS 5000
/* Descriptors that are always waited for: the supervisor's, the server's, the watchdog's, the supervisor's pidfd. */
#define FIXED 4u
/* Without an agent: how often it is looked whether the tenant is over. */
#define ABANDONED_MS 2000

void monitor_log (const struct monitor *self, const char *event, const char *more)
{
    struct timespec now;

    clock_gettime (CLOCK_REALTIME, &now);
    dprintf (STDERR_FILENO, "{\"time\": %lld.%03ld, \"event\": \"%s\", \"tenant\": %u, \"pid\": %d%s%s}\n", (long long) now.tv_sec,
             now.tv_nsec / 1000000, event, self->start.tenant, (int) self->start.pid, *more != '\0' ? ", " : "", more);
}

/* One request to the supervisor, and its result. */
int monitor_ask (struct monitor *self, const void *packet, size_t size, const int *files, unsigned count)
{
    struct channel_head answer;
    struct pollfd waited = { .fd = self->supervisor, .events = POLLIN };
    unsigned none = 0;

    /* Answers come in order: those of requests that were given up come first. */
    for (; self->late_answers != 0; self->late_answers--) {
        if (poll (&waited, 1, ANSWER_MS) != 1)
            return -ETIMEDOUT;
        if (channel_receive (self->supervisor, &answer, sizeof (answer), NULL, &none) != sizeof (answer))
            return -EPIPE;
    }
    if (!channel_send (self->supervisor, packet, size, files, count))
        return -errno;
    if (poll (&waited, 1, ANSWER_MS) != 1) {
        self->late_answers++;
        return -ETIMEDOUT;
    }
    if (channel_receive (self->supervisor, &answer, sizeof (answer), NULL, &none) != sizeof (answer))
        return -EPIPE;
    return answer.result;
}

int monitor_hold (struct monitor *self, int listener)
{
    struct channel_listen request = { .head = { .operation = CHANNEL_LISTEN } };
    char more[64];
    int error;

    for (unsigned i = self->listener_count; i-- > 0;) {
        struct pollfd asked = { .fd = self->listeners[i] };

        /* Every process that had this filter has ended. */
        if (poll (&asked, 1, 0) == 1 && (asked.revents & POLLHUP) != 0) {
            close (self->listeners[i]);
            self->listeners[i] = self->listeners[--self->listener_count];
        }
    }
    if (self->listener_count == MONITOR_LISTENERS)
        return -EMFILE;
    self->listeners[self->listener_count++] = listener;
    error = monitor_ask (self, &request, sizeof (request), &listener, 1);
    if (error != 0)
        self->listener_count--;
    snprintf (more, sizeof (more), "\"listeners\": %u, \"error\": %d", self->listener_count, -error);
    monitor_log (self, "listener", more);
    return error;
}

/* result: -EBUSY: the counters are older, for the driver makes a call for the tenant. */
static bool send_state (const struct monitor *self, int connection, int result)
{
    struct channel_state state = { .head = { .operation = CHANNEL_REPLY, .result = result },
                                   .tenant = self->start.tenant,
                                   .version = PAGES_VERSION,
                                   .monitor = getpid (),
                                   .supervisor = self->pid };
    char path[32];
    int files[2] = { -1, self->published };
    bool is_sent;

    snprintf (path, sizeof (path), "/proc/self/fd/%d", self->counters);
    files[0] = open (path, O_RDONLY | O_CLOEXEC);
    if (files[0] < 0)
        return channel_reply (connection, -errno);
    is_sent = channel_send (connection, &state, sizeof (state), files, 2);
    close (files[0]);
    return is_sent;
}

static void unlink_socket (const struct monitor *self)
{
    char path[CHANNEL_PATH + 16];

    snprintf (path, sizeof (path), "%s/monitor", self->start.directory);
    if (self->start.directory[0] != '\0')
        (void) unlink (path);
}

/* ESTALE: the container of this name is another one by now. */
static int add_listener (struct monitor *self, const void *packet, int listener)
{
    struct channel_listen request;

    memcpy (&request, packet, sizeof (request));
    if (request.first != 0 && containers_find (&self->containers, request.first) == NULL)
        return -ESTALE;
    return monitor_hold (self, listener);
}

/* The watchdog and DIRECTORY/cgroup know the containers of their time. */
static void renew (struct monitor *self)
{
    monitor_write_cgroups (self);
    watchdog_renew (self);
}

/* One more container of the group, or a listener of one that is there: an agent that was killed before it heard of it, says it again.
 * It counts before its listener is answered. */
static int join (struct monitor *self, const void *packet, int listener)
{
    struct channel_container request;
    const struct container *added;
    int error;

    memcpy (&request, packet, sizeof (request));
    if ((self->start.tenant & GUARD_ATTACHED) != 0)
        return -EINVAL;
    error = containers_add (&self->containers, request.pid, request.start_time);
    if (error == -EEXIST)
        return monitor_hold (self, listener);
    if (error != 0)
        return error;
    added = containers_find (&self->containers, request.pid);
    renew (self);
    request.head = (struct channel_head) { .operation = CHANNEL_JOIN };
    error = monitor_ask (self, &request, sizeof (request), &added->kill, added->kill >= 0 ? 1 : 0);
    if (error == 0)
        error = monitor_hold (self, listener);
    if (error != 0) { /* the agent ends its process */
        containers_drop (&self->containers, request.pid);
        renew (self);
    }
    return error;
}

static int leave (struct monitor *self, const void *packet)
{
    static struct container_process known[COUNTERS_PROCESSES];
    struct channel_container request;
    int error;

    memcpy (&request, packet, sizeof (request));
    error = containers_remove (&self->containers, request.pid, known, monitor_known (self, known));
    if (error == -EBUSY)
        return error;
    if (error == 0)
        renew (self);
    /* A supervisor that hangs keeps a file of a cgroup that is gone; said again where the agent did not hear the answer. */
    (void) monitor_ask (self, &request, sizeof (request), NULL, 0);
    return 0;
}

/* A request on a connection. false: the connection is over. */
static bool serve (struct monitor *self, int connection)
{
    static struct channel_attach request;
    int files[CHANNEL_DESCRIPTORS], result = -EPROTO;
    unsigned count = CHANNEL_DESCRIPTORS;
    ssize_t size = channel_receive (connection, &request, sizeof (request), files, &count);
    bool is_kept = false;

    if (size < (ssize_t) sizeof (request.head))
        return false;
    switch (request.head.operation) {
    case CHANNEL_OPEN:
        result = monitor_ask (self, &(struct channel_head) { .operation = CHANNEL_PUBLISH }, sizeof (struct channel_head), NULL, 0);
        return send_state (self, connection, result);
    case CHANNEL_LISTEN:
        result = count == 1 && size == sizeof (struct channel_listen) ? add_listener (self, &request, files[0]) : -EINVAL;
        is_kept = result == 0;
        break;
    case CHANNEL_JOIN:
        result = count == 1 && size == sizeof (struct channel_container) ? join (self, &request, files[0]) : -EINVAL;
        is_kept = result == 0;
        break;
    case CHANNEL_LEAVE:
        result = size == sizeof (struct channel_container) ? leave (self, &request) : -EINVAL;
        break;
    case CHANNEL_ATTACH:
        result = size == sizeof (request) ? monitor_ask (self, &request, (size_t) size, files, count) : -EINVAL;
        if (result == 0)
            result = copies_add (&self->copies, &request, files, count);
        break;
    case CHANNEL_REMOVE:
        self->is_over = true;
        result = monitor_ask (self, &request, (size_t) size, NULL, 0);
        break;
    default:
        break;
    }
    for (unsigned i = is_kept ? 1 : 0; i < count; i++)
        close (files[i]);
    return channel_reply (connection, result);
}

static void accept_one (struct monitor *self)
{
    int connection = accept4 (self->server, NULL, NULL, SOCK_CLOEXEC);

    if (connection < 0)
        return;
    if (self->connection_count == MONITOR_CONNECTIONS || !channel_is_root (connection))
        close (connection);
    else
        self->connections[self->connection_count++] = connection;
}

/* Nothing of the tenant is left, and no agent is there that would say so. */
static bool is_abandoned (struct monitor *self)
{
    struct channel_head head = { .operation = CHANNEL_PUBLISH };

    for (unsigned i = 0; i < self->listener_count; i++) {
        struct pollfd asked = { .fd = self->listeners[i] };

        if (poll (&asked, 1, 0) != 1 || (asked.revents & POLLHUP) == 0)
            return false;
    }
    return monitor_ask (self, &head, sizeof (head), NULL, 0) == 0 && monitor_is_gone (self);
}

static void remove_tenant (struct monitor *self)
{
    struct channel_head head = { .operation = CHANNEL_REMOVE };

    self->is_over = true;
    (void) monitor_ask (self, &head, sizeof (head), NULL, 0);
}

int monitor_run (struct monitor *self, int connection)
{
    if (!privileged_drop ())
        monitor_log (self, "warning", "\"message\": \"the monitor keeps its capabilities\"");
    if (connection >= 0) {
        self->connections[self->connection_count++] = connection;
        if (!send_state (self, connection, 0))
            self->connection_count--;
    }
    while (!self->is_over) {
        struct pollfd waited[FIXED + MONITOR_CONNECTIONS + COPIES_PROCESSES] = { { .fd = self->supervisor },
                                                                                 { .fd = self->server, .events = POLLIN },
                                                                                 { .fd = self->watchdog },
                                                                                 { .fd = self->pidfd, .events = POLLIN } };
        nfds_t count = FIXED, processes;

        for (unsigned i = 0; i < self->connection_count; i++)
            waited[count++] = (struct pollfd) { .fd = self->connections[i], .events = POLLIN };
        processes = count;
        for (unsigned i = 0; i < self->copies.count; i++)
            waited[count++] = (struct pollfd) { .fd = self->copies.pidfds[i], .events = POLLIN };
        switch (poll (waited, count, self->connection_count == 0 ? ABANDONED_MS : -1)) {
        case -1:
            continue;
        case 0:
            if (is_abandoned (self))
                remove_tenant (self);
            continue;
        default:
            break;
        }
        if (waited[0].revents != 0 || waited[3].revents != 0)
            break;
        if (waited[2].revents != 0)
            watchdog_start (self); /* it was killed */
        for (nfds_t i = count; i-- > processes;)
            if (waited[i].revents != 0)
                copies_forget (&self->copies, (unsigned) (i - processes));
        for (unsigned i = self->connection_count; i-- > 0 && !self->is_over;)
            if (waited[FIXED + i].revents != 0 && !serve (self, self->connections[i])) {
                close (self->connections[i]);
                self->connections[i] = self->connections[--self->connection_count];
            }
        if (waited[1].revents != 0 && !self->is_over)
            accept_one (self);
        /* Without a directory nothing finds this process again: it ends with its only connection. */
        if (self->server < 0 && self->connection_count == 0 && !self->is_over)
            remove_tenant (self);
    }
    if (!self->is_over) {
        if ((self->start.tenant & GUARD_ATTACHED) == 0)
            monitor_end_container (self, "supervisor-died");
        else {
            copies_start (&self->copies);
            monitor_log (self, "supervisor-died", "");
        }
    }
    monitor_end_supervisor (self);
    /* A process that a listener starts has another parent than this process, and outlives it. */
    prctl (PR_SET_CHILD_SUBREAPER, 0);
    /* Left by counters that lie, or in no cgroup and no pid namespace of the container's. */
    for (unsigned i = 0; (!self->is_over || self->server >= 0) && i < self->listener_count; i++) {
        struct pollfd asked = { .fd = self->listeners[i] };

        if (poll (&asked, 1, 0) == 0 || (asked.revents & POLLHUP) == 0)
            drain_apart (self->listeners[i]);
    }
    unlink_socket (self);
    watchdog_stop (self);
    return self->is_over ? 0 : 1;
}

/* The agent's end of a connection: it starts a tenant without a listener. */
static int serve_agent (struct monitor *self, int connection)
{
    struct channel_start start;
    int files[2] = { -1, -1 }, error;
    unsigned count = 2;

    if (channel_receive (connection, &start, sizeof (start), files, &count) != sizeof (start) || count == 0 ||
        start.head.operation != CHANNEL_START)
        return 1;
    error = monitor_start (self, &start, files, -1);
    close (files[0]);
    if (files[1] >= 0)
        close (files[1]);
    if (error == 0)
        return monitor_run (self, connection);
    channel_reply (connection, error);
    return 1;
}

int main (int argc, char **argv)
{
    static struct monitor self = { .containers = CONTAINERS_NONE };
    struct rlimit none = { 0, 0 };
    char problem[OWN_CGROUP_MESSAGE], more[OWN_CGROUP_MESSAGE + 32];
    int socket, accepts = 0, status;
    socklen_t size = sizeof (accepts);

    if (argc != 4 && argc != 5) {
        fprintf (stderr, "usage: nvc-monitor SOCKET DIRECTORY SUPERVISOR [GO]\n(started by nvc-agent)\n");
        return 2;
    }
    self.supervisor = self.pidfd = self.privsep = self.server = self.counters = self.published = self.watchdog = self.own_watch =
        -1;
    socket = atoi (argv[1]);
    self.directory = argv[2];
    self.program = argv[3];
    prctl (PR_SET_NAME, "nvc-monitor");
    prctl (PR_SET_DUMPABLE, 0);
    setrlimit (RLIMIT_CORE, &none);
    proc_keep_from_oom_killer (); /* its end, or the supervisor's, ends a container */
    own_cgroup_enter (self.directory, problem); /* an acceptor, too: the tenant's cgroup is there before its first call */
    snprintf (more, sizeof (more), "\"message\": \"%s\"", problem);
    if (problem[0] != '\0')
        monitor_log (&self, "warning", more);
    signal (SIGPIPE, SIG_IGN);
    signal (SIGINT, SIG_IGN);
    signal (SIGHUP, SIG_IGN);
    if (getsockopt (socket, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) != 0) {
        fprintf (stderr, "nvc-monitor: descriptor %s is no socket: %s\n", argv[1], strerror (errno));
        return 2;
    }
    fcntl (socket, F_SETFD, FD_CLOEXEC);
    status = accepts ? acceptor_run (&self, socket, argv) : serve_agent (&self, socket);
    acceptor_watchdog_stop (&self); /* what it has is another process's by now, or nothing */
    return status;
}
