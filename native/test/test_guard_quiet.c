/* What is looked at from time to time (guard/managed.c, guard/reconcile.c): how rarely, where the tenant makes no call. */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/guard.h"
#include "guard/managed.h"
#include "guard/process.h"
#include "guard/reconcile.h"
#include "tap.h"

#define SECOND UINT64_C (1000000000)

static struct tenant *tenant;
static struct process *process;

/* In how many tenths of a second mappings, and usage, are looked at again. */
static unsigned again (uint64_t quiet, bool of_mappings)
{
    uint64_t now = guard_now (), at;

    atomic_store (&tenant->called_at, now - quiet);
    process->look_at = process->ask_at = tenant->look_at = tenant->ask_at = now;
    process->look_not_before = 0;
    if (of_mappings)
        managed_refresh (tenant, now);
    else
        reconcile_due (tenant, now);
    at = of_mappings ? process->look_at : process->ask_at;
    return (unsigned) ((at - now) / (SECOND / 10));
}

static void publish (struct guard *guard)
{
    struct guard_status status;

    if (guard_tenant_status (guard, &status) != 0)
        abort ();
}

int main (void)
{
    static struct guard guard;
    uint64_t now;

    tenant = bare_tenant (&guard);
    pthread_mutex_lock (&tenant->lock);
    guard.has_driver_usage = true; /* and there is none */
    process = &tenant->processes[3];
    process->serial = 7;
    process->look_delay = SECOND;
    tap_ok (again (0, true) == 10 && again (0, false) == 10, "each second after a call");
    tap_ok (again (5 * SECOND, true) == 50 && again (5 * SECOND, false) == 50, "after as long as no call was made");
    tap_ok (again (40 * SECOND, true) == 160 && again (40 * SECOND, false) == 160, "but within 16 seconds");
    process->managed = 4096;
    tenant->processes[3].dead = true; /* nothing is to be read */
    tap_ok (again (40 * SECOND, true) <= 10, "what has managed memory each second");
    process->managed = 0;
    process->dead = false;

    now = guard_now ();
    process->look_at = tenant->look_at = process->ask_at = tenant->ask_at = now + 16 * SECOND;
    managed_called (tenant, now);
    reconcile_called (tenant, now);
    tap_ok (process->look_at == now + SECOND && tenant->look_at == now + SECOND, "a call brings the next look forward");
    tap_ok (process->ask_at == now + SECOND && tenant->ask_at == now + SECOND, "and the next question");
    process->look_at = tenant->look_at = process->ask_at = tenant->ask_at = now + 1000;
    managed_called (tenant, now);
    reconcile_called (tenant, now);
    tap_ok (process->look_at == now + 1000 && process->ask_at == now + 1000, "and puts off none that is due");

    process->look_at = tenant->look_at = now;
    process->ask_at = tenant->ask_at = now + 3 * SECOND;
    managed_before (tenant, now, now + 8 * SECOND);
    reconcile_before (tenant, now, now + 2 * SECOND);
    tap_ok (process->look_at == now && process->ask_at == now + 3 * SECOND, "what is due later than that stays");
    reconcile_before (tenant, now, now + 8 * SECOND);
    tap_ok (process->ask_at == now && tenant->ask_at == now, "what is due soon is asked together with a look");
    process->ask_at = 0;
    reconcile_before (tenant, now, now + 8 * SECOND);
    tap_ok (process->ask_at == 0, "and nothing that is not to be asked");

    pthread_mutex_unlock (&tenant->lock);
    tenant->limits.gpu_count = 1;
    guard.tenant = tenant;
    tap_ok (guard_has_news (tenant) && guard_has_news (tenant), "what was not published yet is news");
    publish (&guard);
    tap_ok (!guard_has_news (tenant), "and none when it was");
    tenant->used[0] = 4096; /* the other thread, by a call, after which it is published */
    publish (&guard);
    tenant->used[0] = 0; /* and by a look, after which nothing is */
    tap_ok (guard_has_news (tenant), "what is as it was at the last look here, but not as it was published, is news");
    publish (&guard);
    tap_ok (!guard_has_news (tenant), "until it was");
    return tap_done ();
}
