/* When the driver is asked what a process holds (guard/reconcile.c), with a driver that says nothing and a clock of the test's own. */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/guard_private.h"
#include "guard/process.h"
#include "guard/reconcile.h"
#include "guard/unconfirmed.h"
#include "rm/state.h"
#include "tap.h"

#include <fcntl.h>
#include <unistd.h>

#define MILLISECOND UINT64_C (1000000)
#define SECOND (1000 * MILLISECOND)

static uint64_t clock_now = 1000 * SECOND;

uint64_t guard_now (void) { return clock_now; }

static struct tenant *tenant;

static struct process *process_at (unsigned place)
{
    struct process *process = &tenant->processes[place];

    *process = (struct process) { .serial = TENANT_PROCESSES + place, .pid = getpid (), .pidfd = -1, .has_clients = true };
    return process;
}

static void hold (uint32_t client)
{
    tenant->unconfirmed[tenant->unconfirmed_count++] = (struct unconfirmed_file) { .file = open ("/dev/null", O_RDONLY | O_CLOEXEC),
                                                                                   .client = client,
                                                                                   .serial = process_at (9)->serial };
}

/* Of a raced call's client: 0 is one that the call makes, 44 one that the ledger does not have. */
static void free_clients (struct guard *guard)
{
    struct process *ended = process_at (5), *other = process_at (6);
    struct {
        int file;
        uint32_t client;
        bool is_counted;
    } closing = { 0 };

    if (pipe (guard->closing) != 0)
        return;
    ended->dead = true;
    tracker_client (tenant->rm, ended->serial, 41);
    tracker_client (tenant->rm, other->serial, 42);
    rm_move_client (tenant->rm, 41, other->serial);
    hold (0);
    hold (42);
    hold (44);
    tap_ok (!unconfirmed_free_clients (tenant) && tenant->unconfirmed_count == 3, "the client of a living process is not freed");
    hold (41);
    tap_ok (unconfirmed_free_clients (tenant) && tenant->unconfirmed_count == 3 &&
                read (guard->closing[0], &closing, sizeof (closing)) == sizeof (closing) && closing.client == 41,
            "that of an ended one is, whichever process uses it since");
    close (closing.file);
    for (unsigned i = 0; i < 3; i++)
        close (tenant->unconfirmed[i].file);
    tenant->unconfirmed_count = 0;
    close (guard->closing[0]);
    close (guard->closing[1]);
    guard->closing[0] = guard->closing[1] = -1;
    rm_close_file (tenant->rm, other->serial);
    for (unsigned i = 5; i < 10; i++)
        tenant->processes[i] = (struct process) { 0 };
}

int main (void)
{
    static struct guard guard;
    struct process *process;
    uint64_t now = guard_now ();

    tenant = bare_tenant (&guard);
    pthread_mutex_lock (&tenant->lock);
    tenant->limits.gpu_count = 1;
    atomic_store (&tenant->called_at, now); /* tenants that make no call: test_guard_quiet.c */
    free_clients (&guard);
    process = process_at (0);

    reconcile_at (tenant, process, now + MILLISECOND);
    reconcile_at (tenant, process, now + 2 * MILLISECOND);
    tap_ok (process->ask_at == now + MILLISECOND && tenant->ask_at == process->ask_at,
            "a process that gives a reason again and again puts nothing off");
    reconcile_at (tenant, process, now);
    tap_ok (process->ask_at == now && tenant->ask_at == now, "a reason to ask sooner counts");

    reconcile_due (tenant, now);
    tap_ok (process->ask_at == now + SECOND && tenant->ask_at == process->ask_at,
            "when nothing of its is under way, it is asked about a second later");
    reconcile_due (tenant, now + MILLISECOND);
    tap_ok (process->ask_at == now + SECOND, "and not before");

    for (unsigned i = 1; i < 16; i++)
        process_at (i)->ask_at = now + SECOND;
    reconcile_due (tenant, now + SECOND);
    tap_ok (process->ask_at == now + 5 * SECOND, "of sixteen processes each is asked about every four seconds");
    reconcile_at (tenant, process, now + SECOND);
    tap_ok (process->ask_at == now + SECOND, "and at once where there is a reason");
    for (unsigned i = 16; i < TENANT_PROCESSES; i++)
        process_at (i)->has_clients = i < 64;
    reconcile_due (tenant, now + SECOND);
    tap_ok (process->ask_at == now + 9 * SECOND, "of any number, every eight seconds");
    for (unsigned i = 4; i < TENANT_PROCESSES; i++)
        tenant->processes[i].has_clients = false;
    reconcile_due (tenant, now + 9 * SECOND);
    tap_ok (process->ask_at == now + 10 * SECOND, "those that have no client do not count");
    now += 9 * SECOND;
    for (unsigned i = 16; i < TENANT_PROCESSES; i++)
        tenant->processes[i] = (struct process) { 0 };
    reconcile_at (tenant, process, now);

    tenant->limits.gpus[0].memory = 1;
    tenant->used[0] = 2;
    tenant->over[0] = true;
    reconcile_due (tenant, now);
    tap_ok (process->ask_at == now + 5 * MILLISECOND, "a tenant that is stopped is asked about soon");
    reconcile_due (tenant, process->ask_at);
    tap_ok (process->ask_delay == 10 * MILLISECOND, "and less and less");
    for (unsigned i = 0; i < 20; i++)
        reconcile_due (tenant, process->ask_at);
    tap_ok (process->ask_delay == SECOND, "down to once a second");

    for (unsigned i = 0; i < 16; i++)
        tenant->processes[i] = (struct process) { 0 };
    bare_end (tenant);
    return tap_done ();
}
