/* A tenant's allowance of the driver's time (guard/fair.c), with a clock of the test's own. */
#include "guard/tenant.h"
#include "tap.h"

#include <string.h>

#define MILLISECOND 1000000u

static uint64_t clock_now = UINT64_C (1000000000);

uint64_t guard_now (void) { return clock_now; }

static struct guard guard;
static struct tenant storm, neighbour;

static void again (void)
{
    memset (&storm, 0, sizeof (storm));
    memset (&neighbour, 0, sizeof (neighbour));
    storm.guard = neighbour.guard = &guard;
    guard.tenants[0] = &storm;
    guard.tenants[1] = &neighbour;
    guard.tenant_count = 2;
    clock_now += UINT64_C (100000) * MILLISECOND;
    storm.fair.counted_at = clock_now;
}

int main (void)
{
    unsigned calls = 0;

    pthread_mutex_init (&guard.lock, NULL);

    again ();
    atomic_store (&neighbour.called_at, clock_now);
    for (unsigned i = 0; i < 100000; i++)
        fair_spent (&storm, 150000);
    tap_ok (fair_wait (&storm, clock_now) == 0, "short calls cost nothing, however many");

    again ();
    atomic_store (&neighbour.called_at, clock_now);
    for (unsigned i = 0; i < 50; i++)
        fair_spent (&storm, 3 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) == 0, "a start is within the allowance");
    fair_spent (&storm, 30 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) > 0, "more than that waits for others");
    tap_ok (fair_wait (&storm, clock_now) <= 20, "and looks again soon");
    tap_ok (fair_wait (&neighbour, clock_now) == 0, "who did nothing waits for nobody");
    clock_now += UINT64_C (99) * MILLISECOND;
    tap_ok (fair_wait (&storm, clock_now) > 0, "who was there a moment ago is there");
    clock_now += UINT64_C (2) * MILLISECOND;
    tap_ok (fair_wait (&storm, clock_now) == 0, "alone nobody waits");

    again ();
    storm.id = 7;
    atomic_store (&neighbour.called_at, clock_now);
    fair_closed (&guard, 7, 160 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) > 0 && fair_wait (&neighbour, clock_now) == 0,
            "what its processes had is given back at its cost");
    again ();
    atomic_store (&neighbour.called_at, clock_now);
    fair_closed (&guard, 8, 160 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) == 0 && fair_wait (&neighbour, clock_now) == 0,
            "and at nobody's if the tenant is gone");

    again ();
    for (uint64_t end = clock_now + UINT64_C (10000) * MILLISECOND; clock_now < end; clock_now += 1 * MILLISECOND) {
        atomic_store (&neighbour.called_at, clock_now);
        if (fair_wait (&storm, clock_now) == 0) {
            fair_spent (&storm, 3 * MILLISECOND);
            calls++;
        }
    }
    /* (10000 / 7 + 150) / 2.8 */
    tap_ok (calls > 520 && calls < 600, "a seventh of the time in the long run");
    return tap_done ();
}
