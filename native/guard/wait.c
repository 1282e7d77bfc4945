/*
 * Waits for what a process of the container can make last as long as it likes: its memory can be a file's that does not answer, a
 * fork or an exec of a large one holds its locks for seconds, and the last close of a file of its can last. The tenant's thread waits
 * without the tenant's lock, so that the scheduler and queries of the tenant's status do not wait with it. A tenant must gain nothing
 * by not being watched meanwhile: after PATIENCE_NS its channels are off, until its thread goes on.
 *
 * wait_begin, wait_end and wait_close run in the tenant's thread; wait_check in the supervisor's main thread.
 */
#include "clock.h"
#include "guard_private.h"
#include "process.h"
#include "schedule.h"
#include "tenant.h"
#include "wait.h"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS 2000000000u
/* After which the main thread looks at a wait: most take some microseconds, and it sleeps. */
#define WATCH_NS 250000000

/* A supervisor has one tenant. ns 0: not any more. */
static void watch (const struct tenant *tenant, long ns)
{
    const struct itimerspec once = { .it_value = { .tv_nsec = ns } };

    (void) timerfd_settime (tenant->guard->waits_descriptor, 0, &once, NULL);
}

int guard_waits_descriptor (const struct guard *guard) { return guard->waits_descriptor; }

struct process *wait_begin (struct tenant *tenant, pid_t pid)
{
    struct process *current = tenant->current;

    /* A thread that has the lock meanwhile makes calls of its own, not those of the current notification. */
    tenant->current = NULL;
    tenant->waits_for = pid;
    /* guard_now to some milliseconds, at a fifth of its cost: this is done several times a call. */
    tenant->waits_since = clock_ns (CLOCK_MONOTONIC_COARSE);
    if (!tenant->is_watched) {
        tenant->is_watched = true;
        watch (tenant, WATCH_NS); /* or nothing looks whether it lasts: that the next thing is published has to wait, too */
    }
    tenant_unlock (tenant);
    return current;
}

void wait_unwatch (struct tenant *tenant)
{
    tenant->is_watched = false;
    watch (tenant, 0);
}

void wait_end (struct tenant *tenant, struct process *current)
{
    pthread_mutex_lock (&tenant->lock);
    tenant->waits_since = 0;
    tenant->current = current;
    if (tenant->is_unresponsive) {
        tenant->is_unresponsive = false;
        schedule_apply_all (tenant);
    }
}

void wait_close (struct tenant *tenant, pid_t pid, int file)
{
    struct process *current = wait_begin (tenant, pid);

    close (file);
    wait_end (tenant, current);
}

void wait_check (struct tenant *tenant, uint64_t now)
{
    tenant->is_watched = tenant->waits_since != 0;
    if (tenant->is_unresponsive || tenant->waits_since == 0 || now < tenant->waits_since + PATIENCE_NS)
        return;
    tenant->is_unresponsive = true;
    guard_note (tenant, RM_UNRESPONSIVE, 0, tenant->waits_for);
    schedule_apply_all (tenant);
}

struct timespec guard_time_in (uint64_t nanoseconds, clockid_t clock)
{
    struct timespec time;

    clock_gettime (clock, &time);
    nanoseconds += (uint64_t) time.tv_nsec;
    time.tv_sec += (time_t) (nanoseconds / 1000000000u);
    time.tv_nsec = (long) (nanoseconds % 1000000000u);
    return time;
}
