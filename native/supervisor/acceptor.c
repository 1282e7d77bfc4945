/*
 * nvc-monitor before it has a tenant: it accepts what runtimes send to DIRECTORY/listen, so that no listener is lost with an
 * agent that ends between accepting and starting a tenant. One acceptor at a time (DIRECTORY/accept.lock); it starts the next
 * one before it waits for the agent. A listener of a container that is guarded already goes to that container's monitor
 * without the agent.
 */
#include "container_state.h"
#include "drain.h"
#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* For a runtime's whole message; for the agent to admit a container, over all restarts of it. */
#define MESSAGE_MS 5000
#define ADMIT_MS 60000
#define RETRY_MS 20
/* For the lock of the acceptor before. */
#define LOCK_MS 2000
/* For a monitor's answer, before the next acceptor is started. */
#define ROUTE_MS 50
/* Between two looks whether the socket still has its name. */
#define LOOK_S 5
/* What /proc says of a seccomp listener's descriptor. */
#define LISTENER "anon_inode:seccomp notify"

struct arrival {
    struct container_state state;
    char *text; /* CONTAINER_STATE_MOST bytes of room */
    size_t size;
    int files[CHANNEL_DESCRIPTORS];
    unsigned count;
    int listener; /* one of files */
    int pidfd;    /* of state.pid */
};

/* What the next acceptor takes over. */
struct accepting {
    int socket, lock; /* socket -1: it has been started */
    char **argv;
};

