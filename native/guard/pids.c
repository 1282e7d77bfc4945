/*
 * The driver says pids, and takes them, in the pid namespace of the thread that makes the call (os_find_ns_pid): for a
 * performed call the guard's own. NSpid of /proc/PID/status has a process's number in each namespace from the reader's on
 * inwards, so the caller's own namespace is where its own line ends. The monitor reads it when it finds the process.
 */
#include "pids.h"
#include "process.h"
#include "tenant.h"

/* 0: it is in no namespace of the caller's. */
static uint32_t shown (const struct process *caller, const struct process *process)
{
    unsigned level = caller != NULL ? caller->pid_levels : 0;

    return level != 0 && process->pid_levels >= level ? process->pid_numbers[level - 1] : 0;
}

uint32_t pids_shown (void *context, uint32_t pid)
{
    struct tenant *tenant = context;

    for (unsigned i = 0; pid != 0 && i < tenant->process_end; i++)
        if (tenant->processes[i].serial != 0 && (uint32_t) tenant->processes[i].pid == pid)
            return shown (tenant->current, &tenant->processes[i]);
    return 0;
}

uint32_t pids_of_driver (void *context, uint32_t pid)
{
    struct tenant *tenant = context;

    for (unsigned i = 0; pid != 0 && i < tenant->process_end; i++)
        if (tenant->processes[i].serial != 0 && shown (tenant->current, &tenant->processes[i]) == pid)
            return (uint32_t) tenant->processes[i].pid;
    return 0;
}
