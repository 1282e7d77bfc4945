/*
 * Managed memory: a shared mapping of the UVM node, which only the container itself can make. Its mmap is continued, and then
 * charged by what /proc/PID/maps shows, so that swapping the descriptor meanwhile, or mapping from a child, gains nothing: what
 * the descriptor is when the mapping is announced is not asked.
 * A tenant that exceeds its quota by it has its channels frozen until it does not: nothing else can take such memory back.
 *
 * One way is not announced: the first mmap of the 32-bit entry has its arguments in memory, where no filter reads. So
 * every process that has a client is looked at from time to time: each second, and where the tenant makes no call, after as long as it
 * has made none (tenant_quiet), for hundreds of idle ones take most of what guards take. So what was mapped after the last call is found
 * after at most twice that time, and within QUIET_MOST_NS.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "clock.h"
#include "fair.h"
#include "guard_private.h"
#include "managed.h"
#include "maps.h"
#include "privsep.h"
#include "process.h"
#include "schedule.h"
#include "space.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>
#include <unistd.h>

#define FIRST_LOOK_NS 1000000u /* the mapping is made after the answer */
#define LAST_LOOK_NS 1000000000u
/* So many processes are looked at a second when nothing is announced: more of them each wait longer. */
#define LOOKS_A_SECOND 32u
/* After a look that took so long other threads get the tenant's lock first. */
#define LONG_LOOK_NS 2000000u

/* Of a tenant that makes no call, and a process that announced no mapping, the file stays open: to ask the monitor for it takes half of what a look
 * takes. One of an address space that the process has left shows nothing, unless others use that: so after so many looks it is asked for again. */
#define KEPT_LOOKS 3u

/* What cannot be read counts as more than any GPU has. */
#define MANAGED_MOST SPACE_MOST

static void look_in (struct tenant *tenant, struct process *process, uint64_t delay)
{
    uint64_t at = guard_now () + delay;

    if (at < process->look_not_before)
        at = process->look_not_before;
    /* A process that makes mappings without end puts nothing off: what is made after the next look is there at the one after. */
    if (process->look_at == 0 || at < process->look_at)
        process->look_at = at;
    process->look_delay = delay;
    if (tenant->look_at == 0 || process->look_at < tenant->look_at)
        tenant->look_at = process->look_at;
}

void managed_look (struct tenant *tenant, struct process *process)
{
    process->has_mapped = true;
    look_in (tenant, process, FIRST_LOOK_NS);
}

void managed_watch (struct tenant *tenant, struct process *process) { look_in (tenant, process, LAST_LOOK_NS); }

bool managed_was_seen (const struct process *process)
{
    return process->managed == 0 && (process->look_at == 0 || process->look_delay >= LAST_LOOK_NS);
}

void managed_close_maps (struct process *process)
{
    if (process->has_maps)
        close (process->maps);
    process->has_maps = false;
}

/* Without the tenant's lock. */
static enum maps_result sum_maps (struct tenant *tenant, struct process *process, bool may_keep, uint64_t *bytes)
{
    enum maps_result result = MAPS_NONE;

    if (may_keep && process->has_maps && process->maps_left-- > 0)
        result = maps_sum (process->maps, bytes);
    if (result == MAPS_READ)
        return result;
    managed_close_maps (process);
    *bytes = 0;
    process->maps = privsep_maps (&tenant->guard->privsep, process);
    if (process->maps < 0)
        return process->maps == -ESRCH ? MAPS_NONE : MAPS_UNKNOWN;
    process->has_maps = true;
    process->maps_left = KEPT_LOOKS;
    result = maps_sum (process->maps, bytes);
    if (!may_keep || result != MAPS_READ)
        managed_close_maps (process);
    return result;
}

/* Bytes. false: the process ended, and nothing, or not everything, was there to be read; or that may be so. */
static bool mapped (struct tenant *tenant, struct process *process, uint64_t *bytes)
{
    uint64_t found =
        0; /* shared mappings whose offset is their address: UVM's (uvm_mmap, kernel-open/nvidia-uvm/uvm.c), of any name */
    bool was_watched = tenant->is_watched,
         may_keep = tenant_quiet (tenant, guard_now ()) > LAST_LOOK_NS && !process->has_mapped && process->managed == 0;
    struct process *current = wait_begin (tenant, process->pid);
    enum maps_result result = sum_maps (tenant, process, may_keep, &found);
    bool is_ending = result == MAPS_UNKNOWN && process->unread != 0 && privsep_is_ending (&tenant->guard->privsep, process);

    wait_end (tenant, current);
    if (!was_watched)
        wait_unwatch (tenant);
    /* The threads of one that was killed end one after the other, some 100 ms long, and it maps nothing any more. */
    if (is_ending)
        return false;
    process->unread = result == MAPS_UNKNOWN ? process->unread + 1 : 0;
    /* Of a thread that ends just now the rest cannot be read. Twice in a row, and it is not known what is mapped. */
    if (process->unread == 1)
        look_in (tenant, process, FIRST_LOOK_NS);
    *bytes = process->unread > 1 ? MANAGED_MOST : found < MANAGED_MOST ? found : MANAGED_MOST;
    return (process->unread > 1 || result == MAPS_READ) && process_is_there (process);
}

