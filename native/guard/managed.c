/*
 * Managed memory: a shared mapping of the UVM node, which only the container itself can make. It is let through, and then
 * charged by what /proc/PID/maps shows, so that swapping the descriptor meanwhile, or mapping from a child, gains nothing.
 * Who is over the quota by it has its channels frozen until it is not: nothing else can take such memory back.
 */
#include "tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FIRST_LOOK_NS 1000000u /* the mapping is made after the answer */
#define LAST_LOOK_NS 1000000000u

static void know (struct tenant *tenant, const struct stat *status)
{
    for (unsigned i = 0; i < tenant->uvm_count; i++)
        if (tenant->uvm[i].device == status->st_dev && tenant->uvm[i].inode == status->st_ino)
            return;
    if (tenant->uvm_count < sizeof (tenant->uvm) / sizeof (tenant->uvm[0])) {
        tenant->uvm[tenant->uvm_count].device = status->st_dev;
        tenant->uvm[tenant->uvm_count++].inode = status->st_ino;
        books_uvm (tenant);
    }
}

void managed_look (struct tenant *tenant, struct process *process)
{
    process->look_delay = FIRST_LOOK_NS;
    process->look_at = guard_now () + process->look_delay;
    if (tenant->look_at == 0 || process->look_at < tenant->look_at)
        tenant->look_at = process->look_at;
}

void managed_announced (struct tenant *tenant, struct process *process, int descriptor)
{
    enum rm_node node = RM_NODE_OTHER;
    int copy = process_copy (tenant, process, descriptor, &node);
    struct stat status;

    if (copy >= 0) {
        if (node == RM_NODE_UVM && fstat (copy, &status) == 0)
            know (tenant, &status);
        close (copy);
    }
    /* A process that never called the driver has no mapping that could count, unless this is its first. */
    if (node == RM_NODE_UVM || process->client_count != 0)
        managed_look (tenant, process);
}

static bool is_uvm (const struct tenant *tenant, unsigned major_number, unsigned minor_number, unsigned long inode)
{
    for (unsigned i = 0; i < tenant->uvm_count; i++)
        if (major (tenant->uvm[i].device) == major_number && minor (tenant->uvm[i].device) == minor_number &&
            tenant->uvm[i].inode == inode)
            return true;
    return false;
}

/* Bytes that the process has mapped of the UVM node. */
static uint64_t mapped (const struct tenant *tenant, const struct process *process)
{
    char path[64], line[512];
    uint64_t bytes = 0;
    FILE *file;

    snprintf (path, sizeof (path), "/proc/%d/maps", (int) process->pid);
    file = fopen (path, "re");
    if (file == NULL)
        return 0;
    while (fgets (line, sizeof (line), file) != NULL) {
        unsigned long long from, to;
        unsigned major_number, minor_number;
        unsigned long inode;

        if (sscanf (line, "%llx-%llx %*4s %*x %x:%x %lu", &from, &to, &major_number, &minor_number, &inode) == 5 &&
            is_uvm (tenant, major_number, minor_number, inode))
            bytes += to - from;
    }
    fclose (file);
    return bytes;
}

static void charge (struct tenant *tenant, struct process *process, uint64_t bytes)
{
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        uint64_t limit = tenant->limits.gpus[gpu].memory;
        bool over;

        tenant->managed[gpu] -= process->managed;
        tenant->managed[gpu] += bytes;
        over = limit != 0 && tenant_used (tenant, gpu) > limit;
        if (over && bytes > process->managed)
            guard_note (tenant, RM_OVER_QUOTA, 0, process->pid);
        if (over != tenant->over[gpu]) {
            tenant->over[gpu] = over;
            schedule_apply (tenant, gpu);
        }
    }
    process->managed = bytes;
}

void managed_forget (struct tenant *tenant, struct process *process)
{
    if (process->managed != 0)
        charge (tenant, process, 0);
}

void managed_refresh (struct tenant *tenant, uint64_t now)
{
    uint64_t next = 0;

    if (tenant->look_at == 0 || tenant->look_at > now)
        return;
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0 || process->look_at == 0)
            continue;
        if (process->look_at <= now) {
            uint64_t bytes = mapped (tenant, process);

            if (bytes != process->managed)
                charge (tenant, process, bytes);
            /* Nothing tells of an unmapping, so whoever has such memory is looked at again, ever more rarely. */
            process->look_delay = process->look_delay >= LAST_LOOK_NS / 4 ? LAST_LOOK_NS : process->look_delay * 4;
            process->look_at = bytes != 0 || process->look_delay < LAST_LOOK_NS ? now + process->look_delay : 0;
        }
        if (process->look_at != 0 && (next == 0 || process->look_at < next))
            next = process->look_at;
    }
    tenant->look_at = next;
}

void managed_now (struct tenant *tenant)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial != 0 && process->managed != 0 && !process->dead)
            charge (tenant, process, mapped (tenant, process));
    }
}
