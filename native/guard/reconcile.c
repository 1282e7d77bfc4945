/*
 * Reconciles the ledger with driver-reported usage (driver_usage.c): memory beyond the ledger is charged, dead processes are refunded
 * when the driver has released what they had, and a process that won a race against the check of a continued call is ended.
 *
 * The driver counts memory for the process that made its client, also when another one made the call: a child on a descriptor that
 * it has from its parent. So while continued calls of any process may have become others, all processes are queried.
 *
 * Of a tenant about which nothing is unconfirmed the node's prober asks, once for all (usage_page.h). What it found is believed where it shows
 * no more than is charged; otherwise the tenant's own client asks before anything is charged.
 *
 * Runs in the tenant's thread, under the tenant's lock.
 */
#include "clock.h"
#include "guard_private.h"
#include "held_files.h"
#include "inflight.h"
#include "managed.h"
#include "process.h"
#include "query.h"
#include "reconcile.h"
#include "schedule.h"
#include "tenant.h"
#include "unconfirmed.h"
#include "usage_page.h"

#include <string.h>

#define FIRST_ASK_NS 5000000u
#define LAST_ASK_NS 1000000000u
/* An answer takes the driver a millisecond: of more processes with clients each waits longer, up to SELDOM_NS. */
#define ASKS_A_SECOND 4u
#define SELDOM_NS UINT64_C (8000000000)
/* So old an answer is as good as a new one. */
#define RECENT_NS 100000000u
/* A process that is killed has given back what it had by then: a context's end takes up to 100 ms. */
#define KEPT_NS 900000000u

/* Whether what was found up to a second ago is enough: of a living process, of a tenant that has won nothing. */
static bool is_quiet (const struct tenant *tenant, const struct process *process)
{
    bool is_quiet = !process->dead && !process->is_suspect;

    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        is_quiet &= tenant->raced[gpu] == 0 && !tenant->over[gpu];
    return is_quiet;
}

static bool is_over (const struct tenant *tenant, uint32_t gpu)
{
    uint64_t limit = tenant->limits.gpus[gpu].memory;

    return limit != 0 && tenant_used (tenant, gpu) > limit &&
           (tenant->excess[gpu] != 0 || tenant->raced[gpu] != 0 || tenant->over[gpu]);
}

/* What the driver counts of the process's handles, beyond what the ledger has of them: compared by process, or what one has less, by an answer of before
 * or a file that was closed, would hide what another one has more. */
static uint64_t beyond_ledger (const struct tenant *tenant, const struct process *process, uint32_t gpu)
{
    uint64_t held = process->driver_usage[gpu] + process->driver_duplicated[gpu];
    uint64_t known = rm_reported (tenant->rm, process->serial, (int) gpu);

    return held > known ? held - known : 0;
}

/* What the processes hold beyond the ledger. Whether that is above a quota that was kept before. */
static bool sum_usage (struct tenant *tenant)
{
    bool any = false;

    unconfirmed_forget (tenant);
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        tenant->status.driver_usage[gpu] = tenant->excess[gpu] = tenant->raced_reported[gpu] = 0;
        for (unsigned i = 0; i < tenant->process_end; i++) {
            struct process *process = &tenant->processes[i];

            if (process->serial == 0)
                continue;
            tenant->status.driver_usage[gpu] += process->driver_usage[gpu];
            unconfirmed_sum (tenant, process, gpu, beyond_ledger (tenant, process, gpu));
        }
        any |= is_over (tenant, gpu) && !tenant->over[gpu];
    }
    return any;
}

enum offender_rank { RANK_SUSPECT_THAT_GREW, RANK_GREW, RANK_SUSPECT };

static bool has_rank (const struct process *process, uint32_t gpu, enum offender_rank rank)
{
    bool grew = process->excess[gpu] > process->excess_before[gpu];

    return process->serial != 0 && !process->dead && (rank == RANK_GREW || process->is_suspect) && (rank == RANK_SUSPECT || grew);
}

/* The tenant holds more than was granted, and calls of some processes were continued (suspects). Ended are the suspects that hold
 * more than before; if none does, the other processes that do, for which the calls may have been made; and if none does either,
 * the numbers are old, and the suspects are ended all the same. What is counted for a process that has ended goes with its clients. */
static void select_offender (struct tenant *tenant, uint32_t gpu)
{
    bool is_suspected = false, is_found = false, is_orphaned = false;

    for (unsigned i = 0; i < tenant->process_end; i++) {
        const struct process *process = &tenant->processes[i];
        bool grew = process->serial != 0 && process->excess[gpu] > process->excess_before[gpu];

        is_suspected |= grew;
        is_orphaned |= grew && process->dead;
    }
    tenant->has_won[gpu] |= is_suspected && (tenant->suspects != 0 || rm_unconfirmed (tenant->rm) != 0);
    is_suspected &= tenant->suspects != 0;
    if (is_suspected && is_orphaned)
        is_found = unconfirmed_free_clients (tenant);
    for (enum offender_rank rank = RANK_SUSPECT_THAT_GREW; is_suspected && !is_found && rank <= RANK_SUSPECT; rank++)
        for (unsigned i = 0; i < tenant->process_end; i++)
            if (has_rank (&tenant->processes[i], gpu, rank)) {
                kill_offender (tenant, &tenant->processes[i]);
                is_found = true;
            }
}

