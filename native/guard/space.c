/*
 * Orphaned address spaces: those that live on after the process that mapped managed memory there. A child can share its parent's (CLONE_VM,
 * vfork): what it maps stays when it ends or calls execve, with a process that may never have made a call, and nothing in /proc tells
 * which processes share an address space. So the guard holds the address space itself of each process that announces such a mapping,
 * by an open file of /proc/PID/mem: the kernel keeps it apart from the process, and by it tells whether any process uses it still
 * (mem_rw, mmget_not_zero, fs/proc/base.c). What was mapped in one that is used by others is charged until none does.
 *
 * An execve is not announced, because then no program could be executed while the agent is not there. The kernel tells of
 * it by a counter of the process's first thread that it switches on at execve (enable_on_exec of perf_event_open(2)), or that it closes
 * when another thread's execve takes the first one's place.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "clock.h"
#include "guard_private.h"
#include "managed.h"
#include "privsep.h"
#include "process.h"
#include "space.h"
#include "tenant.h"
#include "wait.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRIES 4u
/* No process has memory there: the first bit above a process's addresses (56 on x86, 52 on aarch64) that is not one of those
 * which the kernel takes for a tag and leaves out (57 to 62 with LAM; 56 to 63). */
#if defined(__x86_64__)
#define NOWHERE ((off_t) 1 << 56)
#else
#define NOWHERE ((off_t) 1 << 54)
#endif
#define SETTLED_NS 1000000000u

/* Whether the process has executed something since it is watched, or its first thread has ended. */
static bool has_executed (const struct space *space)
{
    struct pollfd asked = { .fd = space->watch };
    uint64_t values[2]; /* count, ns switched on */

    if (space->page == NULL)
        return false;
    return read (space->watch, values, sizeof (values)) != sizeof (values) || values[1] != 0 || poll (&asked, 1, 0) < 0 ||
           (asked.revents & POLLHUP) != 0;
}

/* files: of privsep_space. Without a page the kernel does not say that the thread has ended. */
static void begin (struct space *space, const int files[2])
{
    void *page = mmap (NULL, (size_t) sysconf (_SC_PAGESIZE), PROT_READ, MAP_SHARED, files[0], 0);

    *space = (struct space) { .is_held = true, .watch = files[0], .memory = files[1], .page = page != MAP_FAILED ? page : NULL };
    if (space->page == NULL)
        close (files[0]);
}

void space_begin (struct guard *guard)
{
    struct process own = { 0 };
    int files[2];

    if (privsep_space (&guard->privsep, NULL, 0, files) != 0)
        return;
    begin (&own.space, files);
    guard->sees_exec = own.space.page != NULL;
    space_close (&own);
}

void space_close (struct process *process)
{
    struct space *space = &process->space;

    if (space->page != NULL) {
        munmap (space->page, (size_t) sysconf (_SC_PAGESIZE));
        close (space->watch);
    }
    if (space->is_held)
        close (space->memory);
    *space = (struct space) { 0 };
}

bool space_hold (struct tenant *tenant, struct process *process, pid_t thread)
{
    struct space *space = &process->space;
    struct process *current;

    if (space_is_current (process))
        return true;
    space_orphan (tenant, process);
    /* An execve of another of its threads holds this up. */
    current = wait_begin (tenant, process->pid);
    for (unsigned i = 0; i < TRIES && !space->is_held; i++) {
        int files[2];

        /* The first thread has ended, or is about to be another one. */
        if (privsep_space (&tenant->guard->privsep, process, i % 2 == 0 ? process->pid : thread, files) != 0)
            continue;
        begin (space, files);
        if ((space->page == NULL && tenant->guard->sees_exec) || !space_is_current (process))
            space_close (process);
    }
    wait_end (tenant, current);
    return space->is_held;
}

bool space_is_current (const struct process *process) { return process->space.is_held && !has_executed (&process->space); }

void space_announced (struct process *process, uint64_t bytes)
{
    struct space *space = &process->space;

    /* What is announced need not be possible. */
    space->announced = bytes < SPACE_MOST - space->announced ? space->announced + bytes : SPACE_MOST;
    space->announced_at = guard_now ();
}

void space_seen (struct process *process, uint64_t bytes, uint64_t now)
{
    struct space *space = &process->space;
    uint64_t more = bytes > process->managed ? bytes - process->managed : 0;

    /* The kernel makes a mapping when it has the lock, some time after it was let through; and not every one succeeds. */
    space->announced -= more < space->announced ? more : space->announced;
    if (space->announced_at + SETTLED_NS < now)
        space->announced = 0;
}

/* Whether any process uses it. */
static bool is_used (struct tenant *tenant, pid_t pid, int memory)
{
    /* The last user frees it, and that is this thread if its processes ended meanwhile. */
    struct process *current = wait_begin (tenant, pid);
    char byte;
    bool used = pread (memory, &byte, sizeof (byte), NOWHERE) != 0; /* EIO: nothing lies there; 0: it has no users */

    wait_end (tenant, current);
    return used;
}

void space_orphan (struct tenant *tenant, struct process *process)
{
    struct space *space = &process->space;
    uint64_t announced = space->announced;
    bool is_charged = space->is_held && process->managed + announced != 0;
    bool is_shared = is_charged && is_used (tenant, process->pid, space->memory);

    if (is_shared || (is_charged && tenant->shares_uvm)) {
        struct orphan_space *orphan = &tenant->orphan_overflow;

        if (is_shared && tenant->orphan_space_count < TENANT_SPACES) {
            orphan = &tenant->orphan_spaces[tenant->orphan_space_count++];
            *orphan = (struct orphan_space) { .memory = space->memory, .pid = process->pid };
            space->is_held = false; /* the file is that one's now */
        }
        orphan->bytes += process->managed; /* which is charged */
        process->managed = 0;
        announced += orphan->bytes;
        /* Any number of them can be left for good. */
        managed_charge (tenant, &orphan->bytes, announced < SPACE_MOST ? announced : SPACE_MOST, process->pid);
        managed_look_at_orphans (tenant);
    }
    space_close (process);
}

void space_check (struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->orphan_space_count;) {
        struct orphan_space *orphan = &tenant->orphan_spaces[i];

        if (is_used (tenant, orphan->pid, orphan->memory)) {
            i++;
            continue;
        }
        if (tenant->shares_uvm)
            tenant->orphan_overflow.bytes += orphan->bytes; /* which is charged */
        else
            managed_charge (tenant, &orphan->bytes, 0, orphan->pid);
        close (orphan->memory);
        *orphan = tenant->orphan_spaces[--tenant->orphan_space_count];
    }
}

void space_release (struct tenant *tenant)
{
    for (unsigned i = 0; i < tenant->process_end; i++)
        space_close (&tenant->processes[i]);
    for (unsigned i = 0; i < tenant->orphan_space_count; i++)
        close (tenant->orphan_spaces[i].memory);
    tenant->orphan_space_count = 0;
}
