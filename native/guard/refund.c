/* See refund.h. Runs in the tenant's thread, under the tenant's lock, which it lets go of while it waits. */
#include "refund.h"
#include "clock.h"
#include "process.h"
#include "reconcile.h"
#include "retained.h"
#include "tenant.h"
#include "wait.h"

#include <time.h>

/* What a process had is mostly back some milliseconds after its end. A call that needs memory, or asks how much there is, within
 * LATELY_NS of it waits for that, END_NS at the longest. */
#define LATELY_NS 1000000000u
#define END_NS 2000000000u
#define END_ASK_NS 1000000u
#define END_ASK_MOST_NS 16000000u

bool refund_is_expected (const struct tenant *tenant)
{
    return tenant->ended_at != 0 && guard_now () - tenant->ended_at < LATELY_NS;
}

/* Asks about all that have ended and are not refunded. Whether there are some still, or UVM has what they had. */
static bool is_pending (struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->process_end; i++)
        if (tenant->processes[i].serial != 0 && tenant->processes[i].dead)
            reconcile_at (tenant, &tenant->processes[i], guard_now ());
    reconcile_due (tenant, guard_now ());
    for (unsigned i = 0; i < tenant->process_end; i++)
        if (tenant->processes[i].serial != 0 && tenant->processes[i].dead && !tenant->processes[i].is_inherited)
            return true;
    retained_check (tenant, 0);
    return retained_is_inherited (&tenant->retained);
}

void refund_await (struct tenant *tenant)
{
    uint64_t until = guard_now () + END_NS;
    struct timespec delay = { .tv_nsec = END_ASK_NS };
    bool pending;

    while ((pending = is_pending (tenant)) && guard_now () < until) {
        struct process *current = wait_begin (tenant, 0);

        nanosleep (&delay, NULL);
        wait_end (tenant, current);
        delay.tv_nsec = delay.tv_nsec * 2 < END_ASK_MOST_NS ? delay.tv_nsec * 2 : END_ASK_MOST_NS;
    }
    if (!pending)
        tenant->ended_at = 0;
}
