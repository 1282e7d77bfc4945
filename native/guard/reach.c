/*
 * Ioctls of rm's own are made on the file that the client belongs to. It is held (held_files.c) from the first channel or
 * piece of memory on, so wherever its process puts the descriptor, or closes it and keeps the file by a mapping, its
 * channels are reached; and while a process execs for seconds, and no descriptor can be copied from it, no thread waits for that.
 *
 * A file that is not held, because the guard had none free or is a new one, is looked for by the tenant's own thread.
 * A living process of which the file is found nowhere is ended: nothing could stop its channels. One that is ending already is waited for.
 *
 * Under the tenant's lock; reach_check in the tenant's thread.
 */
#include "clock.h"
#include "edges.h"
#include "guard_private.h"
#include "held_files.h"
#include "privsep.h"
#include "process.h"
#include "reach.h"
#include "schedule.h"
#include "tenant.h"
#include "wait.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REQUEST_CONTROL NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (NVOS54_PARAMETERS))
/* How long a process's file may be out of reach. */
#define PATIENCE_NS 200000000u
#define AGAIN_NS 20000000u
/* The same of a process that is ending: to free hundreds of gigabytes takes a minute. It runs no code, and SIGKILL is pending already. Its channels are
 * bounded by stops as ever: a stop that is due and not done ends the container (late.h). */
#define ENDING_NS UINT64_C (60000000000)

long reach_through (int file, uint32_t request, void *argument)
{
    const NVOS54_PARAMETERS *control = argument;
    long result = ioctl (file, request, argument) < 0 ? -errno : 0;

    return result == 0 && request == REQUEST_CONTROL && control->status == NV_ERR_INVALID_CLIENT ? -EBADF : result;
}

void reach_missing (struct tenant *tenant, struct process *process, uint32_t client)
{
    if (process->dead || process->unreached_since != 0)
        return;
    process->unreached_since = guard_now ();
    process->unreached_client = client;
    tenant->unreached = true;
    tenant_wake (tenant);
}

long reach_ioctl (struct tenant *tenant, struct process *process, uint32_t request, void *argument)
{
    uint32_t client;
    long result;
    int file;

    memcpy (&client, argument, sizeof (client)); /* hClient is the first field of every such struct */
    file = held_file_of (tenant, client);
    result = file < 0 ? -EBADF : reach_through (file, request, argument);
    if (result != -EBADF)
        return result;
    if (file >= 0)
        held_file_release (tenant, client);
    if (process->dead)
        return -ESRCH;
    reach_missing (tenant, process, client);
    return result;
}

bool reach_is_file_of (int file, uint32_t client)
{
    NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS info = { .hObject = client,
                                                       .index = NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID };
    NVOS54_PARAMETERS control = { .hClient = client,
                                  .hObject = client,
                                  .cmd = NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO,
                                  .params = (NvP64) (uintptr_t) &info,
                                  .paramsSize = sizeof (info) };

    return reach_through (file, REQUEST_CONTROL, &control) == 0 && control.status == NV_OK;
}

/* Without the tenant's lock. */
static int find_without_lock (struct privsep *privsep, const struct process *process, uint32_t client)
{
    static int32_t numbers[PRIVSEP_NUMBERS]; /* the tenant's thread is the only one here */
    int count = privsep_files (privsep, process, numbers);

    for (int i = 0; i < count; i++) {
        enum rm_node node;
        int copy = privsep_file (privsep, process, numbers[i], false, &node);

        if (copy >= 0 && node == RM_NODE_CONTROL && reach_is_file_of (copy, client))
            return copy;
        if (copy >= 0)
            close (copy);
    }
    return -1;
}

static int find (struct tenant *tenant, const struct process *process, uint32_t client)
{
    struct process *current = wait_begin (tenant, process->pid);
    int found = find_without_lock (&tenant->guard->privsep, process, client);

    wait_end (tenant, current);
    return found;
}

static bool is_ending (struct tenant *tenant, const struct process *process)
{
    struct process *current = wait_begin (tenant, process->pid);
    bool is_ending = privsep_is_ending (&tenant->guard->privsep, process);

    wait_end (tenant, current);
    return is_ending;
}

/* As if it had just come: what was not reached is written again. */
static void apply_again (struct tenant *tenant)
{
    edges_publish (tenant);
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count && gpu < SHARE_MAX_GPUS; gpu++) {
        tenant->status.slice[gpu] = 0;
        schedule_apply (tenant, gpu);
    }
}

/* Whether it is to be looked for again. */
static bool look_for (struct tenant *tenant, struct process *process, uint64_t now)
{
    uint32_t client = process->unreached_client;
    bool is_held = held_file_of (tenant, client) >= 0;
    int file = is_held || process->dead ? -1 : find (tenant, process, client);

    if (file >= 0) {
        held_file_add (tenant, client, file, process->serial);
        is_held = held_file_of (tenant, client) >= 0;
    }
    if (process->dead || !process_is_there (process) || is_held) {
        process->unreached_since = 0;
        if (is_held)
            apply_again (tenant);
        return false;
    }
    if (now < process->unreached_since + PATIENCE_NS || (now < process->unreached_since + ENDING_NS && is_ending (tenant, process)))
        return true;
    guard_note (tenant, RM_UNREACHABLE, client, process->pid);
    process_kill (tenant, process);
    process->unreached_since = 0;
    return false;
}

uint64_t reach_check (struct tenant *tenant, uint64_t now)
{
    if (!tenant->unreached)
        return 0;
    tenant->unreached = false;
    for (unsigned i = 0; i < tenant->process_end; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial != 0 && process->unreached_since != 0)
            tenant->unreached |= look_for (tenant, process, now);
    }
    return tenant->unreached ? now + AGAIN_NS : 0;
}
