/* A tenant whose thread is in a call of the driver that does not come back: no other thread waits (guard/schedule.c, guard/guard.c,
 * guard/phase_thread.c). */
#include "guard/clock.h"
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/schedule.h"
#include "guard/tenant.h"
#include "tap.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MILLISECOND UINT64_C (1000000)
#define SECOND (1000 * MILLISECOND)
/* Far more than any caller waits, and far less than the call takes. */
#define SOON (200 * MILLISECOND)
#define PERIOD 20000u

static struct guard *guard;

/* Of 100 looks in 400 ms. */
static unsigned frozen_looks (struct tenant *tenant)
{
    unsigned count = 0;
    uint64_t before;

    for (unsigned i = 0; i < 100; i++) {
        count += edges_frozen (&tenant->edges, 0, &before);
        usleep (4000 - 7 * i); /* not in step with the period */
    }
    return count;
}

int main (void)
{
    struct guard_phase half = { .period = PERIOD, .until = PERIOD / 2 }, none = { 0 };
    struct limits limits = { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .driver = "580.159.04", .gpu_count = 1 };
    struct guard_status status;
    struct guard_phases *phases;
    struct tenant *busy;
    uint64_t begun, before;
    unsigned looks;
    int result;

    guard = guard_create (-1);
    phases = guard != NULL ? guard_phases_create (guard, false) : NULL;
    if (phases == NULL)
        return 1;
    tap_ok (guard_tenant_add (guard, 1, &limits) == 0, "a tenant");
    tap_ok (guard_phases_set (phases, 0, &half) == 0, "with a cap");
    busy = guard_find (guard);
    pthread_mutex_lock (&busy->lock); /* as its thread has it while the driver makes a call */
    alarm (60);
    begun = guard_now ();
    result = guard_tenant_status (guard, &status);
    tap_ok (result == -EBUSY && guard_now () - begun < SOON, "a query of a busy tenant answers -EBUSY");
    begun = guard_now ();
    tap_ok (guard_tenant_gone (guard) == -EBUSY && guard_tenant_update (guard, &limits) == -EBUSY && guard_now () - begun < SOON,
            "whatever the query is");
    begun = guard_now ();
    tap_ok (guard_tenant_slice (guard, 0, 3000) == 0 && guard_now () - begun < SOON, "a slice is written down");
    looks = frozen_looks (busy);
    tap_ok (looks > 20 && looks < 80, "it is stopped and started meanwhile");
    begun = guard_now ();
    tap_ok (guard_phases_set (phases, 0, &none) == 0 && guard_now () - begun < SOON, "its phase is changed");
    /* The phase thread thaws what left the plan. */
    while (edges_frozen (&busy->edges, 0, &before))
        usleep (1000);
    result = guard_tenant_freeze (guard, 0, 1);
    tap_ok (result >= 0 && busy->edges.frozen[0], "a tenant is stopped while the driver makes a call for it");
    tenant_unlock (busy);
    tap_ok (guard_tenant_status (guard, &status) == 0 && status.frozen[0] != 0 && status.slice[0] == 3000,
            "its slice is written when the call is over");
    guard_tenant_freeze (guard, 0, 0);

    pthread_mutex_lock (&busy->lock);
    guard_phases_destroy (phases);
    begun = guard_now ();
    guard_destroy (guard);
    tap_ok (guard_now () - begun < 2 * SECOND, "the guard ends while one is busy");
    tap_ok (guard_tenant_status (guard, &status) == -ENOENT, "and has no tenant any more");
    tenant_unlock (busy);
    guard_let_go (busy);
    usleep (100000); /* the thread that was given up ends */
    return tap_done ();
}
