/*
 * The driver has locks that all processes share, and some calls hold them for milliseconds: whoever makes nothing but such
 * calls holds up everybody. So a tenant has an allowance of such time. What it takes beyond it while others call the driver
 * too, it waits for: its calls stay with the kernel until then. Nothing is refused.
 */
#include "tenant.h"

#include <time.h>

/* Calls up to this long are nobody's burden: others come in between. */
#define SHORT_NS 200000u
/* What a tenant may take at once, and of all time in the long run (1 / RATE): a context or three; some seven a second. */
#define BURST_NS 150000000u
#define RATE 7u
/* One wait, before it is looked again whether anybody else is there. */
#define MOST_NS 20000000u
/* Who made a call within this time is there. */
#define RECENT_NS 100000000u
#define MILLISECOND 1000000u

void fair_spent (struct tenant *tenant, uint64_t nanoseconds)
{
    struct fair *fair = &tenant->fair;
    uint64_t now, back;

    if (nanoseconds <= SHORT_NS)
        return;
    now = guard_now ();
    back = (now - fair->counted_at) / RATE;
    fair->debt = fair->debt > back ? fair->debt - back : 0;
    fair->counted_at = now;
    fair->debt += nanoseconds - SHORT_NS;
    if (fair->debt > BURST_NS)
        fair->until = now + (fair->debt - BURST_NS) * RATE;
}

void fair_begin (struct tenant *tenant) { tenant->fair.begun_at = guard_now (); }

/* Of this thread's own work: while it waits for others' locks it is nobody's burden. That clock costs a system call, so it is
 * read after long calls only, and what the short ones between two of them took is counted with the second. */
void fair_end (struct tenant *tenant)
{
    struct fair *fair = &tenant->fair;
    uint64_t taken = guard_now () - fair->begun_at, before = fair->cpu;
    struct timespec now;

    if (taken <= SHORT_NS)
        return;
    clock_gettime (CLOCK_THREAD_CPUTIME_ID, &now);
    fair->cpu = (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
    fair_spent (tenant, fair->cpu - before < taken ? fair->cpu - before : taken);
}

static bool others_are_there (struct tenant *tenant, uint64_t now)
{
    struct guard *guard = tenant->guard;
    bool found = false;

    pthread_mutex_lock (&guard->lock);
    for (unsigned i = 0; i < guard->tenant_count && !found; i++)
        found = guard->tenants[i] != tenant && atomic_load (&guard->tenants[i]->called_at) + RECENT_NS > now;
    pthread_mutex_unlock (&guard->lock);
    return found;
}

int fair_wait (struct tenant *tenant, uint64_t now)
{
    struct fair *fair = &tenant->fair;
    uint64_t rest;

    if (fair->until <= now || !others_are_there (tenant, now))
        return 0;
    rest = fair->until - now < MOST_NS ? fair->until - now : MOST_NS;
    return (int) ((rest + MILLISECOND - 1) / MILLISECOND);
}
