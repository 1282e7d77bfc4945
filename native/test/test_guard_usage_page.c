/* What a supervisor takes from the node's usage page, and when it asks the driver itself (guard/reconcile.c, guard/usage_page.c), with a driver
 * and a clock of the test's own. */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/driver_usage.h"
#include "guard/guard_private.h"
#include "guard/process.h"
#include "guard/reconcile.h"
#include "guard/usage_page.h"
#include "no_driver_usage.h"
#include "rm/state.h"
#include "tap.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#define SECOND UINT64_C (1000000000)
#define MIB (UINT64_C (1) << 20)

#define OTHER_PID 77
#define CLIENT 0xc1d00001u
#define DEVICE 0x5c000000u

static uint64_t clock_now = 1000 * SECOND, held, held_by_other;
static unsigned asked;

uint64_t guard_now (void) { return clock_now; }

long driver_usage_of_process (struct driver_usage *usage, const uint8_t uuid[16], pid_t pid, struct process_usage *found)
{
    (void) usage, (void) uuid;
    asked++;
    *found = (struct process_usage) { .own = pid == OTHER_PID ? held_by_other : held };
    return 0;
}

static struct guard guard;
static struct tenant *tenant;
static struct process *process, *other;
static uint64_t sequence;

static void put (const void *from, size_t size, size_t at)
{
    if (pwrite (guard.contention, from, size, (off_t) at) != (ssize_t) size)
        tap_ok (false, "the page is written");
}

/* What the prober says of the process `pid`: the answer came at this time. */
static void publish (uint32_t pid, uint64_t own, uint64_t at)
{
    uint32_t head[] = { USAGE_MAGIC, USAGE_VERSION, 1, 0 };
    struct usage_head usage = { .sequence = ++sequence, .gpu_count = 2, .row_count = 300 };
    size_t copy = offsetof (struct usage_page, copies) + sizeof (struct usage);

    usage.gpus[0] = (struct usage_gpu) { .uuid = { 9 }, .asked_ns = at, .count = 100 };
    usage.gpus[1] = (struct usage_gpu) { .uuid = { 7 }, .asked_ns = at, .first = 100, .count = 200 };
    put (&usage, sizeof (usage), copy);
    for (uint32_t row = 0; row < 300; row++)
        put (&(struct usage_row) { .pid = row == 290 ? pid : 100000 + row, .own = row == 290 ? own : 77 * MIB },
             sizeof (struct usage_row), copy + offsetof (struct usage, rows) + row * sizeof (struct usage_row));
    put (head, sizeof (head), offsetof (struct usage_page, magic));
}

/* A second later. How often the driver was asked. */
static unsigned look (void)
{
    asked = 0;
    clock_now += SECOND;
    atomic_store (&tenant->called_at, clock_now); /* tenants that make no call: test_guard_quiet.c */
    reconcile_due (tenant, clock_now);
    return asked;
}

/* What a call of the process has made, as the ledger takes it. */
static void enter_ledger (uint64_t serial, uint64_t bytes)
{
    struct object *device = tracker_add (tenant->rm, serial, CLIENT, CLIENT, DEVICE, CLASS_DEVICE);

    tracker_set_device_gpu (tenant->rm, device, 0);
    memory_commit (tenant->rm, tracker_add (tenant->rm, serial, CLIENT, DEVICE, DEVICE + 1, CLASS_VIDEO_MEMORY), 0, 0, bytes);
}

static void again (void)
{
    clock_now += 10 * SECOND;
    atomic_store (&tenant->called_at, clock_now);
    *process = (struct process) {
        .serial = TENANT_PROCESSES, .pid = getpid (), .pidfd = -1, .has_clients = true, .entered_at = clock_now
    };
    tenant->excess[0] = tenant->raced[0] = held = 0;
    tenant->over[0] = false;
    reconcile_at (tenant, process, clock_now + SECOND);
}

