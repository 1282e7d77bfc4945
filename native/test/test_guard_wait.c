/* A tenant's thread that waits for a process's memory keeps no other thread waiting, and gains its tenant nothing (guard/wait.c). */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/memory.h"
#include "guard/process.h"
#include "guard/schedule.h"
#include "guard/wait.h"
#include "tap.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#define SECOND UINT64_C (1000000000)

static struct tenant *tenant;
static pid_t child;
static bool was_found;

static void *look_for_it (void *argument)
{
    pthread_mutex_lock (&tenant->lock);
    tenant->current = &tenant->processes[0];
    was_found = process_of_thread (tenant, child) != NULL;
    was_found |= tenant->current != &tenant->processes[0];
    tenant->current = NULL;
    pthread_mutex_unlock (&tenant->lock);
    return argument;
}

static bool is_waiting (void)
{
    bool found = false;

    for (unsigned i = 0; i < 3000 && !found; i++) {
        usleep (10000);
        pthread_mutex_lock (&tenant->lock);
        found = tenant->waits_since != 0 && tenant->current == NULL;
        pthread_mutex_unlock (&tenant->lock);
    }
    return found;
}

/* From this process, whose memory can be read, for one that is gone. */
static bool read_late (void)
{
    uint8_t byte = 1, copy = 0;
    bool is_read;

    pthread_mutex_lock (&tenant->lock);
    tenant->current = &tenant->processes[0];
    is_read = memory_read (tenant, child, (uintptr_t) &byte, &copy, 1);
    tenant->current = NULL;
    pthread_mutex_unlock (&tenant->lock);
    return is_read;
}

/* Whether the main thread is woken to look at a wait. */
static bool is_due (const struct guard *guard, int milliseconds)
{
    struct pollfd waited = { .fd = guard_waits_descriptor (guard), .events = POLLIN };
    uint64_t value;

    return poll (&waited, 1, milliseconds) == 1 && read (waited.fd, &value, sizeof (value)) == sizeof (value);
}

int main (void)
{
    static struct guard guard;
    struct guard_event event = { 0 };
    pthread_t reader;
    char path[32];
    int pair[2];

    /* A monitor that a process keeps waiting. */
    if (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 || (child = fork ()) < 0)
        return 1;
    if (child == 0) {
        close (pair[0]);
        for (;;)
            pause ();
    }
    tenant = bare_tenant (&guard);
    privsep_begin (&guard.privsep, pair[1]);
    guard.waits_descriptor = timerfd_create (CLOCK_MONOTONIC, TFD_CLOEXEC);
    tenant->limits.gpu_count = 1;
    snprintf (path, sizeof (path), "/proc/%d/mem", (int) child);
    tenant->processes[0] = (struct process) { .pid = child,
                                              .pidfd = (int) syscall (SYS_pidfd_open, child, 0),
                                              .memory = open (path, O_RDWR | O_CLOEXEC) };
    pthread_create (&reader, NULL, look_for_it, NULL);
    tap_ok (is_waiting (), "a query of the tenant does not wait with its thread, and sees no current call");
    tap_ok (is_due (&guard, 5000) && !atomic_load (&guard.is_changed),
            "the main thread is woken when that lasts: nothing else looks at it; for most, which end at once, it sleeps");

    pthread_mutex_lock (&tenant->lock);
    wait_check (tenant, tenant->waits_since + SECOND);
    tap_ok (!tenant->is_unresponsive && !tenant->edges.frozen[0], "a second is nothing");
    wait_check (tenant, tenant->waits_since + 2 * SECOND);
    wait_check (tenant, tenant->waits_since + 3 * SECOND);
    tap_ok (tenant->is_unresponsive && tenant->edges.frozen[0], "after two its channels are off");
    schedule_apply (tenant, 0);
    tap_ok (tenant->edges.frozen[0], "whatever the scheduler sets");
    pthread_mutex_unlock (&tenant->lock);
    guard_events (&guard, &event, 1);
    tap_ok (event.reason == RM_UNRESPONSIVE && event.pid == (uint32_t) child && event.repeated == 0,
            "which is reported once, with the process");

    close (pair[0]);
    pthread_join (reader, NULL);
    tap_ok (!was_found, "when the monitor is gone the thread goes on, without what it asked for");
    tap_ok (!tenant->is_unresponsive && !tenant->edges.frozen[0] && tenant->waits_since == 0, "and its channels are on");
    pthread_mutex_lock (&tenant->lock);
    wait_check (tenant, guard_now () + 10 * SECOND);
    tap_ok (!tenant->is_unresponsive, "a thread that does not wait is never unresponsive");
    wait_end (tenant, wait_begin (tenant, child));
    pthread_mutex_unlock (&tenant->lock);
    tap_ok (tenant->is_watched && is_due (&guard, 5000), "one that has waited is looked at, for it may do so again");
    pthread_mutex_lock (&tenant->lock);
    wait_check (tenant, guard_now ());
    wait_end (tenant, wait_begin (tenant, child));
    wait_unwatch (tenant);
    pthread_mutex_unlock (&tenant->lock);
    tap_ok (!tenant->is_watched && !is_due (&guard, 400), "but not where it is said that it does not");

    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    tap_ok (read_late () == false, "whose number may be a stranger's by now, long after its call, is not read");
    bare_end (tenant);
    return tap_done ();
}
