/* A tenant's allowance of the driver's time (guard/fair.c), with a clock of the test's own. */
#include "guard/clock.h"
#include "guard/fair.h"
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/tenant.h"
#include "tap.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MILLISECOND 1000000u
#define MIB (UINT64_C (1) << 20)

static uint64_t clock_now = UINT64_C (1000000000);

uint64_t guard_now (void) { return clock_now; }

static struct guard guard, other;
static struct tenant storm, neighbour;

static void again (void)
{
    memset (&storm, 0, sizeof (storm));
    memset (&neighbour, 0, sizeof (neighbour));
    storm.guard = &guard;
    neighbour.guard = &other;
    guard.tenant = &storm;
    other.tenant = &neighbour;
    clock_now += UINT64_C (100000) * MILLISECOND;
    storm.fair.counted_at = clock_now;
    storm.id = 1;
    neighbour.id = 2;
}

/* What the prober writes: the neighbour called the driver at this time. */
static void told (uint64_t called)
{
    struct guard_contention page = { .magic = GUARD_CONTENTION_MAGIC,
                                     .written_ns = clock_now,
                                     .last = { { 2, called }, { 1, clock_now } } };

    if (pwrite (guard.contention, &page, sizeof (page), 0) != sizeof (page))
        tap_ok (false, "the page is written");
}

/* Of this thread's processor; by the test's clock the call takes the same time. */
static void compute_in (struct tenant *tenant, uint64_t nanoseconds, enum rm_piece_call kind, uint64_t bytes)
{
    uint64_t until = fair_cpu () + nanoseconds;

    fair_begin (tenant);
    while (fair_cpu () < until)
        continue;
    clock_now += nanoseconds;
    fair_end (tenant, kind, bytes);
}

static void compute (struct tenant *tenant, uint64_t nanoseconds) { compute_in (tenant, nanoseconds, RM_NO_PIECE, 0); }

/* In the driver, for a lock that another tenant's call holds. */
static void sleep_in_call (struct tenant *tenant, uint64_t nanoseconds)
{
    fair_begin (tenant);
    clock_now += nanoseconds;
    fair_end (tenant, RM_NO_PIECE, 0);
}

int main (void)
{
    unsigned calls = 0;

    pthread_mutex_init (&guard.lock, NULL);
    guard.contention = other.contention = memfd_create ("contention", 0);

    again ();
    told (clock_now);
    for (unsigned i = 0; i < 100000; i++)
        fair_spent (&storm, 150000);
    tap_ok (fair_wait (&storm, clock_now) == 0, "short calls cost nothing, however many");

    again ();
    told (clock_now);
    for (unsigned i = 0; i < 50; i++)
        fair_spent (&storm, 3 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) == 0, "a start is within the allowance");
    fair_spent (&storm, 30 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) > 0, "more than that waits for others");
    tap_ok (fair_wait (&storm, clock_now) <= 20, "and looks again soon");
    tap_ok (fair_wait (&neighbour, clock_now) == 0, "a tenant that took nothing does not wait");
    clock_now += UINT64_C (99) * MILLISECOND;
    told (clock_now - UINT64_C (99) * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) > 0, "a tenant that called a moment ago counts");
    clock_now += UINT64_C (2) * MILLISECOND;
    told (clock_now - UINT64_C (101) * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) == 0, "a tenant that is alone does not wait");
    fair_spent (&storm, 500 * MILLISECOND);
    clock_now += UINT64_C (1001) * MILLISECOND;
    tap_ok (fair_wait (&storm, clock_now) > 0, "what was not written for a second is taken for contention");

    /* Short calls are many between two long ones; what they took was counted with a long one that slept. */
    again ();
    compute (&neighbour, 1 * MILLISECOND);
    neighbour.fair.debt = 0;
    for (unsigned i = 0; i < 1000; i++)
        compute (&neighbour, 100000);
    tap_ok (neighbour.fair.debt == 0, "calls of 0.1 ms are short");
    sleep_in_call (&neighbour, 100 * MILLISECOND);
    tap_ok (neighbour.fair.debt < 4 * MILLISECOND, "the wait for another one's lock is not counted, whatever was computed before");
    compute (&neighbour, 30 * MILLISECOND);
    tap_ok (neighbour.fair.debt > 25 * MILLISECOND, "what a call computes is");

    /* While the holder of a lock runs, a thread that waits for it spins (rwsem_optimistic_spin). */
    again ();
    compute_in (&neighbour, 30 * MILLISECOND, RM_ALLOCATES_PIECE, 4 * MIB);
    tap_ok (neighbour.fair.debt < 2 * MILLISECOND, "a piece of 4 MiB takes no 30 ms: the rest was a wait for another one's lock");
    again ();
    compute_in (&neighbour, 30 * MILLISECOND, RM_ALLOCATES_PIECE, 512 * MIB);
    tap_ok (neighbour.fair.debt > 25 * MILLISECOND, "a large one may");
    again ();
    compute_in (&storm, 30 * MILLISECOND, RM_FREES_PIECE, 4 * MIB);
    tap_ok (storm.fair.debt < 2 * MILLISECOND, "nor does its freeing");
    again ();
    compute_in (&storm, 30 * MILLISECOND, RM_FREES_PIECE, UINT64_MAX);
    tap_ok (storm.fair.debt > 25 * MILLISECOND, "no size is too large for the sum");

    again ();
    told (clock_now);
    fair_closed (&guard, 160 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) > 0 && fair_wait (&neighbour, clock_now) == 0,
            "what its processes had is given back at its cost");
    again ();
    told (clock_now);
    guard.tenant = NULL;
    fair_closed (&guard, 160 * MILLISECOND);
    tap_ok (fair_wait (&storm, clock_now) == 0 && fair_wait (&neighbour, clock_now) == 0,
            "and counted for none if the tenant is gone");

    again ();
    for (uint64_t end = clock_now + UINT64_C (10000) * MILLISECOND; clock_now < end; clock_now += 1 * MILLISECOND) {
        told (clock_now);
        if (fair_wait (&storm, clock_now) == 0) {
            fair_spent (&storm, 3 * MILLISECOND);
            calls++;
        }
    }
    /* (10000 / 7 + 150) / 2.8 */
    tap_ok (calls > 520 && calls < 600, "a seventh of the time in the long run");
    return tap_done ();
}
