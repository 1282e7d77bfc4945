/* See acceptor_watchdog.h. Starting and stopping run in the acceptor, which has one thread, the rest in the watchdog. */
#include "acceptor_watchdog.h"
#include "runtime_message.h"
#include "successor.h"

#include "guard/clock.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* For the successor to take the lock. */
#define SUCCESSOR_MS 100
/* Listeners and connections of one acceptor: it has one at a time. */
#define FOUND_MOST 16u

struct found {
    struct runtime_message message; /* its files: listeners */
    int connections[FOUND_MOST], socket;
    unsigned count;
};

/* A runtime's, or the socket at which runtimes connect: others of an acceptor keep packets apart (channel.h). */
static bool is_stream (int file, int *listens)
{
    int type = 0;
    socklen_t size = sizeof (type);

    return getsockopt (file, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockopt (file, SOL_SOCKET, SO_ACCEPTCONN, listens, &size) == 0;
}

/* All else is closed first: the successor, the supervisor that waits and the agent hear of the acceptor's end by it. */
static void find (struct found *found)
{
    DIR *directory = opendir ("/proc/self/fd");
    struct dirent *entry;
    int listens;

    while (directory != NULL && (entry = readdir (directory)) != NULL) {
        int file = atoi (entry->d_name);

        if (file <= STDERR_FILENO || file == dirfd (directory))
            continue;
        if (runtime_message_is_listener (file) && found->message.count < CHANNEL_DESCRIPTORS)
            found->message.files[found->message.count++] = file;
        else if (!is_stream (file, &listens))
            close (file);
        else if (listens)
            found->socket = file;
        else if (found->count < FOUND_MOST)
            found->connections[found->count++] = file;
    }
    if (directory != NULL)
        closedir (directory);
}

static void end_callers (const struct monitor *self, struct runtime_message *message)
{
    if (message->count != 0)
        monitor_log (self, "refused",
                     "\"message\": \"the acceptor that had its listener was killed: it is ended at its next call\"");
    runtime_message_drain (message);
    runtime_message_close (message);
}

static void watch (const struct monitor *self, int acceptor, char **argv)
{
    struct pollfd ended = { .fd = acceptor, .events = POLLIN };
    struct found found = { .message = { .listener = -1, .pidfd = -1 }, .socket = -1 };
    struct successor next = { .go = -1, .lock = -1, .argv = argv };

    prctl (PR_SET_NAME, "nvc-watchdog");
    while (poll (&ended, 1, -1) != 1)
        continue;
    find (&found);
    end_callers (self, &found.message);
    poll (NULL, 0, SUCCESSOR_MS);
    /* By the acceptor's successor, or by the acceptor where it was a successor that was killed. */
    if (!acceptor_lock_is_held (self, "accept.lock", false)) {
        next.socket = found.socket;
        successor_start (&next);
    }
    found.message.text = malloc (CONTAINER_STATE_MOST);
    for (unsigned i = 0; i < found.count && found.message.text != NULL; i++) {
        found.message.size = 0;
        (void) runtime_message_receive (found.connections[i], &found.message, guard_now_ms () + MESSAGE_MS);
        end_callers (self, &found.message);
    }
    _exit (0);
}

void acceptor_watchdog_start (struct monitor *self, char **argv)
{
    int own;

    if (self->acceptor_watchdog > 0 && waitpid (self->acceptor_watchdog, NULL, WNOHANG) == 0)
        return;
    self->acceptor_watchdog = 0;
    own = (int) syscall (SYS_pidfd_open, getpid (), 0);
    if (own < 0)
        return;
    /* No function of the C library leaves the table shared. Where arguments are in another order (CONFIG_CLONE_BACKWARDS), all of these are 0. */
    self->acceptor_watchdog = (pid_t) syscall (SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (self->acceptor_watchdog == 0)
        watch (self, own, argv);
    if (self->acceptor_watchdog > 0)
        self->acceptor_pidfd = own; /* the watchdog waits by it: it stays open */
    else
        close (own);
}

void acceptor_watchdog_stop (struct monitor *self)
{
    if (self->acceptor_watchdog <= 0)
        return;
    kill (self->acceptor_watchdog, SIGKILL);
    while (waitpid (self->acceptor_watchdog, NULL, 0) < 0 && errno == EINTR)
        continue;
    close (self->acceptor_pidfd);
    self->acceptor_watchdog = 0;
}
