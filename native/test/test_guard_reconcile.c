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
#define MIB ((uint64_t) 1 << 20)

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

static unsigned acts;

static void act (void *context)
{
    (void) context;
    acts++;
}

/* The driver's answers of before stand: process 5, which has ended, has so much of which the ledger has nothing. 10 are allowed, of which 9 are used. */
static void driver_says (struct process *ended, uint64_t bytes)
{
    ended->driver_usage[0] = bytes;
    reconcile_all (tenant);
}

static void end_what_is_kept (struct guard *guard)
{
    struct process *ended = process_at (5);

    guard->late.act = act;
    ended->dead = true;
    tenant->limits.gpus[0].memory = 10;
    tenant->used[0] = 9;
    driver_says (ended, 2);
    clock_now += 2 * SECOND;
    driver_says (ended, 2);
    tap_ok (acts == 0 && tenant->over[0], "nothing ends for what the driver has beyond the ledger while no call is unconfirmed");
    tenant->suspects = 1;
    ended->excess_before[0] = 2;
    driver_says (ended, 1);
    ended->excess_before[0] = 1;
    driver_says (ended, 3);
    clock_now += 899 * MILLISECOND;
    driver_says (ended, 3);
    tap_ok (acts == 0, "what was won beyond the quota has a second to go");
    ended->excess_before[0] = 3;
    tenant->suspects = 0;
    tenant->raced[0] = 3;
    ended->raced_reported[0] = 3;
    clock_now += MILLISECOND;
    driver_says (ended, 0);
    tap_ok (acts == 1, "then all that may have it end, not one process alone, also where no answer shows it");
    tenant->used[0] = 7;
    clock_now += SECOND;
    driver_says (ended, 0);
    clock_now += SECOND;
    driver_says (ended, 0);
    tap_ok (acts == 1 && tenant->kept_since == 0, "within the quota it is held against none");
    guard->late.act = NULL;
    tenant->processes[5] = (struct process) { 0 };
    tenant->limits.gpus[0].memory = tenant->used[0] = tenant->raced[0] = 0;
    tenant->ask_at = 0;
    reconcile_all (tenant);
    tenant->over[0] = tenant->has_won[0] = false;
}

/* How many processes are ended for what the tenant holds beyond its quota. */
static uint64_t offenders (void)
{
    uint64_t before = tenant->status.reasons[RM_TOCTOU_KILLED];

    reconcile_all (tenant);
    return tenant->status.reasons[RM_TOCTOU_KILLED] - before;
}

/* An ended process has grown beyond the quota; of each rank there is one that lives. */
static void select_offenders (struct guard *guard)
{
    struct process *ended = process_at (5), *suspect = process_at (6), *grown = process_at (7), *both = process_at (8);

    if (pipe (guard->closing) != 0)
        return;
    tenant->limits.gpus[0].memory = MIB;
    ended->dead = true;
    ended->driver_usage[0] = 4 * MIB;
    grown->driver_usage[0] = both->driver_usage[0] = MIB;
    process_set_suspect (tenant, suspect, true);
    process_set_suspect (tenant, both, true);
    tracker_client (tenant->rm, ended->serial, 41);
    hold (41);
    tap_ok (offenders () == 0 && tenant->over[0], "when a client of the ended one is freed no process is ended, of whichever rank");
    process_set_suspect (tenant, both, false);
    grown->driver_usage[0] = both->driver_usage[0] = 0;
    hold (41);
    tap_ok (offenders () == 0, "nor one that is suspected alone");
    tap_ok (offenders () == 1, "which is, where there is no such client");
    grown->driver_usage[0] = both->driver_usage[0] = MIB;
    tap_ok (offenders () == 2, "before it those that grew");
    process_set_suspect (tenant, both, true);
    tap_ok (offenders () == 1, "and before them one that is suspected and grew");
    ended->driver_usage[0] = grown->driver_usage[0] = both->driver_usage[0] = 0;
    process_set_suspect (tenant, suspect, false);
    process_set_suspect (tenant, both, false);
    tap_ok (offenders () == 0 && !tenant->over[0], "within the quota none is");
    for (unsigned i = 0; i < 2; i++) {
        close (guard->closing[i]);
        guard->closing[i] = -1;
    }
    rm_close_file (tenant->rm, ended->serial);
    tenant->limits.gpus[0].memory = 0;
    tenant->ask_at = 0;
    for (unsigned i = 5; i < 10; i++)
        tenant->processes[i] = (struct process) { 0 };
}

int main (void)
{
    static struct guard guard;
    struct process *process;
    uint64_t now;

    tenant = bare_tenant (&guard);
    pthread_mutex_lock (&tenant->lock);
    tenant->limits.gpu_count = 1;
    end_what_is_kept (&guard);
    now = guard_now ();
    atomic_store (&tenant->called_at, now); /* tenants that make no call: test_guard_quiet.c */
    guard.privsep.socket = -1;
    free_clients (&guard);
    select_offenders (&guard);
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
