/*
 * See client_files.h. The driver knows a client by its open file (rmclientValidate, open-gpu-kernel-modules), so the file of a client is the
 * same for as long as the client lives: a copy is asked of the monitor with the first call, and released when the client is freed, when its
 * process ends, or when 32 others were used since. A process that closes the file and lives on keeps the client for so long.
 *
 * What the descriptor is by now is not asked again: a process gains nothing by a call on a file that it had. Files that another container
 * opened are refused: what two guards know of one client is not the same.
 */
#include "client_files.h"
#include "guard_private.h"
#include "held_files.h"
#include "notify.h"
#include "privsep.h"
#include "process.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>

static void remove_at (struct tenant *tenant, struct process *process, unsigned place)
{
    held_file_close (tenant, process->clients[place].file);
    process->clients[place] = process->clients[--process->client_count];
}

static struct client_file *find (struct process *process, int descriptor, uint32_t client)
{
    for (unsigned i = 0; i < process->client_count; i++)
        if (process->clients[i].client == client && process->clients[i].descriptor == descriptor)
            return &process->clients[i];
    return NULL;
}

static int copy_of (struct tenant *tenant, struct process *process, int descriptor, bool is_named, enum rm_node *node)
{
    struct process *current = wait_begin (tenant, process->pid);
    int file = privsep_file (&tenant->guard->privsep, process, descriptor, is_named, node);

    wait_end (tenant, current);
    notify_found_by_number (tenant);
    return file;
}

int process_file (struct tenant *tenant, struct process *process, int descriptor, enum rm_node *node)
{
    int file = copy_of (tenant, process, descriptor, false, node);

    if (file != -EXDEV)
        return file;
    guard_note (tenant, RM_FOREIGN_FILE, 0, process->pid);
    tenant->status.refused++;
    return -EACCES;
}

int named_file (struct tenant *tenant, struct process *process, int descriptor, enum rm_node *node)
{
    return copy_of (tenant, process, descriptor, true, node);
}

int client_file (struct tenant *tenant, struct process *process, int descriptor, uint32_t client, enum rm_node *node)
{
    struct client_file *known = find (process, descriptor, client);
    unsigned oldest = 0;
    int file;

    if (known != NULL) {
        known->used = tenant->status.notifications;
        *node = known->node;
        return known->file;
    }
    file = process_file (tenant, process, descriptor, node);
    if (file < 0)
        return file;
    for (unsigned i = 1; i < process->client_count; i++)
        if (process->clients[i].used < process->clients[oldest].used)
            oldest = i;
    if (process->client_count == PROCESS_CLIENTS)
        remove_at (tenant, process, oldest);
    process->clients[process->client_count++] = (struct client_file) {
        .client = client, .descriptor = descriptor, .file = file, .node = *node, .used = tenant->status.notifications
    };
    return file;
}

void client_file_drop (struct tenant *tenant, struct process *process, int descriptor, uint32_t client)
{
    struct client_file *known = find (process, descriptor, client);

    if (known != NULL)
        remove_at (tenant, process, (unsigned) (known - process->clients));
}

void client_files_forget (struct tenant *tenant, uint32_t client)
{
    for (unsigned i = 0; i < tenant->process_end; i++)
        for (unsigned k = tenant->processes[i].serial != 0 ? tenant->processes[i].client_count : 0; k-- > 0;)
            if (tenant->processes[i].clients[k].client == client)
                remove_at (tenant, &tenant->processes[i], k);
}

void client_files_release (struct tenant *tenant, struct process *process)
{
    while (process->client_count != 0)
        remove_at (tenant, process, process->client_count - 1);
}
