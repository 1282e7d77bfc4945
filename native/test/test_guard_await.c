/* Memory of a process that has just ended is waited for before it is held against another one (guard/refund.c, host.c), with a
 * driver of the test's own that lets go when it likes. */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/driver_usage.h"
#include "guard/guard_private.h"
#include "guard/host.h"
#include "guard/process.h"
#include "guard/refund.h"
#include "guard/retained.h"
#include "no_driver_usage.h"
#include "tap.h"

#include <sys/eventfd.h>

#define MILLISECOND UINT64_C (1000000)
#define SECOND (1000 * MILLISECOND)
#define MIB (UINT64_C (1) << 20)

/* How often it says that the dead still hold something, and how often it was asked. */
static unsigned holds, asked;
/* Two that let go at a time: that of slow_pid, and the other one. */
static pid_t slow_pid;
static uint64_t slow_until, fast_until;
static unsigned answer_takes; /* us */

long driver_usage_of_process (struct driver_usage *usage, const uint8_t uuid[16], pid_t pid, struct process_usage *found)
{
    (void) usage, (void) uuid;
    asked++;
    usleep (answer_takes);
    *found = (struct process_usage) { .own = asked <= holds ? MIB : 0 };
    if (slow_pid != 0)
        found->own = guard_now () < (pid == slow_pid ? slow_until : fast_until) ? MIB : 0;
    return 0;
}

static struct tenant *tenant;
static uint64_t got_lock_after;

static struct process *dead_process (void)
{
    struct process *process = &tenant->processes[3];

    *process = (struct process) { .serial = TENANT_PROCESSES + 3, .pid = 1, .pidfd = dup (0), .has_clients = true, .dead = true };
    tenant->process_end = TENANT_PROCESSES; /* the one before was forgotten */
    tenant->ended_at = guard_now ();
    asked = 0;
    return process;
}

static void *want_lock (void *argument)
{
    uint64_t begun = guard_now ();

    (void) argument;
    usleep (50000);
    pthread_mutex_lock (&tenant->lock);
    got_lock_after = guard_now () - begun;
    pthread_mutex_unlock (&tenant->lock);
    return NULL;
}