int main (void)
{
    tenant = bare_tenant (&guard);
    pthread_mutex_lock (&tenant->lock);
    guard.has_driver_usage = true;
    guard.driver_usage = (void *) &guard;
    guard.contention = memfd_create ("page", 0);
    tenant->limits.gpu_count = 1;
    tenant->limits.gpus[0].uuid[0] = 7;
    process = &tenant->processes[0];

    again ();
    tap_ok (look () == 1, "without a page a supervisor asks the driver");
    publish ((uint32_t) getpid (), 0, clock_now + SECOND / 2);
    tap_ok (look () == 0, "with one it does not");
    tap_ok (look () + look () + look () + look () == 0, "nor while the answer is some seconds old");
    tap_ok (look () == 1, "when it is older the supervisor asks again: the prober is gone");

    again ();
    publish ((uint32_t) getpid (), 0, clock_now - SECOND / 2);
    tap_ok (look () == 1, "an answer from before the process was there is about another one");
    publish ((uint32_t) getpid () + 1, 0, clock_now + SECOND / 2);
    tap_ok (look () == 1, "a process that the page has no row of is asked about");

    again ();
    held = 5 * MIB;
    publish ((uint32_t) getpid (), 5 * MIB, clock_now + SECOND / 2);
    tap_ok (look () == 1 && tenant->excess[0] == 5 * MIB, "before anything is charged the driver is asked, and it is charged");
    publish ((uint32_t) getpid (), 5 * MIB, clock_now + SECOND / 2);
    tap_ok (look () == 0 && tenant->excess[0] == 5 * MIB, "what is charged already needs no question");
    publish ((uint32_t) getpid (), 0, clock_now + SECOND / 2);
    tap_ok (look () == 0 && tenant->excess[0] == 0, "what is not held any more is not charged");

    again ();
    publish ((uint32_t) getpid (), 5 * MIB, clock_now + SECOND / 2);
    tap_ok (look () == 1 && tenant->excess[0] == 0, "what was freed since the page's answer is not charged");

    again ();
    enter_ledger (process->serial, 64 * MIB);
    tenant->retained.files[tenant->retained.file_count++] = (struct held_file) { CLIENT, guard.contention, process->serial };
    other = &tenant->processes[1];
    *other = *process;
    other->serial = TENANT_PROCESSES + 1;
    other->pid = OTHER_PID;
    held = 0;
    held_by_other = 3 * MIB;
    (void) look ();
    tap_ok (tenant->excess[0] == 3 * MIB, "what the ledger has of one process hides nothing of another one's");
    reconcile_baseline (tenant);
    process_set_suspect (tenant, other, true);
    held_by_other = 8 * MIB;
    (void) look ();
    tap_ok (tenant->raced[0] == 5 * MIB && tenant->excess[0] == 3 * MIB, "and what that one wins is charged as won");
    process_set_suspect (tenant, other, false);
    *other = (struct process) { 0 };
    tenant->retained.file_count = 0;
    (void) look ();
    tap_ok (rm_reported (tenant->rm, process->serial, 0) == 0,
            "the driver is expected to report nothing of a client that is gone, if the guard holds no file of it");
    rm_close_file (tenant->rm, process->serial);

    again ();
    process_set_suspect (tenant, process, true);
    publish ((uint32_t) getpid (), 0, clock_now + SECOND / 2);
    tap_ok (look () != 0, "after a continued call the driver is asked");
    again ();
    process->dead = true;
    held = MIB;
    publish ((uint32_t) getpid (), 0, clock_now + SECOND / 2);
    tap_ok (look () != 0, "and about a process that ended");
    again ();
    tenant->limits.gpus[0].memory = 1;
    tenant->used[0] = 2;
    tenant->over[0] = true;
    publish ((uint32_t) getpid (), 0, clock_now + SECOND / 2);
    tap_ok (look () != 0, "and of a tenant that is above its quota");

    again ();
    asked = 0;
    reconcile_baseline (tenant);
    tap_ok (asked == 0, "before its first continued call a process has no client, and the driver is not asked");
    process->asked_at = clock_now - SECOND;
    reconcile_baseline (tenant);
    tap_ok (asked == 1, "before a later one it is, unless it was just now");
    again ();
    process_set_suspect (tenant, process, true);
    tenant->raced_reported[0] = MIB;
    asked = 0;
    reconcile_baseline (tenant);
    tap_ok (asked == 1, "one without an answer is asked about where its first call may have won something");
    process_set_suspect (tenant, process, false);
    tenant->raced_reported[0] = 0;

    tenant->processes[0] = (struct process) { 0 };
    bare_end (tenant);
    return tap_done ();
}
