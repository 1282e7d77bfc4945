/*
 * How a tenant's containers are ended when its supervisor or its monitor dies. The watchdog is a process of the monitor's that only waits for
 * its end: the supervisor has not the rights to end a container.
 *
 * monitor_end_container runs in the monitor and in the watchdog, the rest in the monitor.
 */
#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* After SIGKILL, before listeners are closed: a thread in state D cannot end sooner than what it waits for. */
#define END_MS 5000

/* The valid counters, as the supervisor last published them, from `at` on. */
static bool read_counters (const struct monitor *self, void *to, size_t size, size_t at)
{
    uint32_t index = 0;

    return pread (self->counters, &index, sizeof (index), offsetof (struct counters_file, index)) == sizeof (index) && index <= 1 &&
           pread (self->counters, to, size,
                  (off_t) (offsetof (struct counters_file, counters) + index * sizeof (struct counters) + at)) == (ssize_t) size;
}

bool monitor_is_gone (const struct monitor *self)
{
    uint32_t is_gone = 0;

    return read_counters (self, &is_gone, sizeof (is_gone), offsetof (struct counters, is_gone)) && is_gone != 0;
}

unsigned monitor_known (const struct monitor *self, struct container_process *known)
{
    struct counters *counters = malloc (sizeof (*counters));
    uint32_t count = 0;

    if (counters != NULL && read_counters (self, counters, sizeof (*counters), 0))
        count = counters->process_count < COUNTERS_PROCESSES ? counters->process_count : COUNTERS_PROCESSES;
    for (uint32_t i = 0; i < count; i++)
        known[i] = (struct container_process) { counters->processes[i].pid, counters->processes[i].start_time };
    free (counters);
    return count;
}

/* Returns when no process is left that could be answered ENOSYS. */
void monitor_end_container (const struct monitor *self, const char *event)
{
    static struct container_process known[COUNTERS_PROCESSES];
    unsigned count = monitor_known (self, known);
    const char *used = containers_end (&self->containers, known, count);
    char more[128];
    int waited = 0;

    for (; waited < END_MS && containers_are_left (&self->containers, known, count); waited++)
        poll (NULL, 0, 1);
    snprintf (more, sizeof (more), "\"containers\": %u, \"ended_by\": \"%s\", \"ended_ms\": %d", self->containers.count, used,
              waited);
    monitor_log (self, event, more);
}

/* All descriptors but these few: a copy of the monitor's end of a socket would hide its death. */
static void close_others (const struct monitor *self, int waits)
{
    static int kept[3 + 6 * CONTAINERS_MOST] = { STDERR_FILENO };
    unsigned count = 1;
    int from = 0, next;

    kept[count++] = waits;
    kept[count++] = self->counters;
    for (unsigned i = 0; i < self->containers.count; i++) {
        const struct container *one = &self->containers.list[i];
        const int files[] = { one->pidfd, one->kill, one->events, one->directory, one->freezer, one->mounts };

        memcpy (kept + count, files, sizeof (files));
        count += sizeof (files) / sizeof (files[0]);
    }
    do {
        next = -1;
        for (unsigned i = 0; i < count; i++)
            if (kept[i] >= from && (next < 0 || kept[i] < next))
                next = kept[i];
        if (next != from)
            (void) syscall (SYS_close_range, from, next < 0 ? ~0u : (unsigned) next - 1, 0);
        from = next + 1;
    } while (next >= 0);
}

static void watch (struct monitor *self, int waits)
{
    char byte;
    ssize_t size;

    prctl (PR_SET_NAME, "nvc-watchdog");
    containers_copied (&self->containers);
    close_others (self, waits);
    if (!privileged_drop ())
        monitor_log (self, "warning", "\"message\": \"the watchdog keeps its capabilities\"");
    while ((size = read (waits, &byte, 1)) < 0 && errno == EINTR)
        continue;
    if (size == 0) /* it did not say that the tenant is over */
        monitor_end_container (self, "monitor-died");
    _exit (0);
}

void watchdog_start (struct monitor *self)
{
    int ends[2];

    if (self->watchdog >= 0)
        close (self->watchdog);
    self->watchdog = -1;
    while (self->watchdog_pid > 0 && waitpid (self->watchdog_pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    self->watchdog_pid = 0;
    if ((self->start.tenant & GUARD_ATTACHED) != 0 || pipe2 (ends, O_CLOEXEC) != 0)
        return;
    self->watchdog_pid = fork ();
    if (self->watchdog_pid == 0)
        watch (self, ends[0]);
    close (ends[0]);
    self->watchdog = ends[1];
    if (self->watchdog_pid > 0)
        return;
    close (ends[1]);
    self->watchdog = -1;
}

static void stop (int watchdog, pid_t pid)
{
    ssize_t written = write (watchdog, "", 1);

    (void) written; /* where it was killed, there is no reader */
    close (watchdog);
    while (waitpid (pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

void watchdog_renew (struct monitor *self)
{
    int before = self->watchdog;
    pid_t pid = self->watchdog_pid;

    self->watchdog = -1;
    self->watchdog_pid = 0;
    watchdog_start (self);
    if (self->watchdog < 0) { /* no process can be made now: that one knows the containers of before */
        self->watchdog = before;
        self->watchdog_pid = pid;
    } else if (before >= 0)
        stop (before, pid);
}

void watchdog_stop (struct monitor *self)
{
    if (self->watchdog >= 0)
        stop (self->watchdog, self->watchdog_pid);
    self->watchdog = -1;
    self->watchdog_pid = 0;
}
