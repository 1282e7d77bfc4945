/*
 * The processes of a tenant, found by the thread that a notification names. A process is pinned by a pidfd, so that its
 * number cannot come to mean another one; which process a thread belongs to is asked of the monitor once (privsep.h) and then only checked.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "clock.h"
#include "guard_private.h"
#include "managed.h"
#include "notify.h"
#include "privsep.h"
#include "process.h"
#include "space.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Without the rights to send a signal the kernel tells whether there is a process to send it to (EPERM). */
bool process_is_there (const struct process *process)
{
    return !process->dead && (syscall (SYS_pidfd_send_signal, process->pidfd, 0, NULL, 0) == 0 || errno == EPERM);
}

bool process_has_thread (const struct process *process, pid_t thread)
{
    return syscall (SYS_tgkill, process->pid, thread, 0) == 0 || errno == EPERM;
}

struct process *process_by_serial (struct tenant *tenant, uint64_t serial)
{
    /* The number says where it lies (enter). */
    struct process *process = &tenant->processes[serial % TENANT_PROCESSES];

    return serial != 0 && process->serial == serial ? process : NULL;
}

void process_kill (struct tenant *tenant, const struct process *process)
{
    struct process *current = wait_begin (tenant, process->pid);

    (void) privsep_kill (&tenant->guard->privsep, process);
    wait_end (tenant, current);
}

void process_set_suspect (struct tenant *tenant, struct process *process, bool is_suspect)
{
    tenant->suspects += (unsigned) is_suspect - (unsigned) process->is_suspect;
    process->is_suspect = is_suspect;
}

void process_unwatch (struct tenant *tenant, struct process *process)
{
    if (process->is_unwatched)
        tenant->unwatched--;
    else
        epoll_ctl (tenant->epoll, EPOLL_CTL_DEL, process->pidfd, NULL);
    process->is_unwatched = false;
}

void process_forget (struct tenant *tenant, struct process *process)
{
    process_set_suspect (tenant, process, false);
    process_unwatch (tenant, process);
    client_files_release (tenant, process);
    close (process->pidfd);
    close (process->memory);
    managed_close_maps (process);
    space_close (process);
    memset (process, 0, sizeof (*process));
    while (tenant->process_end > 0 && tenant->processes[tenant->process_end - 1].serial == 0)
        tenant->process_end--;
}

static struct process *free_place (struct tenant *tenant)
{
    struct process *oldest = NULL;

    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0)
            return process;
        /* Without clients there is nothing to remember about it, once it was seen what it mapped. */
        if (!process->has_clients && !process->dead && !process->is_suspect && managed_was_seen (process) &&
            (oldest == NULL || process->used_at < oldest->used_at))
            oldest = process;
    }
    if (oldest != NULL)
        process_forget (tenant, oldest);
    return oldest;
}

/* What came with it is the process's then, or closed. */
static struct process *enter (struct tenant *tenant, const struct privsep_process *found)
{
    struct epoll_event event = { .events = EPOLLIN };
    struct process *process;

    for (unsigned i = 0; i < tenant->process_end; i++) {
        process = &tenant->processes[i];
        if (process->serial != 0 && process->pid == found->pid && process->start_time == found->start_time &&
            process_is_there (process)) {
            close (found->pidfd);
            close (process->memory);
            managed_close_maps (process);
            process->memory = found->memory;
            process->shares_memory = found->shares_memory;
            return process;
        }
    }
    process = free_place (tenant);
    if (process == NULL) {
        close (found->pidfd);
        close (found->memory);
        return NULL;
    }
    *process = (struct process) {
        .serial = ++tenant->next_serial * TENANT_PROCESSES + (uint64_t) (process - tenant->processes),
        .pid = found->pid,
        .pidfd = found->pidfd,
        .memory = found->memory,
        .start_time = found->start_time,
        .pid_levels = found->levels,
        .shares_memory = found->shares_memory,
        .entered_at = guard_now (),
    };
    if (tenant->process_end <= (unsigned) (process - tenant->processes))
        tenant->process_end = (unsigned) (process - tenant->processes) + 1;
    memcpy (process->pid_numbers, found->numbers, sizeof (found->numbers));
    event.data.u64 = process->serial;
    /* What all epolls of a user wait for is limited, and others may have this user: it is looked at from time to time. */
    process->is_unwatched = epoll_ctl (tenant->epoll, EPOLL_CTL_ADD, process->pidfd, &event) != 0;
    tenant->unwatched += process->is_unwatched;
    managed_watch (tenant, process);
    return process;
}

/* NULL: the thread has ended, or is none of the container's. */
static struct process *ask_for (struct tenant *tenant, pid_t thread)
{
    struct process *current = wait_begin (tenant, thread);
    struct privsep_process found;
    int result = privsep_process (&tenant->guard->privsep, thread, &found);

    wait_end (tenant, current);
    notify_found_by_number (tenant);
    if (result == -EPERM)
        guard_note (tenant, RM_FOREIGN_PROCESS, 0, thread);
    return result == 0 ? enter (tenant, &found) : NULL;
}

bool process_open_memory (struct tenant *tenant, struct process *process, pid_t thread)
{
    uint64_t serial = process->serial;
    struct process *found = ask_for (tenant, thread);

    return found == process && found->serial == serial;
}

struct process *process_of_thread (struct tenant *tenant, pid_t thread)
{
    struct thread_entry *entry = &tenant->threads[(uint32_t) thread % TENANT_THREADS];
    struct process *process = entry->thread == thread ? process_by_serial (tenant, entry->serial) : NULL;
    uint64_t now = guard_now ();
    bool is_known = process != NULL && !process->dead && !process->shares_memory;

    /* The thread's number may mean another one by now, unless it called a moment ago: it must still be of this process. That
     * the process is the one that the pidfd pins shows when a descriptor is taken from it. */
    if (is_known && now - entry->called_at >= THREAD_SOON_NS) {
        /* In this order: while the process is there, its number is its own. */
        is_known = process_has_thread (process, thread) && process_is_there (process);
        notify_found_by_number (tenant);
    }
    if (!is_known) {
        process = ask_for (tenant, thread);
        if (process == NULL || !process_has_thread (process, thread))
            return NULL;
        entry->replay.head_size = 0;
        entry->thread = thread;
        entry->serial = process->serial;
    }
    entry->called_at = process->used_at = now;
    return process;
}

struct process *process_of_thread_again (struct tenant *tenant, pid_t thread)
{
    tenant->threads[(uint32_t) thread % TENANT_THREADS].serial = 0;
    return process_of_thread (tenant, thread);
}
