/*
 * The driver has locks that all processes share, and some calls hold them for milliseconds: a tenant that makes nothing but such
 * calls delays all others. So a tenant has an allowance of such time. For what it takes beyond it while others call the driver too,
 * it waits: its calls stay with the kernel until then. Nothing is refused.
 *
 * What a process had is given back when the last copy of its file is closed, mostly by the guard (held_files.c): that is counted for
 * the tenant too, or a tenant that starts one process after the other would have it for nothing.
 *
 * Runs in the tenant's thread, under its lock; fair_closed in the thread that closes files.
 */
#include "clock.h"
#include "fair.h"
#include "guard.h"
#include "guard_private.h"
#include "tenant.h"

#include <unistd.h>

/* Calls up to this long are not counted: others come in between. */
#define SHORT_NS 200000u
/* What a tenant may take at once, and of all time in the long run (1 / RATE):
 * a context or three; some seven a second. */
#define BURST_NS 150000000u
#define RATE 7u
/* No tenant has to wait for longer than RATE times this: many processes that end at once can have had a lot. */
#define MOST_DEBT_NS 1000000000u
/* One wait, before it is looked again whether other tenants call the driver. */
#define MOST_NS 20000000u
/* A tenant that called the driver within this time is there; and what was not written for so long is not known. */
#define RECENT_NS 100000000u
#define STALE_NS 1000000000u
#define CPU_READ_NS 2000000u /* so often, at most, before a call */
/* More than the driver needs for one piece of video memory, and for each of its pages (4 KiB): on an H100
 * (580.159.04) the slowest of 64 took 0.35 ms of 64 MiB, 8.9 ms of 256 MiB, 15 ms of 1 GiB, but the very first one 25 ms. */
#define PIECE_NS 1000000u
#define PAGE_NS 500u
#define MILLISECOND 1000000u

static void count (struct fair *fair, uint64_t now, uint64_t nanoseconds)
{
    uint64_t back = (now - fair->counted_at) / RATE;

    fair->debt = fair->debt > back ? fair->debt - back : 0;
    fair->counted_at = now;
    fair->debt += nanoseconds;
    if (fair->debt > BURST_NS + MOST_DEBT_NS)
        fair->debt = BURST_NS + MOST_DEBT_NS;
    if (fair->debt > BURST_NS)
        fair->until = now + (fair->debt - BURST_NS) * RATE;
}

void fair_spent (struct tenant *tenant, uint64_t nanoseconds)
{
    if (nanoseconds > SHORT_NS)
        count (&tenant->fair, guard_now (), nanoseconds - SHORT_NS);
}

void fair_closed (struct guard *guard, uint64_t nanoseconds)
{
    if (nanoseconds <= SHORT_NS)
        return;
    /* The tenant may be gone by now. */
    pthread_mutex_lock (&guard->lock);
    if (guard->tenant != NULL)
        atomic_fetch_add (&guard->tenant->fair.closed, nanoseconds - SHORT_NS);
    pthread_mutex_unlock (&guard->lock);
}

uint64_t fair_cpu (void) { return clock_ns (CLOCK_THREAD_CPUTIME_ID); }

/* Of this thread, and when it was read: that clock costs a system call, which every call would have. */
static _Thread_local uint64_t cpu, cpu_at;

static uint64_t read_cpu (uint64_t now)
{
    uint64_t before = cpu;

    cpu = fair_cpu ();
    cpu_at = now;
    return cpu - before;
}

void fair_begin (struct tenant *tenant)
{
    uint64_t now = guard_now ();

    tenant->fair.begun_at = now;
    if (now - cpu_at > CPU_READ_NS)
        read_cpu (now);
}

/* What of a call's own time counts. Mappings of a piece, which no guard sees, are undone uncounted as they were made. */
static uint64_t bounded (uint64_t own, enum rm_piece_call kind, uint64_t bytes)
{
    uint64_t most = PIECE_NS + bytes / RM_PAGE * PAGE_NS;

    return kind == RM_NO_PIECE || own < most ? own : most;
}

/* Of this thread's own work: the time in which it sleeps until it has a lock is not counted. While the holder of a lock runs, a thread that waits
 * for it spins (rwsem_optimistic_spin): a piece counts no more than its size can take. What short calls have taken since that clock was read,
 * CPU_READ_NS at most, is counted with the long one. */
void fair_end (struct tenant *tenant, enum rm_piece_call kind, uint64_t bytes)
{
    uint64_t now = guard_now (), taken = now - tenant->fair.begun_at, own;

    if (taken <= SHORT_NS)
        return;
    own = read_cpu (now);
    fair_spent (tenant, bounded (own < taken ? own : taken, kind, bytes));
}

/* Not known is taken for yes: a tenant that waits then has had its allowance. */
static bool others_are_there (const struct tenant *tenant, uint64_t now)
{
    struct guard_contention found;

    if (tenant->guard->contention < 0 || pread (tenant->guard->contention, &found, sizeof (found), 0) != sizeof (found) ||
        found.magic != GUARD_CONTENTION_MAGIC || found.written_ns + STALE_NS < now)
        return true;
    for (unsigned i = 0; i < 2; i++)
        if (found.last[i].tenant != tenant->id && found.last[i].called_ns + RECENT_NS > found.written_ns)
            return true;
    return false;
}

int fair_wait (struct tenant *tenant, uint64_t now)
{
    struct fair *fair = &tenant->fair;
    uint64_t rest;

    if (atomic_load_explicit (&fair->closed, memory_order_relaxed) != 0)
        count (fair, now, atomic_exchange (&fair->closed, 0));
    if (fair->until <= now || !others_are_there (tenant, now))
        return 0;
    rest = fair->until - now < MOST_NS ? fair->until - now : MOST_NS;
    return (int) ((rest + MILLISECOND - 1) / MILLISECOND);
}
