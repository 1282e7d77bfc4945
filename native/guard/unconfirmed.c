/*
 * See unconfirmed.h. Memory that a raced call made can be mapped by UVM, which no call shows, and be given back before its process is asked
 * about: with its parent, its client, its file or its process. So the file is held meanwhile, and every FREE and every end of a
 * process in that time is preceded by a question.
 *
 * What was won, and is reported still, is no growth. Were it given back between two questions, as much that was won meanwhile would be none
 * either. So a FREE is followed by a question too, and the files of a tenant that has won something are held until its process ends. All this is
 * counted by process: what one gives back, or has less than the ledger, is of no account for another.
 */
#include "unconfirmed.h"
#include "edges.h"
#include "guard_private.h"
#include "held_files.h"
#include "process.h"
#include "reconcile.h"
#include "tenant.h"

#include <fcntl.h>

static void release (struct tenant *tenant, unsigned place)
{
    closer_add (tenant->guard, tenant->unconfirmed[place].file);
    tenant->unconfirmed[place] = tenant->unconfirmed[--tenant->unconfirmed_count];
}

static bool is_inflight (const struct tenant *tenant, pid_t thread)
{
    for (unsigned i = 0; i < tenant->inflight_count; i++)
        if (tenant->inflight[i].thread == thread)
            return true;
    return false;
}

/* What the calls that are over have won is charged now. What it was won with is kept: see unconfirmed_clear. */
static void make_room (struct tenant *tenant)
{
    reconcile_unconfirmed (tenant);
    if (unconfirmed_is_reported (tenant))
        return;
    for (unsigned i = tenant->unconfirmed_count; i-- > 0;)
        if (!is_inflight (tenant, tenant->unconfirmed[i].thread))
            release (tenant, i);
}

bool unconfirmed_hold (struct tenant *tenant, pid_t thread, uint32_t client)
{
    int file;

    for (unsigned i = 0; i < tenant->unconfirmed_count && client != 0; i++)
        if (tenant->unconfirmed[i].client == client && tenant->unconfirmed[i].thread == thread)
            return true;
    if (tenant->unconfirmed_count == UNCONFIRMED_FILES)
        make_room (tenant);
    file = tenant->unconfirmed_count < UNCONFIRMED_FILES ? fcntl (tenant->copy, F_DUPFD_CLOEXEC, 0) : -1;
    if (file >= 0)
        tenant->unconfirmed[tenant->unconfirmed_count++] = (struct unconfirmed_file) {
            .file = file, .client = client, .serial = tenant->current->serial, .thread = thread
        };
    return file >= 0;
}

/* Each call takes one piece at the most, and each piece RM_GRANULE at the least, of which the driver may report a page. */
static uint64_t rounded_up (const struct tenant *tenant, uint64_t reported)
{
    uint64_t of_pages = reported * (RM_GRANULE / RM_PAGE - 1), of_calls = tenant->unconfirmed_calls * (RM_GRANULE - RM_PAGE);

    return reported + (of_pages < of_calls ? of_pages : of_calls);
}

bool unconfirmed_is_reported (const struct tenant *tenant)
{
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if (tenant->raced_reported[gpu] != 0)
            return true;
    return false;
}

static bool is_kept (const struct tenant *tenant, uint32_t gpu)
{
    uint64_t limit = tenant->limits.gpus[gpu].memory;

    return tenant->has_won[gpu] && limit != 0 &&
           tenant->used[gpu] + tenant->retained.bytes[gpu] + tenant->raced[gpu] + tenant->excess[gpu] > limit;
}

bool unconfirmed_is_kept (const struct tenant *tenant)
{
    bool any = false;

    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        any |= is_kept (tenant, gpu);
    return any;
}

void unconfirmed_sum (struct tenant *tenant, struct process *process, uint32_t gpu, uint64_t beyond)
{
    if (process->raced_reported[gpu] > beyond)
        process->raced_reported[gpu] = beyond;
    process->excess[gpu] = beyond - process->raced_reported[gpu];
    tenant->raced_reported[gpu] += process->raced_reported[gpu];
    tenant->excess[gpu] += process->excess[gpu];
}

/* What the process has more than before was won, whichever process made the call. What it has less hides nothing that is won later. */
static uint64_t take_won (struct process *process, uint32_t gpu)
{
    uint64_t won;

    if (process->excess[gpu] <= process->excess_before[gpu]) {
        process->excess_before[gpu] = process->excess[gpu];
        return 0;
    }
    won = process->excess[gpu] - process->excess_before[gpu];
    process->excess[gpu] = process->excess_before[gpu];
    process->raced_reported[gpu] += won;
    return won;
}

void unconfirmed_settle (struct tenant *tenant)
{
    for (uint32_t gpu = 0; tenant->suspects != 0 && gpu < tenant->limits.gpu_count; gpu++) {
        uint64_t won = 0;

        for (unsigned i = 0; i < tenant->process_end; i++)
            if (tenant->processes[i].serial != 0)
                won += take_won (&tenant->processes[i], gpu);
        if (won == 0)
            continue;
        tenant->raced[gpu] += rounded_up (tenant, won);
        tenant->raced_reported[gpu] += won;
        tenant->excess[gpu] -= won;
    }
    tenant->unconfirmed_calls = tenant->inflight_count;
}

void unconfirmed_forget (struct tenant *tenant)
{
    bool has_filter = tenant_has_filter (tenant);

    if (tenant_has_process (tenant))
        return;
    rm_forget_unconfirmed (tenant->rm);
    /* One that never called the driver may have UVM's file. */
    for (uint32_t gpu = 0; !has_filter && gpu < tenant->limits.gpu_count; gpu++)
        tenant->raced[gpu] = tenant->raced_reported[gpu] = 0;
}

bool unconfirmed_free_clients (struct tenant *tenant)
{
    bool any = false;

    for (unsigned i = tenant->unconfirmed_count; i-- > 0;) {
        struct unconfirmed_file held = tenant->unconfirmed[i];
        uint64_t serial = rm_maker_of (tenant->rm, held.client);
        const struct process *maker = process_by_serial (tenant, serial);

        if (serial == 0 || (maker != NULL && !maker->dead))
            continue;
        tenant->unconfirmed[i] = tenant->unconfirmed[--tenant->unconfirmed_count];
        edges_forget (&tenant->edges, held.client);
        closer_free_client (tenant->guard, held.file, held.client);
        any = true;
    }
    return any;
}

/* A file that goes at a time of the guard's choosing takes with it what is reported, and as much that is won at that moment would not show. */
void unconfirmed_clear (struct tenant *tenant, uint64_t serial)
{
    if (!unconfirmed_is_reported (tenant))
        unconfirmed_release (tenant, serial);
}

void unconfirmed_release (struct tenant *tenant, uint64_t serial)
{
    for (unsigned i = tenant->unconfirmed_count; i-- > 0;)
        if (serial == 0 || tenant->unconfirmed[i].serial == serial)
            release (tenant, i);
}