void managed_charge (struct tenant *tenant, uint64_t *held, uint64_t bytes, pid_t pid)
{
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        uint64_t limit = tenant->limits.gpus[gpu].memory;
        bool over;

        tenant->managed[gpu] -= *held;
        tenant->managed[gpu] += bytes;
        over = limit != 0 && tenant_used (tenant, gpu) > limit;
        if (over && bytes > *held)
            guard_note (tenant, RM_OVER_QUOTA, 0, pid);
        if (over != tenant->over[gpu]) {
            tenant->over[gpu] = over;
            schedule_apply (tenant, gpu);
        }
    }
    *held = bytes;
}

void managed_forget (struct tenant *tenant, struct process *process)
{
    if (tenant->shares_uvm) {
        tenant->orphan_overflow.bytes += process->managed; /* which is charged */
        process->managed = 0;
    }
    if (process->managed != 0)
        managed_charge (tenant, &process->managed, 0, process->pid);
}

static void look_at (struct tenant *tenant, struct process *process)
{
    uint64_t bytes, now = guard_now ();

    if (!mapped (tenant, process, &bytes))
        return; /* what it left is seen when the kernel says that it ended */
    if (process->space.is_held && !space_is_current (process))
        space_orphan (tenant, process);
    if (bytes != 0 && !process->space.is_held)
        (void) space_hold (tenant, process, process->pid); /* it was mapped unseen, or an earlier guard saw it */
    if (process->unread == 0)
        space_seen (process, bytes, now);
    if (bytes != process->managed)
        managed_charge (tenant, &process->managed, bytes, process->pid);
}

void managed_look_at_orphans (struct tenant *tenant)
{
    tenant->spaces_delay = FIRST_LOOK_NS;
    tenant->spaces_at = guard_now () + FIRST_LOOK_NS;
    if (tenant->look_at == 0 || tenant->spaces_at < tenant->look_at)
        tenant->look_at = tenant->spaces_at;
}

/* The time after which others are looked at. */
static uint64_t later (uint64_t delay) { return delay >= LAST_LOOK_NS / 4 ? LAST_LOOK_NS : delay * 4; }

static void refresh_orphans (struct tenant *tenant, uint64_t now)
{
    if (tenant->spaces_at == 0 || tenant->spaces_at > now)
        return;
    space_check (tenant);
    tenant->spaces_delay = later (tenant->spaces_delay);
    tenant->spaces_at = tenant->orphan_space_count != 0 ? now + tenant->spaces_delay : 0;
}

void managed_refresh (struct tenant *tenant, uint64_t now)
{
    uint64_t next, seldom = LAST_LOOK_NS, quiet;
    unsigned count = 0;
    bool is_long = false;

    if (tenant->look_at == 0 || tenant->look_at > now)
        return;
    for (unsigned i = 0; i < tenant->process_end; i++)
        count += tenant->processes[i].serial != 0;
    if (count > LOOKS_A_SECOND)
        seldom = (uint64_t) LAST_LOOK_NS / LOOKS_A_SECOND * count;
    quiet = tenant_quiet (tenant, now);
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0 || process->look_at == 0)
            continue;
        if (process->look_at <= now && !is_long) {
            /* A process without a client can have mapped only what it announced, on a file of another one's. */
            bool is_routine = !process->has_mapped && !process->has_clients && process->managed == 0;
            uint64_t begun = fair_cpu (), spent, rarely;

            if (!is_routine)
                look_at (tenant, process);
            spent = fair_cpu () - begun;
            /* Nothing tells of an unmapping, so a process that has such memory is looked at again, ever more rarely. */
            process->look_delay = later (process->look_delay);
            rarely = process->managed == 0 && quiet > seldom ? quiet : seldom;
            process->look_at = now + (process->look_delay < LAST_LOOK_NS ? process->look_delay : rarely);
            /* Tens of thousands of mappings take long to read. */
            process->look_not_before = guard_now () + spent * LOOK_PART;
            if (process->look_at < process->look_not_before)
                process->look_at = process->look_not_before;
            fair_spent (tenant, spent);
            is_long = spent > LONG_LOOK_NS;
        }
    }
    refresh_orphans (tenant, now);
    next = tenant->spaces_at;
    for (unsigned i = 0; i < tenant->process_end; i++) {
        const struct process *process = &tenant->processes[i];

        if (process->serial != 0 && process->look_at != 0 && (next == 0 || process->look_at < next))
            next = process->look_at;
    }
    tenant->look_at = next;
}

void managed_before (struct tenant *tenant, uint64_t at, uint64_t most)
{
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0 || process->look_at <= at || process->look_at > most)
            continue;
        process->look_at = at;
        if (tenant->look_at > at)
            tenant->look_at = at;
    }
}

void managed_called (struct tenant *tenant, uint64_t now) { managed_before (tenant, now + LAST_LOOK_NS, UINT64_MAX); }

void managed_now (struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial != 0 && process->managed != 0 && !process->dead)
            look_at (tenant, process);
    }
    space_check (tenant);
}