/* The process that has it may not be found: of those that have a client's file only those that made a call are known. Where it is there still when
 * those that were found have ended, all that could have it end. */
static void end_if_kept (struct tenant *tenant)
{
    uint64_t now = guard_now ();

    if (!unconfirmed_is_kept (tenant))
        tenant->kept_since = 0;
    else if (tenant->kept_since == 0)
        tenant->kept_since = now;
    else if (now - tenant->kept_since >= KEPT_NS) {
        tenant->kept_since = now;
        guard_note (tenant, RM_TOCTOU_KILLED, 0, 0);
        if (tenant->guard->late.act != NULL)
            tenant->guard->late.act (tenant->guard->late.context);
    }
}

/* Charges what is held beyond the ledger, and freezes or thaws the tenant by it. */
static void compare (struct tenant *tenant)
{
    /* A process that was not asked about lately may have given back what it had: before a quota is enforced by it all are queried. */
    if (sum_usage (tenant)) {
        query_all (tenant);
        sum_usage (tenant);
    }
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        bool over = is_over (tenant, gpu);

        if (over && !tenant->over[gpu])
            guard_note (tenant, RM_OVER_QUOTA, 0, 0);
        if (over)
            select_offender (tenant, gpu);
        tenant->has_won[gpu] &= over;
        if (over != tenant->over[gpu]) {
            tenant->over[gpu] = over;
            schedule_apply (tenant, gpu);
        }
    }
    end_if_kept (tenant);
}

void reconcile_at (struct tenant *tenant, struct process *process, uint64_t at)
{
    /* A process that makes such calls without end puts nothing off. */
    if (process->ask_at == 0 || at < process->ask_at)
        process->ask_at = at;
    process->ask_delay = 0;
    if (tenant->ask_at == 0 || process->ask_at < tenant->ask_at)
        tenant->ask_at = process->ask_at;
}

static bool is_stopped (const struct tenant *tenant)
{
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if (tenant->over[gpu])
            return true;
    return false;
}

/* When to ask about a process again: soon while calls of its are in flight, ever more rarely while its memory is waited
 * for, and otherwise to be sure. spent: ns of the questions that were asked now. */
static void query_again (const struct tenant *tenant, struct process *process, uint64_t now, uint64_t seldom, uint64_t spent)
{
    uint64_t delay = seldom;

    if (!process->has_inflight && !process->dead && !is_stopped (tenant))
        process->ask_delay = 0;
    else {
        if (process->has_inflight || process->ask_delay == 0)
            delay = FIRST_ASK_NS;
        else
            delay = process->ask_delay > LAST_ASK_NS / 2 ? LAST_ASK_NS : process->ask_delay * 2;
        process->ask_delay = delay;
    }
    process->ask_at = now + (delay < spent * LOOK_PART ? spent * LOOK_PART : delay);
}

static uint64_t idle_interval (const struct tenant *tenant)
{
    uint64_t count = 0, seldom = LAST_ASK_NS;

    for (unsigned i = 0; i < tenant->process_end; i++)
        count += query_may_hold (tenant, &tenant->processes[i]);
    if (count > ASKS_A_SECOND)
        seldom = LAST_ASK_NS / ASKS_A_SECOND * count;
    seldom = seldom < SELDOM_NS ? seldom : SELDOM_NS;
    /* Memory that comes without a call of the tenant's is not its own doing. The node's balance sees it sooner. */
    return tenant_quiet (tenant, guard_now ()) > seldom ? tenant_quiet (tenant, guard_now ()) : seldom;
}

/* It ended, and the driver says that it holds no memory. Its clients are known for as long as there are some. */
static void release (struct tenant *tenant, struct process *process)
{
    held_files_process_released (tenant, process->serial);
    unconfirmed_release (tenant, process->serial);
    managed_forget (tenant, process);
    /* A client that it made and another process calls by is taken for that one's; the driver reports for the one that made it. */
    process->is_inherited = query_has_heirs (tenant, process);
    if (!process->is_inherited && rm_expects_client (tenant->rm, process->serial) && tenant_has_filter (tenant)) {
        process->is_inherited = true;
        rm_drop_clients (tenant->rm, process->serial); /* the driver gives their handles to others */
    }
    if (process->is_inherited) {
        rm_drop_memory (tenant->rm, process->serial);
        return;
    }
    rm_close_file (tenant->rm, process->serial);
    process_forget (tenant, process);
}