int main (void)
{
    static struct guard guard;
    struct process *process, *caller;
    pthread_t other;
    uint64_t begun;

    tenant = bare_tenant (&guard);
    guard.driver_usage = (struct driver_usage *) &guard;
    guard.has_driver_usage = true;
    pthread_mutex_lock (&tenant->lock);
    tenant->limits.gpu_count = 1;
    tenant->limits.gpus[0].memory = 10 * MIB;
    tenant->used[0] = 10 * MIB;
    caller = &tenant->processes[0];
    *caller = (struct process) { .serial = TENANT_PROCESSES, .pid = getpid (), .pidfd = dup (0) };
    tenant->current = caller;
    tenant->status.notifications = 1;

    tap_ok (!refund_is_expected (tenant) && !host_can_refresh (tenant), "no process has ended: nothing is waited for");
    tap_ok (!guard_host.reserve (tenant, 0, MIB) && !tenant->wants_refresh, "and what is too much is refused at once");

    process = dead_process ();
    holds = 3;
    tap_ok (!guard_host.reserve (tenant, 0, MIB) && tenant->wants_refresh, "one has: what is too much may not be, a moment later");
    begun = guard_now ();
    host_refresh (tenant);
    tap_ok (process->serial == 0 && asked > 3 && guard_now () - begun < 400 * MILLISECOND,
            "what it had is asked for until it is back");
    tap_ok (tenant->ended_at == 0 && !refund_is_expected (tenant), "and then nothing is waited for any more");
    tap_ok (tenant->current == caller, "the current call is its caller's, as before");

    process = dead_process ();
    holds = ~0u;
    tenant->status.notifications = 2;
    tap_ok (host_can_refresh (tenant), "another one has ended");
    pthread_create (&other, NULL, want_lock, NULL);
    begun = guard_now ();
    host_refresh (tenant);
    begun = guard_now () - begun;
    tap_ok (process->serial != 0 && begun >= 2 * SECOND && begun < 10 * SECOND,
            "what does not come back is waited for two seconds");
    pthread_mutex_unlock (&tenant->lock);
    pthread_join (other, NULL);
    pthread_mutex_lock (&tenant->lock);
    tap_ok (got_lock_after < begun - 100 * MILLISECOND, "in which others can have the tenant");
    tap_ok (!host_can_refresh (tenant), "once a call");
    tap_ok (!tenant->is_unresponsive && tenant->waits_since == 0, "and for nothing that looks like hiding");
    tenant->status.notifications = 3;
    tenant->ended_at = guard_now () - 2 * SECOND;
    tap_ok (!refund_is_expected (tenant), "nor is it waited for what another process may hold for ever");

    holds = 0;
    tenant->ended_at = guard_now ();
    host_refresh (tenant);
    tap_ok (process->serial == 0, "what is back is refunded");

    process = dead_process ();
    process[1] = *process;
    process[1].serial++;
    process[1].pidfd = dup (0);
    slow_pid = process[1].pid = 2;
    slow_until = guard_now () + 3 * SECOND;
    fast_until = guard_now () + SECOND * 3 / 2;
    holds = ~0u;
    tenant->wants_refresh = true;
    tenant->wanted = MIB;
    begun = guard_now ();
    host_refresh (tenant);
    begun = guard_now () - begun;
    tap_ok (process[0].serial == 0 && process[1].serial == 0 && begun >= 3 * SECOND && begun < 10 * SECOND,
            "of two that come back one after the other the second is waited for longer than two seconds");

    process = dead_process ();
    slow_until = fast_until = guard_now () + SECOND;
    tenant->wants_refresh = true;
    tenant->limits.gpus[0].memory = 12 * MIB;
    begun = guard_now ();
    host_refresh (tenant);
    tap_ok (process->serial != 0 && tenant->ended_at != 0 && guard_now () - begun < SECOND,
            "nothing is waited for where there is room");
    slow_until = fast_until = 0;
    host_refresh (tenant);

    struct epoll_event event = { .events = EPOLLIN };
    uint64_t one = 1;

    process = dead_process ();
    process[1] = *process;
    process[1].serial++;
    process[1].pid = 2;
    process[1].dead = false;
    process[1].pidfd = eventfd (0, 0); /* as one: readable at the end */
    event.data.u64 = process[1].serial;
    epoll_ctl (tenant->epoll, EPOLL_CTL_ADD, process[1].pidfd, &event);
    (void) !write (process[1].pidfd, &one, sizeof (one));
    begun = guard_now ();
    fast_until = begun + SECOND / 10;
    slow_until = begun + SECOND / 2;
    tenant->wants_refresh = true;
    tenant->limits.gpus[0].memory = 10 * MIB;
    host_refresh (tenant);
    tap_ok (process[0].serial == 0 && process[1].serial == 0 && guard_now () - begun >= SECOND / 2,
            "what one had that ends meanwhile is waited for, too");
    tap_ok (tenant->current == caller && caller->serial != 0, "by the caller, which is known still");
    slow_until = fast_until = 0;

    process = dead_process ();
    slow_pid = 0;
    holds = ~0u;
    answer_takes = 20000;
    tenant->wants_refresh = true;
    tenant->wake = eventfd (0, EFD_NONBLOCK);
    tenant_wake (tenant);
    begun = guard_now ();
    host_refresh (tenant);
    begun = guard_now () - begun;
    tap_ok (begun >= 2 * SECOND && asked * 20 * MILLISECOND * 4 < begun, "slow answers are asked for an eighth of the time");
    tap_ok (read (tenant->wake, &one, sizeof (one)) == sizeof (one), "the tenant's other thread is not kept from being woken");
    answer_takes = 400000;
    tenant->wants_refresh = true;
    tenant->ended_at = begun = guard_now ();
    asked = 0;
    host_refresh (tenant);
    tap_ok (guard_now () - begun < 4 * SECOND && asked > 2, "slower ones do not put off the end of the wait");
    answer_takes = 20000;
    atomic_store (&tenant->stop, true);
    tenant->ended_at = guard_now ();
    begun = guard_now ();
    host_refresh (tenant);
    tap_ok (guard_now () - begun < SECOND, "a tenant that ends waits for nothing");
    atomic_store (&tenant->stop, false);
    answer_takes = holds = 0;
    host_refresh (tenant);

    struct retained_piece own = { .serial = 0 }, left = { .next = &own, .serial = TENANT_PROCESSES };
    struct retained retained = { .pieces = &own };

    tap_ok (!retained_is_inherited (&retained), "what UVM has of a living process is not waited for");
    retained.pieces = &left;
    tap_ok (retained_is_inherited (&retained), "what it has of one that ended is");
    close (caller->pidfd);
    *caller = (struct process) { 0 };
    bare_end (tenant);
    return tap_done ();
}
