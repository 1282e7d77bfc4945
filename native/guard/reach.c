/*
 * Ioctls of rm's own are made on the file that the client belongs to, through a copy of a descriptor that its process has:
 * the files that keep_files.c holds are those of clients with memory, and not of all. So a process can put its descriptor
 * elsewhere, or keep the file by a mapping alone, and go on computing where no freeze reaches it. Whoever is not reached is looked for, by the tenant's
 * own thread; whoever is not found, or moves again and again, is ended: CUDA itself never moves a descriptor.
 */
#include "tenant.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_CONTROL 0xc020462au /* _IOWR ('F', 0x2a, 32 bytes), NVOS54 */
#define CONTROL_GROUP_GET_TIMESLICE 0xa06c0104u
#define INVALID_CLIENT 0x23u /* NV_ERR_INVALID_CLIENT: of another file (rmclientValidate, open-gpu-kernel-modules) */
/* What a process may have open before its file, that it moved it is no accident, and how long it may be unreachable. */
#define MOST_LOOKED_AT 4096u
#define MOST_MOVES 8u
#define PATIENCE_NS 200000000u
#define AGAIN_NS 20000000u

struct control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
_Static_assert (sizeof (struct control) == 32, "NVOS54");

/* 0 when the driver was reached through it; -errno. */
static long through (struct tenant *tenant, const struct process *process, int descriptor, uint32_t request, void *argument)
{
    const struct control *control = argument;
    enum rm_node node;
    int copy = process_copy (tenant, process, descriptor, &node);
    long result;

    if (copy < 0)
        return copy;
    result = node != RM_NODE_CONTROL ? -EBADF : ioctl (copy, request, argument) < 0 ? -errno : 0;
    close (copy);
    return result == 0 && request == REQUEST_CONTROL && control->status == INVALID_CLIENT ? -EBADF : result;
}

long reach_ioctl (struct tenant *tenant, struct process *process, uint32_t request, void *argument)
{
    uint64_t one = 1;
    uint32_t client;
    int descriptor;
    long result;

    memcpy (&client, argument, sizeof (client)); /* hClient is the first field of every such struct */
    descriptor = process_descriptor_of (process, client);
    result = descriptor < 0 ? -EBADF : through (tenant, process, descriptor, request, argument);
    if (result != -EBADF || process->unreached_since != 0)
        return result;
    process->unreached_since = guard_now ();
    process->unreached_client = client;
    tenant->unreached = true;
    if (write (tenant->wake, &one, sizeof (one)) < 0)
        return result; /* it is awake, or will be by the next call */
    return result;
}

/* Asks for what no client has: the driver looks at the client first. */
static bool is_of (struct tenant *tenant, const struct process *process, int descriptor, uint32_t client)
{
    uint64_t slice = 0;
    struct control control = { .client = client,
                               .object = client,
                               .command = CONTROL_GROUP_GET_TIMESLICE,
                               .params = (uint64_t) (uintptr_t) &slice,
                               .params_size = sizeof (slice) };

    return through (tenant, process, descriptor, REQUEST_CONTROL, &control) == 0;
}

static int find (struct tenant *tenant, const struct process *process, uint32_t client)
{
    struct dirent *entry;
    unsigned looked = 0;
    int found = -1;
    char path[64];
    DIR *directory;

    snprintf (path, sizeof (path), "/proc/%d/fd", process->pid);
    directory = opendir (path);
    if (directory == NULL)
        return -1;
    while (found < 0 && looked < MOST_LOOKED_AT && (entry = readdir (directory)) != NULL) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        looked++;
        if (is_of (tenant, process, atoi (entry->d_name), client))
            found = atoi (entry->d_name);
    }
    closedir (directory);
    return found;
}

/* As if it had just come: what was not reached is written again. */
static void apply_again (struct tenant *tenant)
{
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count && gpu < SHARE_MAX_GPUS; gpu++) {
        rm_freeze (tenant->rm, (int) gpu, tenant->frozen[gpu]);
        tenant->status.slice[gpu] = 0;
        schedule_apply (tenant, gpu);
    }
}

/* Whether it is to be looked for again. */
static bool look_for (struct tenant *tenant, struct process *process, uint64_t now)
{
    uint32_t client = process->unreached_client;
    int descriptor = process->dead ? -1 : find (tenant, process, client);

    if (process->dead || !process_is_there (process)) {
        process->unreached_since = 0;
        return false;
    }
    /* A client that was forgotten, because the process has many, has not moved. */
    if (descriptor >= 0 && (process_descriptor_of (process, client) < 0 || process->moves++ < MOST_MOVES)) {
        process->unreached_since = 0;
        process_remember_client (process, client, descriptor);
        tenant->channels_changed = true;
        books_process (tenant, process);
        apply_again (tenant);
        return false;
    }
    if (descriptor < 0 && now < process->unreached_since + PATIENCE_NS)
        return true;
    guard_note (tenant, RM_UNREACHABLE, client, process->pid);
    syscall (SYS_pidfd_send_signal, process->pidfd, SIGKILL, NULL, 0);
    process->unreached_since = 0;
    return false;
}

uint64_t reach_check (struct tenant *tenant, uint64_t now)
{
    if (!tenant->unreached)
        return 0;
    tenant->unreached = false;
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial != 0 && process->unreached_since != 0)
            tenant->unreached |= look_for (tenant, process, now);
    }
    return tenant->unreached ? now + AGAIN_NS : 0;
}
