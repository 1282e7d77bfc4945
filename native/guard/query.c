/*
 * See query.h. Runs in the tenant's thread, under the tenant's lock.
 */
#include "query.h"
#include "clock.h"
#include "driver_usage.h"
#include "fair.h"
#include "guard_private.h"
#include "held_files.h"
#include "process.h"
#include "reconcile.h"
#include "tenant.h"

#include <stdlib.h>

static bool ask (struct tenant *tenant, struct process *process)
{
    struct process_usage usage;
    bool known = false;

    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        if (driver_usage_of_process (tenant->guard->driver_usage, tenant->limits.gpus[gpu].uuid, process->pid, &usage) != 0)
            continue;
        known = true;
        process->driver_usage[gpu] = usage.own;
        process->driver_duplicated[gpu] = usage.duplicated;
    }
    return known;
}

/* A client goes with its file, which the tenant may close where the guard does not hold it: after its process's end above all. What the ledger has of
 * it would hide as much that is won on another client of the process. Whether there was one. */
static bool drop_gone (struct tenant *tenant, const struct process *process)
{
    size_t count = rm_reported_clients (tenant->rm, process->serial, NULL, 0);
    uint32_t *clients = tenant_allocate (tenant, count + 1, sizeof (*clients));
    bool any = false;

    rm_reported_clients (tenant->rm, process->serial, clients, count);
    for (size_t i = 0; i < count; i++) {
        if (held_file_of (tenant, clients[i]) >= 0 || driver_usage_has_client (tenant->guard->driver_usage, clients[i]))
            continue;
        rm_client_gone (tenant->rm, clients[i]);
        any = true;
    }
    free (clients);
    return any;
}

void query_open (struct tenant *tenant)
{
    pthread_mutex_lock (&tenant->guard->driver_usage_lock);
    (void) guard_driver_usage (tenant->guard);
    pthread_mutex_unlock (&tenant->guard->driver_usage_lock);
}

bool query_process (struct tenant *tenant, struct process *process)
{
    uint64_t begun = fair_cpu ();
    bool known = false;

    pthread_mutex_lock (&tenant->guard->driver_usage_lock);
    /* A client that is there after the answer was there before it. */
    if (guard_driver_usage (tenant->guard) != NULL)
        do
            known = ask (tenant, process);
        while (drop_gone (tenant, process));
    pthread_mutex_unlock (&tenant->guard->driver_usage_lock);
    process->asked_at = guard_now ();
    process->asked_falls = rm_reported_falls (tenant->rm);
    fair_spent (tenant, fair_cpu () - begun);
    return known;
}

bool query_holds_nothing (const struct tenant *tenant, const struct process *process)
{
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if (process->driver_usage[gpu] != 0 || process->driver_duplicated[gpu] != 0)
            return false;
    return true;
}

/* A process that never had a client holds nothing. One that ended may, by another one that has its files, which may win more by them. */
bool query_may_hold (const struct tenant *tenant, const struct process *process)
{
    return process->serial != 0 && (process->has_clients || !query_holds_nothing (tenant, process));
}

void query_all (struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (query_may_hold (tenant, process)) {
            query_process (tenant, process);
            /* It is released at the next look, which is now. */
            if (process->dead && !process->is_inherited && query_holds_nothing (tenant, process))
                reconcile_at (tenant, process, guard_now ());
        }
    }
}

bool query_has_heirs (struct tenant *tenant, const struct process *process)
{
    size_t count = rm_clients_of (tenant->rm, process->serial, NULL, 0);
    uint32_t *clients = tenant_allocate (tenant, count + 1, sizeof (*clients));
    bool has = false;

    rm_clients_of (tenant->rm, process->serial, clients, count);
    pthread_mutex_lock (&tenant->guard->driver_usage_lock);
    for (size_t i = 0; !has && i < count && guard_driver_usage (tenant->guard) != NULL; i++)
        has = driver_usage_has_client (tenant->guard->driver_usage, clients[i]);
    pthread_mutex_unlock (&tenant->guard->driver_usage_lock);
    free (clients);
    return has;
}
