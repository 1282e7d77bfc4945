/* See admission.h. Runs in the acceptor that becomes the tenant's monitor, which has one thread until the monitor starts. */
#include "admission.h"
#include "acceptor_watchdog.h"
#include "channel.h"
#include "drain.h"
#include "proc.h"

#include "guard/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* For the agent to admit a container, over all restarts of it. A test takes less. */
#ifndef ADMIT_MS
#define ADMIT_MS 60000
#endif
/* An agent that is restarted is back by then; its absence is said once. */
#define RESTART_MS 2000
/* Between two requests to the agent. */
#define RETRY_MS 20

/* The runtime's message and the listener, to the agent. A connection; -1: there is no agent now. */
static int request_admission (const struct monitor *self, const struct runtime_message *message)
{
    struct channel_admit request = { .head = { .operation = CHANNEL_ADMIT }, .descriptors = message->count };
    int files[2] = { memfd_create ("nvc-message", MFD_CLOEXEC), message->listener }, connection = -1;
    bool is_sent = false;

    if (files[0] < 0)
        return -1;
    if (pwrite (files[0], message->text, message->size, 0) == (ssize_t) message->size) {
        connection = channel_connect (self->directory, "admit"); /* it wakes the agent */
        is_sent = connection >= 0 && channel_send (connection, &request, sizeof (request), files, 2);
    }
    close (files[0]);
    if (is_sent || connection < 0)
        return connection;
    close (connection);
    return -1;
}

void admission_note_pending (const struct monitor *self, const struct runtime_message *message)
{
    char path[2 * CHANNEL_PATH];
    int file;

    snprintf (path, sizeof (path), "%s/pending/%d", self->directory, (int) getpid ());
    if (message == NULL) {
        (void) unlink (path);
        return;
    }
    file = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return; /* a full /run: the container is admitted, or refused, all the same */
    dprintf (file, "%d %llu\n", (int) message->state.pid, (unsigned long long) proc_start_time (message->state.pid));
    close (file);
}

/* While the agent decides: what the monitor will want, if the agent calls the same process the first one. And where the rest of the container
 * is, for an agent that finds this process dead: its first process may have children. */
static void open_container (struct monitor *self, const struct runtime_message *message)
{
    pid_t first = message->state.first > 0 ? message->state.first : message->state.pid;
    char path[2 * CHANNEL_PATH];
    int file;

    if (containers_add (&self->containers, first, proc_start_time (first)) != 0 || message->state.is_running)
        return;
    snprintf (path, sizeof (path), "%s/pending/%d", self->directory, (int) getpid ());
    file = open (path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (file >= 0) {
        monitor_write_cgroup (file, self->containers.list);
        close (file);
    }
}

enum admission { ADMISSION_START, ADMISSION_DONE, ADMISSION_REFUSED, ADMISSION_LATE };

static void log_waiting (const struct monitor *self, const struct runtime_message *message)
{
    char more[CONTAINER_STATE_ID + 256];

    snprintf (more, sizeof (more),
              "\"container\": \"%s\", \"message\": \"no agent runs: the container waits for one, a "
              "minute at most, and is ended then\", \"hint\": \"systemctl start nvc-agent\"",
              message->state.id);
    monitor_log (self, "warning", more);
}

/* Until an agent has decided. start, files, connection: for ADMISSION_START. */
static enum admission admit (struct monitor *self, const struct runtime_message *message, struct successor *successor,
                             struct channel_start *start, int files[2], int *connection)
{
    uint64_t since = guard_now_ms (), until = since + ADMIT_MS;
    bool is_said = false;

    while (guard_now_ms () < until) {
        struct pollfd waited[2] = { { .events = POLLIN }, { .fd = message->listener } };
        unsigned count = 2;
        ssize_t size = -1;

        *connection = waited[0].fd = request_admission (self, message);
        successor_start (successor); /* while the agent decides */
        if (self->containers.count == 0)
            open_container (self, message);
        (void) monitor_prepare (self);
        if (*connection < 0 && !is_said && guard_now_ms () - since > RESTART_MS) {
            is_said = true;
            log_waiting (self, message);
        }
        if (*connection >= 0 && poll (waited, 2, (int) (until - guard_now_ms ())) > 0 && waited[0].revents != 0)
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

void admission_refuse (const struct monitor *self, const struct runtime_message *message, const char *why)
{
    struct pollfd filter = { .fd = message->listener };
    char more[CONTAINER_STATE_ID + 128];

    if (poll (&filter, 1, 0) == 1 && (filter.revents & POLLHUP) != 0)
        return; /* every process that had the filter has ended, by itself */
    if (message->pidfd >= 0)
        syscall (SYS_pidfd_send_signal, message->pidfd, SIGKILL, NULL, 0);
    snprintf (more, sizeof (more), "\"container\": \"%s\", \"ended\": %d, \"message\": \"%s\"", message->state.id,
              (int) message->state.pid, why);
    monitor_log (self, "refused", more);
    drain_apart (message->listener);
}

int admission_run (struct monitor *self, struct runtime_message *message, struct successor *successor)
{
    struct channel_start start;
    int files[2] = { -1, -1 }, connection, error;

    switch (admit (self, message, successor, &start, files, &connection)) {
    case ADMISSION_DONE:
        admission_note_pending (self, NULL);
        return 0;
    case ADMISSION_REFUSED:
        admission_note_pending (self, NULL);
        if (self->supervisor >= 0)
            close (self->supervisor); /* which then ends */
        drain (message->listener);
        return 0;
    case ADMISSION_LATE:
        admission_refuse (self, message, "no agent admitted it within a minute");
        admission_note_pending (self, NULL);
        return 1;
    case ADMISSION_START:
        break;
    }
    for (unsigned i = 0; i < message->count; i++)
        if (message->files[i] != message->listener)
            close (message->files[i]);
    successor_start (successor); /* where it could not be before; from the tenant's start on it would be this monitor's child */
    error = monitor_start (self, &start, files, message->listener);
    close (files[0]);
    if (files[1] >= 0)
        close (files[1]);
    free (message->text);
    admission_note_pending (self, NULL);
    if (error == 0) {
        acceptor_watchdog_stop (self);
        /* The agent starts one; this process keeps what waits at the socket. */
        if (successor->socket >= 0)
            close (successor->lock);
        return monitor_run (self, connection);
    }
    /* The agent ends the process, and says why. If it cannot any more, this process does. */
    channel_reply (connection, error);
    close (connection);
    admission_refuse (self, message, "its supervisor did not start");
    return 1;
}
