/*
 * nvc-monitor: one process a tenant, root. It holds a copy of each of the tenant's listeners, so that the tenant's calls wait
 * and are never answered ENOSYS by the kernel; it starts the supervisor (supervisor.c), and when the supervisor ends without
 * having been told to, it ends the container. It holds nothing of another tenant.
 *
 * usage: nvc-monitor SOCKET DIRECTORY SUPERVISOR
 *        SOCKET: a descriptor. A listening socket: accept runtimes' listeners (acceptor.c), and become the monitor of the
 *        first container that the agent admits. Otherwise the agent's end of a connection, by which CHANNEL_START comes.
 *        DIRECTORY: the agent's. SUPERVISOR: path of the other program.
 */
#include "drain.h"
#include "monitor.h"

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
#define STACK_USED ((uintptr_t) 1 << 20)
#define NICE_MOST 35u /* RLIMIT_NICE of nice -15 (getrlimit(2)) */
/* After SIGKILL, before listeners are closed: a thread in state D cannot end sooner than what it waits for. */
#define END_MS 5000
/* Without an agent: how often it is looked whether the tenant is over. */
#define ABANDONED_MS 2000

bool monitor_is_root (int socket)
{
    struct ucred peer;
    socklen_t size = sizeof (peer);

    return getsockopt (socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0;
}

void monitor_log (const struct monitor *self, const char *event, const char *more)
{
    struct timespec now;

    clock_gettime (CLOCK_REALTIME, &now);
    dprintf (STDERR_FILENO, "{\"time\": %lld.%03ld, \"event\": \"%s\", \"tenant\": %u, \"pid\": %d%s%s}\n", (long long) now.tv_sec,
             now.tv_nsec / 1000000, event, self->start.tenant, (int) self->start.pid, *more != '\0' ? ", " : "", more);
}

/* Its processes that called the driver, as the supervisor last published them. */
static unsigned known_processes (const struct monitor *self, struct container_process *known)
{
    struct counters *counters = malloc (sizeof (*counters));
    uint32_t index = 0, count = 0;

    if (counters != NULL && pread (self->counters, &index, sizeof (index), offsetof (struct counters_file, index)) == sizeof (index) &&
        index <= 1 &&
        pread (self->counters, counters, sizeof (*counters),
               (off_t) (offsetof (struct counters_file, counters) + index * sizeof (*counters))) == sizeof (*counters))
        count = counters->process_count < COUNTERS_PROCESSES ? counters->process_count : COUNTERS_PROCESSES;
    for (uint32_t i = 0; i < count; i++)
        known[i] = (struct container_process) { counters->processes[i].pid, counters->processes[i].start_time };
    free (counters);
    return count;
}

/* Returns when no process is left that could be answered ENOSYS. */
static void end_container (const struct monitor *self, const char *event)
{
    static struct container_process known[COUNTERS_PROCESSES];
    unsigned count = known_processes (self, known);
    const char *used = container_end (&self->container, known, count);
    char more[128];
    int waited = 0;

    for (; waited < END_MS && container_is_left (&self->container, known, count); waited++)
        poll (NULL, 0, 1);
    snprintf (more, sizeof (more), "\"ended_by\": \"%s\", \"ended_ms\": %d", used, waited);
    monitor_log (self, event, more);
}

bool monitor_prepare (struct monitor *self)
{
    int pair[2];
    char word[16];

    if (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    self->pid = fork ();
    if (self->pid == 0) {
        struct rlimit nice = { NICE_MOST, NICE_MOST };

        /* 3, so that it is known where the others begin: none of them is the supervisor's. */
        if (dup2 (pair[1], 3) != 3 || fcntl (3, F_SETFD, 0) != 0)
            _exit (1);
        (void) setrlimit (RLIMIT_NICE, &nice);
        snprintf (word, sizeof (word), "%d", 3);
        execl (self->program, "nvc-supervisor", word, (char *) NULL);
        _exit (127);
    }
    close (pair[1]);
    if (self->pid > 0) {
        self->supervisor = pair[0];
        return true;
    }
    close (pair[0]);
    return false;
}

/* One request to the supervisor, and its result. */
static int ask (struct monitor *self, const void *packet, size_t size, const int *files, unsigned count)
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
        return -EPIPE;
    if (poll (&waited, 1, ANSWER_MS) != 1) {
        self->late_answers++;
        return -ETIMEDOUT;
    }
    if (channel_receive (self->supervisor, &answer, sizeof (answer), NULL, &none) != sizeof (answer))
        return -EPIPE;
    return answer.result;
}

static int listen_at (const char *directory)
{
    struct sockaddr_un address;
    int place = channel_address (directory, "monitor", &address), made = socket (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    mode_t before = umask (0177);
    bool is_good = place >= 0 && (unlinkat (place, "monitor", 0) == 0 || errno == ENOENT) && made >= 0 && bind (made, (struct sockaddr *) &address, sizeof (address)) == 0 && listen (made, 64) == 0;

    umask (before);
    if (place >= 0)
        close (place);
    if (is_good)
        return made;
    if (made >= 0)
        close (made);
    return -1;
}

static int hold (struct monitor *self, int listener)
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
    error = ask (self, &request, sizeof (request), &listener, 1);
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
    int file;
    bool is_sent;

    snprintf (path, sizeof (path), "/proc/self/fd/%d", self->counters);
    file = open (path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return channel_reply (connection, -errno);
    is_sent = channel_send (connection, &state, sizeof (state), &file, 1);
    close (file);
    return is_sent;
}

/* For an agent that finds neither this process nor the supervisor (nvc/agent/ending.py): the inode and the path of cgroup.kill. */
static void write_cgroup (const struct monitor *self)
{
    char link[32], path[4096], name[CHANNEL_PATH + 16];
    struct stat found;
    ssize_t size;
    int file;

    if (self->container.kill < 0 || self->start.directory[0] == '\0')
        return;
    snprintf (link, sizeof (link), "/proc/self/fd/%d", self->container.kill);
    size = readlink (link, path, sizeof (path) - 1);
    snprintf (name, sizeof (name), "%s/cgroup", self->start.directory);
    file = open (name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (size > 0 && file >= 0 && fstat (self->container.kill, &found) == 0) {
        path[size] = '\0';
        dprintf (file, "%llu %s\n", (unsigned long long) found.st_ino, path);
    }
    if (file >= 0)
        close (file);
}

/* What it takes to open a container is needed once: paths and files of cgroups lay on the stack, a third of a megabyte. Each monitor stays
 * as long as its container. */
static void trim_stack (void)
{
    uintptr_t page = (uintptr_t) sysconf (_SC_PAGESIZE), end = ((uintptr_t) __builtin_frame_address (0) & ~(page - 1)) - page;

    (void) madvise ((void *) (end - STACK_USED), STACK_USED, MADV_DONTNEED);
}

int monitor_start (struct monitor *self, const struct channel_start *start, const int files_of_start[2], int listener)
{
    int files[3] = { files_of_start[0], -1, files_of_start[1] }, error;
    char more[64];

    self->start = *start;
    self->start.devices[CHANNEL_PATH - 1] = self->start.directory[CHANNEL_PATH - 1] = '\0';
    error = container_open (&self->container, start->pid, start->start_time);
    if (error != 0)
        return error;
    self->counters = counters_create ();
    if (self->counters < 0)
        return self->counters;
    if (self->supervisor < 0 && !monitor_prepare (self))
        return -errno;
    files[1] = self->counters;
    error = ask (self, &self->start, sizeof (self->start), files, files[2] >= 0 ? 3 : 2);
    if (error == 0 && self->start.directory[0] != '\0' && (self->server = listen_at (self->start.directory)) < 0)
        error = -errno;
    if (error == 0 && listener >= 0)
        error = hold (self, listener);
    if (error == 0) {
        snprintf (more, sizeof (more), "\"supervisor\": %d", (int) self->pid);
        monitor_log (self, "monitor", more);
        write_cgroup (self);
        trim_stack ();
    } else {
        /* It may wait for this process, or not answer at all. */
        (void) kill (self->pid, SIGKILL);
        while (waitpid (self->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    return error;
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
    if (request.first != 0 && self->start.pid != 0 && request.first != self->start.pid)
        return -ESTALE;
    return hold (self, listener);
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
        result = ask (self, &(struct channel_head) { .operation = CHANNEL_PUBLISH }, sizeof (struct channel_head), NULL, 0);
        return send_state (self, connection, result);
    case CHANNEL_LISTEN:
        result = count == 1 && size == sizeof (struct channel_listen) ? add_listener (self, &request, files[0]) : -EINVAL;
        is_kept = result == 0;
        break;
    case CHANNEL_ATTACH:
        result = size == sizeof (request) ? ask (self, &request, (size_t) size, files, count) : -EINVAL;
        if (result == 0)
            result = copies_add (&self->copies, &request, files, count);
        break;
    case CHANNEL_REMOVE:
        self->is_over = true;
        result = ask (self, &request, (size_t) size, NULL, 0);
        break;
    case CHANNEL_END:
        end_container (self, "container-ended");
        result = 0;
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
    if (self->connection_count == MONITOR_CONNECTIONS || !monitor_is_root (connection))
        close (connection);
    else
        self->connections[self->connection_count++] = connection;
}

/* Nothing of the tenant is left, and no agent is there that would say so. */
static bool is_abandoned (struct monitor *self)
{
    struct channel_head head = { .operation = CHANNEL_PUBLISH };
    uint32_t index = 0, is_gone = 0;

    for (unsigned i = 0; i < self->listener_count; i++) {
        struct pollfd asked = { .fd = self->listeners[i] };

        if (poll (&asked, 1, 0) != 1 || (asked.revents & POLLHUP) == 0)
            return false;
    }
    return ask (self, &head, sizeof (head), NULL, 0) == 0 &&
           pread (self->counters, &index, sizeof (index), offsetof (struct counters_file, index)) == sizeof (index) && index <= 1 &&
           pread (self->counters, &is_gone, sizeof (is_gone),
                  (off_t) (offsetof (struct counters_file, counters) + index * sizeof (struct counters) +
                           offsetof (struct counters, is_gone))) == sizeof (is_gone) &&
           is_gone != 0;
}

static void remove_tenant (struct monitor *self)
{
    struct channel_head head = { .operation = CHANNEL_REMOVE };

    self->is_over = true;
    (void) ask (self, &head, sizeof (head), NULL, 0);
}

int monitor_run (struct monitor *self, int connection)
{
    if (connection >= 0) {
        self->connections[self->connection_count++] = connection;
        if (!send_state (self, connection, 0))
            self->connection_count--;
    }
    while (!self->is_over) {
        struct pollfd waited[2 + MONITOR_CONNECTIONS + COPIES_PROCESSES] = { { .fd = self->supervisor }, { .fd = self->server, .events = POLLIN } };
        nfds_t count = 2, processes;

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
        if (waited[0].revents != 0)
            break;
        for (nfds_t i = count; i-- > processes;)
            if (waited[i].revents != 0)
                copies_forget (&self->copies, (unsigned) (i - processes));
        for (unsigned i = self->connection_count; i-- > 0 && !self->is_over;)
            if (waited[2 + i].revents != 0 && !serve (self, self->connections[i])) {
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
            end_container (self, "supervisor-died");
        else {
            copies_start (&self->copies);
            monitor_log (self, "supervisor-died", "");
        }
    }
    /* The agent says that the tenant is over, by counters that its supervisor wrote. */
    for (unsigned i = 0; self->is_over && self->server >= 0 && i < self->listener_count; i++) {
        struct pollfd asked = { .fd = self->listeners[i] };

        if (poll (&asked, 1, 0) == 0 || (asked.revents & POLLHUP) == 0)
            drain_apart (self->listeners[i]);
    }
    unlink_socket (self);
    while (waitpid (self->pid, NULL, self->is_over ? 0 : WNOHANG) < 0 && errno == EINTR)
        continue;
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
    static struct monitor self = { .supervisor = -1, .server = -1, .counters = -1, .container = CONTAINER_NONE };
    struct rlimit none = { 0, 0 };
    int socket, accepts = 0;
    socklen_t size = sizeof (accepts);

    if (argc != 4) {
        fprintf (stderr, "usage: nvc-monitor SOCKET DIRECTORY SUPERVISOR\n(started by nvc-agent)\n");
        return 2;
    }
    socket = atoi (argv[1]);
    self.directory = argv[2];
    self.program = argv[3];
    prctl (PR_SET_NAME, "nvc-monitor");
    prctl (PR_SET_DUMPABLE, 0);
    setrlimit (RLIMIT_CORE, &none);
    signal (SIGPIPE, SIG_IGN);
    signal (SIGINT, SIG_IGN);
    signal (SIGHUP, SIG_IGN);
    if (getsockopt (socket, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) != 0) {
        fprintf (stderr, "nvc-monitor: descriptor %s is no socket: %s\n", argv[1], strerror (errno));
        return 2;
    }
    fcntl (socket, F_SETFD, FD_CLOEXEC);
    return accepts ? acceptor_run (&self, socket, argv) : serve_agent (&self, socket);
}