/* Queries the processes that are due. Whether in-flight calls of any of them are over. any_published: the page had the answer for some. */
static bool query_due (struct tenant *tenant, uint64_t now, bool *any_published)
{
    bool any_cleared = false;

    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];
        bool known;

        if (process->serial == 0) /* not written to: 511 of 512 are free, and a page that was never touched takes no memory */
            continue;
        process->is_due = process->ask_at != 0 && process->ask_at <= now;
        if (!process->is_due)
            continue;
        /* Before it is asked about: what came back by then is in the answer. */
        process->has_inflight = process->is_suspect && inflight_is_pending (tenant, process, now);
        process->is_cleared = process->is_suspect && !process->has_inflight;
        any_cleared |= process->is_suspect;
        known = is_quiet (tenant, process) && usage_page_take (tenant, process, now);
        *any_published |= known;
        known = known || query_process (tenant, process);
        process->is_inherited = false;
        if (process->dead && (!known || query_holds_nothing (tenant, process)))
            release (tenant, process);
    }
    return any_cleared;
}

/* What an ended one had was charged by an old answer, it may be: the guard's duplicates of it are charged to none until it is released. */
static void release_ended (struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial != 0 && process->dead && !process->is_inherited && query_holds_nothing (tenant, process))
            release (tenant, process);
    }
}

/* Whether more is held beyond the ledger than is charged. */
static bool has_grown (struct tenant *tenant)
{
    uint64_t before[SHARE_MAX_GPUS];
    bool has_grown = false;

    memcpy (before, tenant->excess, sizeof (before));
    (void) sum_usage (tenant);
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        has_grown |= tenant->excess[gpu] > before[gpu];
    return has_grown;
}

void reconcile_due (struct tenant *tenant, uint64_t now)
{
    uint64_t begun = guard_now (), seldom, spent;
    bool are_all_asked, any_published = false;

    if (tenant->ask_at == 0 || tenant->ask_at > now)
        return;
    /* A number that is too low would hide what was won, and one that is too high keep the tenant stopped; one of the page's is older than
     * the ledger. */
    are_all_asked = query_due (tenant, now, &any_published) || is_stopped (tenant) || (any_published && has_grown (tenant));
    if (are_all_asked) {
        query_all (tenant);
        release_ended (tenant);
    }
    compare (tenant);
    if (are_all_asked)
        unconfirmed_settle (tenant);
    seldom = idle_interval (tenant);
    spent = guard_now () - begun;
    tenant->ask_at = 0;
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0 || process->ask_at == 0)
            continue;
        if (process->is_due) {
            query_again (tenant, process, now, seldom, spent);
            if (process->is_cleared) {
                process_set_suspect (tenant, process, false);
                process->is_cleared = false;
                unconfirmed_clear (tenant, process->serial);
            }
            process->is_due = false;
        }
        if (tenant->ask_at == 0 || process->ask_at < tenant->ask_at)
            tenant->ask_at = process->ask_at;
    }
    if (tenant->kept_since != 0 && (tenant->ask_at == 0 || tenant->kept_since + KEPT_NS < tenant->ask_at))
        tenant->ask_at = tenant->kept_since + KEPT_NS;
}

void reconcile_before (struct tenant *tenant, uint64_t at, uint64_t most)
{
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0 || process->ask_at <= at || process->ask_at > most)
            continue;
        process->ask_at = at;
        if (tenant->ask_at > at)
            tenant->ask_at = at;
    }
}

void reconcile_called (struct tenant *tenant, uint64_t now) { reconcile_before (tenant, now + LAST_ASK_NS, UINT64_MAX); }

void reconcile_all (struct tenant *tenant)
{
    query_all (tenant);
    compare (tenant);
}

void reconcile_unconfirmed (struct tenant *tenant)
{
    if (tenant->suspects == 0)
        return;
    query_all (tenant);
    compare (tenant);
    unconfirmed_settle (tenant);
}

void reconcile_freed (struct tenant *tenant)
{
    if (unconfirmed_is_reported (tenant))
        reconcile_unconfirmed (tenant);
}

/* A number from before a FREE is too high, and what is won next would be hidden by the difference. A process makes its client by a continued
 * call, after which it is asked about: one that neither has a client nor was asked about holds nothing. */
static bool is_recent (const struct tenant *tenant, const struct process *process)
{
    return process->asked_at == 0 ||
           (process->asked_at + RECENT_NS >= guard_now () && process->asked_falls == rm_reported_falls (tenant->rm));
}

void reconcile_baseline (struct tenant *tenant)
{
    bool is_first = tenant->suspects == 0, has_won = unconfirmed_is_reported (tenant);

    /* Others may be made to hold what it wins, and what they hold already is not to be taken for that. */
    for (unsigned i = 0; i < tenant->process_end && (is_first || has_won); i++) {
        struct process *other = &tenant->processes[i];

        if (query_may_hold (tenant, other) && (has_won || !is_recent (tenant, other)))
            query_process (tenant, other);
    }
    sum_usage (tenant);
    /* Those of before are older, and lower: what was won since is more than these. */
    for (unsigned i = 0; is_first && i < tenant->process_end; i++)
        memcpy (tenant->processes[i].excess_before, tenant->processes[i].excess, sizeof (tenant->processes[i].excess));
}