static uint64_t now_ms (void)
{
    struct timespec now;

    clock_gettime (CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000u + (uint64_t) now.tv_nsec / 1000000u;
}

static void let_go (struct arrival *arrival)
{
    for (unsigned i = 0; i < arrival->count; i++)
        close (arrival->files[i]);
    if (arrival->pidfd >= 0)
        close (arrival->pidfd);
    arrival->count = 0;
    arrival->listener = arrival->pidfd = -1;
}

static bool is_listener (int file)
{
    char path[32], found[64];
    ssize_t size;

    snprintf (path, sizeof (path), "/proc/self/fd/%d", file);
    size = readlink (path, found, sizeof (found) - 1);
    found[size > 0 ? size : 0] = '\0';
    return strcmp (found, LISTENER) == 0;
}

/* NULL: the whole message is there, with one listener; otherwise what is wrong with it, "" for a connection without any. */
static const char *receive (int connection, struct arrival *arrival)
{
    uint64_t until = now_ms () + MESSAGE_MS;

    for (;;) {
        struct pollfd waited = { .fd = connection, .events = POLLIN };
        uint64_t now = now_ms ();
        unsigned room = CHANNEL_DESCRIPTORS - arrival->count;
        enum container_state_result result;
        ssize_t size;

        if (now >= until || poll (&waited, 1, (int) (until - now)) == 0)
            return "no whole message came within 5 s";
        size = channel_receive (connection, arrival->text + arrival->size, CONTAINER_STATE_MOST - arrival->size,
                                arrival->files + arrival->count, &room);
        if (size < 0)
            return "its message has too many descriptors";
        arrival->count += room;
        arrival->size += (size_t) size;
        if (size == 0)
            return arrival->size == 0 ? "" : "its message ends and is not JSON";
        result = container_state_parse (arrival->text, arrival->size, &arrival->state);
        if (result == STATE_COMPLETE)
            break;
        if (result == STATE_INVALID || arrival->size == CONTAINER_STATE_MOST)
            return "its message is not JSON, or longer than 1 MiB";
    }
    for (unsigned i = 0; i < arrival->count; i++)
        if (is_listener (arrival->files[i])) {
            if (arrival->listener >= 0)
                return "its message has several listeners";
            arrival->listener = arrival->files[i];
        }
    return arrival->listener < 0 ? "its message has no seccomp listener" : NULL;
}

static int connect_to (const char *directory, const char *name)
{
    struct sockaddr_un address;
    int place = channel_address (directory, name, &address), made = socket (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (place >= 0 && made >= 0 && connect (made, (struct sockaddr *) &address, sizeof (address)) != 0) {
        close (made);
        made = -1;
    }
    if (place >= 0)
        close (place);
    return made;
}

/* The next acceptor: no child of this process, so that neither waits for the other. */
static void start_next (struct accepting *accepting)
{
    int status = 0;
    pid_t child;

    if (accepting->socket < 0)
        return; /* it was started */
    child = fork ();
    if (child == 0) {
        pid_t second = fork ();

        if (second != 0)
            _exit (second < 0);
        setsid ();
        fcntl (accepting->socket, F_SETFD, 0);
        execv (accepting->argv[0], accepting->argv);
        _exit (127);
    }
    while (child > 0 && waitpid (child, &status, 0) < 0 && errno == EINTR)
        continue;
    /* What waits at the socket is lost with its last copy: where no process can be started now, it is tried again. */
    if (child < 0 || status != 0)
        return;
    close (accepting->lock);
    close (accepting->socket);
    accepting->socket = -1;
}

/* To the monitor of a container that is guarded already. One that does not answer at once delays no other container. */
static bool route (const struct monitor *self, const struct arrival *arrival, struct accepting *accepting)
{
    struct channel_listen request = { .head = { .operation = CHANNEL_LISTEN }, .first = arrival->state.first };
    struct channel_head answer = { .result = -EPIPE };
    char directory[2 * CHANNEL_PATH + 32];
    struct pollfd waited = { .events = POLLIN };
    unsigned none = 0;

    if (!arrival->state.is_running || arrival->state.id[0] == '\0')
        return false;
    snprintf (directory, sizeof (directory), "%s/containers/%s", self->directory, arrival->state.id);
    waited.fd = connect_to (directory, "monitor");
    if (waited.fd < 0)
        return false;
    if (channel_send (waited.fd, &request, sizeof (request), &arrival->listener, 1)) {
        if (poll (&waited, 1, ROUTE_MS) == 0)
            start_next (accepting);
        if (poll (&waited, 1, MESSAGE_MS) == 1)
            (void) channel_receive (waited.fd, &answer, sizeof (answer), NULL, &none);
    }
    close (waited.fd);
    return answer.result == 0;
}

/* The runtime's message and the listener, to the agent. A connection; -1: there is no agent now. */
static int request_admission (const struct monitor *self, const struct arrival *arrival)
{
    struct channel_admit request = { .head = { .operation = CHANNEL_ADMIT }, .descriptors = arrival->count };
    int connection = connect_to (self->directory, "admit"), files[2] = { -1, arrival->listener };
    bool is_sent = false;

    if (connection < 0)
        return -1;
    files[0] = memfd_create ("nvc-message", MFD_CLOEXEC);
    if (files[0] >= 0) {
        is_sent = pwrite (files[0], arrival->text, arrival->size, 0) == (ssize_t) arrival->size &&
                  channel_send (connection, &request, sizeof (request), files, 2);
        close (files[0]);
    }
    if (is_sent)
        return connection;
    close (connection);
    return -1;
}

/* For an agent that finds this process gone, and the listener with it (nvc/agent/admission.py): DIRECTORY/pending/PID says which process
 * is to be ended. */
static void note_pending (const struct monitor *self, const struct arrival *arrival)
{
    char path[2 * CHANNEL_PATH];
    int file;

    snprintf (path, sizeof (path), "%s/pending/%d", self->directory, (int) getpid ());
    if (arrival == NULL) {
        (void) unlink (path);
        return;
    }
    file = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return; /* a full /run: the container is admitted, or refused, all the same */
    dprintf (file, "%d %llu\n", (int) arrival->state.pid, (unsigned long long) container_start_time (arrival->state.pid));
    close (file);
}

enum admission { ADMISSION_START, ADMISSION_DONE, ADMISSION_REFUSED, ADMISSION_LATE };

/* Until an agent has decided. start, files, connection: for ADMISSION_START. */
static enum admission admit (const struct monitor *self, const struct arrival *arrival, struct accepting *accepting,
                             struct channel_start *start, int files[2], int *connection)
{
    uint64_t until = now_ms () + ADMIT_MS;

    while (now_ms () < until) {
        struct pollfd waited[2] = { { .events = POLLIN }, { .fd = arrival->listener } };
        unsigned count = 2;
        ssize_t size = -1;

        *connection = waited[0].fd = request_admission (self, arrival);
        start_next (accepting); /* while the agent decides */
        if (*connection >= 0 && poll (waited, 2, (int) (until - now_ms ())) > 0 && waited[0].revents != 0)
            size = channel_receive (*connection, start, sizeof (*start), files, &count);
        if (size == sizeof (*start) && count != 0 && start->head.operation == CHANNEL_START)
            return ADMISSION_START;
        for (unsigned i = 0; size > 0 && i < count; i++)
            close (files[i]);
        if (*connection >= 0)
            close (*connection);
        if (size >= (ssize_t) sizeof (start->head) && start->head.operation == CHANNEL_DONE)
            return ADMISSION_DONE;
        if (size >= (ssize_t) sizeof (start->head) && start->head.operation == CHANNEL_REFUSED)
            return ADMISSION_REFUSED;
        if ((waited[1].revents & POLLHUP) != 0 || (poll (waited + 1, 1, RETRY_MS) == 1 && (waited[1].revents & POLLHUP) != 0))
            return ADMISSION_DONE; /* every process that had the filter has ended */
    }
    return ADMISSION_LATE;
}

/* The listener is kept until no process is left that could be answered ENOSYS. */
static void refuse (const struct monitor *self, const struct arrival *arrival, const char *why)
{
    char more[CONTAINER_STATE_ID + 128];

    if (arrival->pidfd >= 0)
        syscall (SYS_pidfd_send_signal, arrival->pidfd, SIGKILL, NULL, 0);
    snprintf (more, sizeof (more), "\"container\": \"%s\", \"ended\": %d, \"message\": \"%s\"", arrival->state.id,
              (int) arrival->state.pid, why);
    monitor_log (self, "refused", more);
    drain_apart (arrival->listener);
}

/* A message that is none can have had listeners. */
static void drain_all (const struct arrival *arrival)
{
    for (unsigned i = 0; i < arrival->count; i++)
        if (is_listener (arrival->files[i]))
            drain_apart (arrival->files[i]);
}

/* A container's first listener, or one that no monitor took. The exit status. */
static int become_monitor (struct monitor *self, struct arrival *arrival, struct accepting *accepting)
{
    struct channel_start start;
    int files[2] = { -1, -1 }, connection, error;

    switch (admit (self, arrival, accepting, &start, files, &connection)) {
    case ADMISSION_DONE:
        note_pending (self, NULL);
        return 0;
    case ADMISSION_REFUSED:
        note_pending (self, NULL);
        if (self->supervisor >= 0)
            close (self->supervisor); /* which then ends */
        drain (arrival->listener);
        return 0;
    case ADMISSION_LATE:
        refuse (self, arrival, "no agent admitted it within a minute");
        note_pending (self, NULL);
        return 1;
    case ADMISSION_START:
        break;
    }
    for (unsigned i = 0; i < arrival->count; i++)
        if (arrival->files[i] != arrival->listener)
            close (arrival->files[i]);
    error = monitor_start (self, &start, files, arrival->listener);
    close (files[0]);
    if (files[1] >= 0)
        close (files[1]);
    free (arrival->text);
    note_pending (self, NULL);
    if (error == 0) {
        start_next (accepting);
        /* The agent starts one; this process keeps what waits at the socket. */
        if (accepting->socket >= 0)
            close (accepting->lock);
        return monitor_run (self, connection);
    }
    /* The agent ends the process, and says why. If it cannot any more, this process does. */
    channel_reply (connection, error);
    close (connection);
    refuse (self, arrival, "its supervisor did not start");
    return 1;
}

static volatile sig_atomic_t is_stopped;

static void stop (int number)
{
    (void) number;
    is_stopped = 1;
}

/* An agent that stops takes the socket's name away first; a service manager does with its socket unit. */
static bool has_name (const struct monitor *self)
{
    char path[2 * CHANNEL_PATH];

    snprintf (path, sizeof (path), "%s/listen", self->directory);
    return access (path, F_OK) == 0;
}

/* SIGTERM says that the socket has no name any more: what waits there is refused, and then this process ends. It comes only while
 * a connection is waited for. */
static int wait_for_connection (const struct monitor *self, int socket)
{
    struct pollfd waited = { .fd = socket, .events = POLLIN };
    struct timespec look = { .tv_sec = LOOK_S };
    sigset_t none;

    sigemptyset (&none);
    if (is_stopped) /* where the socket still has its name another acceptor serves it */
        return !has_name (self) && poll (&waited, 1, 0) == 1 ? accept4 (socket, NULL, NULL, SOCK_CLOEXEC) : -1;
    while (ppoll (&waited, 1, &look, &none) != 1 && !is_stopped)
        is_stopped = !has_name (self);
    return is_stopped ? wait_for_connection (self, socket) : accept4 (socket, NULL, NULL, SOCK_CLOEXEC);
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
        if (is_stopped || i == LOCK_MS / RETRY_MS)
            return -1;
        poll (NULL, 0, RETRY_MS);
    }
    if (!has_name (self))
        is_stopped = 1;
    size = snprintf (text, sizeof (text), "%-10d %-20llu\n", (int) getpid (), (unsigned long long) found.st_ino);
    return pwrite (lock, text, (size_t) size, 0) == size ? lock : -1;
}

int acceptor_run (struct monitor *self, int socket, char **argv)
{
    struct arrival arrival = { .listener = -1, .pidfd = -1, .text = malloc (CONTAINER_STATE_MOST) };
    struct sigaction action = { .sa_handler = stop };
    struct accepting accepting = { .socket = socket, .argv = argv };
    char more[160];
    sigset_t ends;

    sigemptyset (&ends);
    sigaddset (&ends, SIGTERM);
    sigaction (SIGTERM, &action, NULL);
    (void) monitor_prepare (self); /* if it cannot be now, it may be when it is needed */
    accepting.lock = take_lock (self, socket);
    sigprocmask (SIG_BLOCK, &ends, NULL);
    if (accepting.lock < 0 || arrival.text == NULL)
        return 1;
    for (;;) {
        int connection = wait_for_connection (self, socket);
        const char *problem;

        if (connection < 0) {
            if (is_stopped || errno == EINVAL || errno == EBADF)
                return 0;
            poll (NULL, 0, RETRY_MS);
            continue;
        }
        arrival.size = 0;
        problem = monitor_is_root (connection) ? receive (connection, &arrival) : "its user is not root";
        close (connection);
        if (problem != NULL) {
            snprintf (more, sizeof (more), "\"socket\": \"listen\", \"message\": \"%s\"", problem);
            if (*problem != '\0')
                monitor_log (self, "refused", more);
            drain_all (&arrival);
            let_go (&arrival);
            continue;
        }
        note_pending (self, &arrival);
        if (route (self, &arrival, &accepting)) {
            note_pending (self, NULL);
            if (accepting.socket < 0)
                return 0; /* the next one accepts by now */
        } else {
            arrival.pidfd = arrival.state.pid > 0 ? (int) syscall (SYS_pidfd_open, arrival.state.pid, 0) : -1;
            if (!is_stopped) {
                signal (SIGTERM, SIG_IGN);
                sigprocmask (SIG_UNBLOCK, &ends, NULL);
                return become_monitor (self, &arrival, &accepting);
            }
            refuse (self, &arrival, "the agent was stopped");
            note_pending (self, NULL);
        }
        let_go (&arrival);
    }
}
