/* See refund.h. Runs in the tenant's thread, under the tenant's lock, which it lets go of while it waits. */
#include "refund.h"
#include "clock.h"
#include "host.h"
#include "process.h"
#include "reconcile.h"
#include "retained.h"
#include "tenant.h"
#include "wait.h"

#include <time.h>

/* What a process had is mostly back some milliseconds after its end. Of processes that are killed together the files are closed one
 * context after the other, some 100 ms each. A call that asks how much memory there is within END_NS of the last end waits for all of it, END_NS
 * at the longest; one that needs memory waits until there is enough, END_NS where nothing comes back, MOST_NS where something does. */
#define END_NS 2000000000u
#define MOST_NS 10000000000u
#define END_ASK_NS 1000000u
#define END_ASK_MOST_NS 16000000u
/* The longest pause: the tenant's calls and other looks wait meanwhile. */
#define PAUSE_MOST_NS 200000000u

bool refund_is_expected (const struct tenant *tenant) { return tenant->ended_at != 0 && guard_now () - tenant->ended_at < END_NS; }

/* Asks about all that have ended and are not refunded: how many there are still, one more where UVM has what some had. */
static unsigned count_pending (struct tenant *tenant)
{
    unsigned count = 0;

    for (unsigned i = 0; i < tenant->process_end; i++)
        if (tenant->processes[i].serial != 0 && tenant->processes[i].dead)
            reconcile_at (tenant, &tenant->processes[i], guard_now ());
    reconcile_due (tenant, guard_now ());
    for (unsigned i = 0; i < tenant->process_end; i++)
        count += tenant->processes[i].serial != 0 && tenant->processes[i].dead && !tenant->processes[i].is_inherited;
    retained_check (tenant, 0);
    return count + retained_is_inherited (&tenant->retained);
}

void refund_await (struct tenant *tenant)
{
    uint64_t now = guard_now (), until = now + END_NS, last = now + MOST_NS;
    struct timespec delay = { 0 };
    uint64_t asked, pause, interval = 0;
    unsigned pending, least = 0;

    for (;;) {
        struct process *current = wait_begin (tenant, 0);

        nanosleep (&delay, NULL);
        /* What ends meanwhile may be what this call lacks. */
        if (tenant->wants_refresh)
            tenant_take_events (tenant, current);
        wait_end (tenant, current);
        asked = guard_now ();
        pending = count_pending (tenant);
        now = guard_now ();
        if (pending == 0 || now >= until || atomic_load (&tenant->stop) ||
            (tenant->wants_refresh && host_has_room (tenant, tenant->wanted_gpu, tenant->wanted)))
            break;
        if (tenant->wants_refresh && pending < least)
            until = now + END_NS < last ? now + END_NS : last;
        least = pending < least || least == 0 ? pending : least;
        interval = interval == 0 ? END_ASK_NS : interval * 2 < END_ASK_MOST_NS ? interval * 2 : END_ASK_MOST_NS;
        pause = interval < (now - asked) * LOOK_PART ? (now - asked) * LOOK_PART : interval;
        pause = pause < PAUSE_MOST_NS ? pause : PAUSE_MOST_NS;
        pause = pause < until - now ? pause : until - now;
        delay = (struct timespec) { .tv_sec = (time_t) (pause / 1000000000u), .tv_nsec = (long) (pause % 1000000000u) };
    }
    if (pending == 0)
        tenant->ended_at = 0;
}
