/*
 * Managed memory: a shared mapping of the UVM node, which only the container itself can make. It is let through, and then
 * charged by what /proc/PID/maps shows, so that swapping the descriptor meanwhile, or mapping from a child, gains nothing.
 * Who is over the quota by it has its channels frozen until it is not: nothing else can take such memory back.
 *
 * One way is not announced: the first mmap of the 32-bit entry has its arguments in memory, where no filter reads. So everybody is
 * looked at from time to time.
 */
#include "tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FIRST_LOOK_NS 1000000u /* the mapping is made after the answer */
#define LAST_LOOK_NS 1000000000u
/* So many processes are looked at a second when nothing is announced: more of them each wait longer. */
#define LOOKS_A_SECOND 32u

void managed_look (struct tenant *tenant, struct process *process)
{
    process->look_delay = FIRST_LOOK_NS;
    process->look_at = guard_now () + process->look_delay;
    if (tenant->look_at == 0 || process->look_at < tenant->look_at)
        tenant->look_at = process->look_at;
}

void managed_watch (struct tenant *tenant, struct process *process)
{
    if (process->look_at != 0)
        return;
    process->look_delay = LAST_LOOK_NS;
    process->look_at = guard_now () + process->look_delay;
    if (tenant->look_at == 0 || process->look_at < tenant->look_at)
        tenant->look_at = process->look_at;
}

void managed_announced (struct tenant *tenant, struct process *process, int descriptor)
{
    enum rm_node node = RM_NODE_OTHER;
    int copy = process_copy (tenant, process, descriptor, &node);

    if (copy >= 0)
        close (copy);
    /* A process that never called the driver has no mapping that could count, unless this is its first. */
    if (node == RM_NODE_UVM || process->client_count != 0)
        managed_look (tenant, process);
}

/* Bytes that the process has mapped of the UVM node: such a mapping is shared, and its offset in the node is its address, or
 * UVM refuses it (uvm_mmap, kernel-open/nvidia-uvm/uvm.c). The node itself may have any name and number. */
static uint64_t mapped (const struct process *process)
{
    char path[64], line[512];
    uint64_t bytes = 0;
    FILE *file;

    snprintf (path, sizeof (path), "/proc/%d/maps", (int) process->pid);
    file = fopen (path, "re");
    if (file == NULL)
        return 0;
    while (fgets (line, sizeof (line), file) != NULL) {
        unsigned long long from, to, offset;
        char rights[5];

        if (sscanf (line, "%llx-%llx %4s %llx", &from, &to, rights, &offset) == 4 && rights[3] == 's' && offset == from)
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
    uint64_t next = 0, seldom = LAST_LOOK_NS;
    unsigned count = 0;

    if (tenant->look_at == 0 || tenant->look_at > now)
        return;
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        count += tenant->processes[i].serial != 0;
    if (count > LOOKS_A_SECOND)
        seldom = LAST_LOOK_NS / LOOKS_A_SECOND * count;
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0 || process->look_at == 0)
            continue;
        if (process->look_at <= now) {
            bool is_routine = process->look_delay >= LAST_LOOK_NS && process->client_count == 0 && process->managed == 0;
            uint64_t bytes = is_routine ? 0 : mapped (process);

            if (bytes != process->managed)
                charge (tenant, process, bytes);
            /* Nothing tells of an unmapping, so whoever has such memory is looked at again, ever more rarely. */
            process->look_delay = process->look_delay >= LAST_LOOK_NS / 4 ? LAST_LOOK_NS : process->look_delay * 4;
            process->look_at = now + (process->look_delay < LAST_LOOK_NS ? process->look_delay : seldom);
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
            charge (tenant, process, mapped (process));
    }
}
