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
#include "process.h"
#include "space.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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

static void set_rights (bool are_on)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    struct __user_cap_data_struct data[2] = { { 0 }, { 0 } };

    if (syscall (SYS_capget, &header, data) != 0)
        return;
    for (unsigned i = 0; i < 2; i++) {
        data[i].effective &= ~tenant_seldom[i];
        data[i].effective |= are_on ? data[i].permitted & tenant_seldom[i] : 0;
    }
    (void) syscall (SYS_capset, &header, data);
}

static int open_watch (pid_t pid)
{
    struct perf_event_attr attributes = { .type = PERF_TYPE_SOFTWARE,
                                          .size = sizeof (attributes),
                                          .config = PERF_COUNT_SW_DUMMY,
                                          .read_format = PERF_FORMAT_TOTAL_TIME_ENABLED,
                                          .disabled = 1,
                                          .enable_on_exec = 1,
                                          .exclude_kernel = 1,
                                          .exclude_hv = 1 };
    int watch = (int) syscall (SYS_perf_event_open, &attributes, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);

    return watch < 0 ? -errno : watch;
}

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

static void watch (struct space *space, pid_t pid)
{
    void *page = MAP_FAILED;

    set_rights (true);
    space->watch = open_watch (pid);
    /* Without it the kernel does not say that the thread has ended. */
    if (space->watch >= 0)
        page = mmap (NULL, (size_t) sysconf (_SC_PAGESIZE), PROT_READ, MAP_SHARED, space->watch, 0);
    set_rights (false);
    if (page != MAP_FAILED)
        space->page = page;
    else if (space->watch >= 0)
        close (space->watch);
}

/* In a thread with a tenant's rights, on itself. */
static void *try_watching (void *argument)
{
    struct guard *guard = argument;
    struct process own = { 0 };

    if (tenant_drop_rights ()) {
        watch (&own.space, (pid_t) syscall (SYS_gettid));
        guard->sees_exec = own.space.page != NULL;
        space_close (&own);
    }
    return NULL;
}

void space_begin (struct guard *guard)
{
    pthread_t thread;

    guard->exec_watch = open_watch (0);
    if (guard->exec_watch >= 0 && pthread_create (&thread, NULL, try_watching, guard) == 0)
        pthread_join (thread, NULL);
}

void space_end (struct guard *guard)
{
    if (guard->exec_watch >= 0)
        close (guard->exec_watch);
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
    char path[64];

    if (space_is_current (process))
        return true;
    space_orphan (tenant, process);
    /* An execve of another of its threads holds this up. */
    current = wait_begin (tenant, process->pid);
    for (unsigned i = 0; i < TRIES && !space->is_held; i++) {
        /* The first thread has ended, or is about to be another one. */
        pid_t target = i % 2 == 0 ? process->pid : thread;

        watch (space, target);
        snprintf (path, sizeof (path), "/proc/%d/task/%d/mem", (int) process->pid, (int) target);
        if (space->page != NULL || !tenant->guard->sees_exec)
            space->is_held = (space->memory = open (path, O_RDONLY | O_CLOEXEC)) >= 0;
        /* Watched before it was opened: what was executed between the two would not be known. */
        if (!space_is_current (process))
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

    if (space->is_held && process->managed + announced != 0 && is_used (tenant, process->pid, space->memory)) {
        struct orphan_space *orphan = &tenant->orphan_overflow;

        if (tenant->orphan_space_count < TENANT_SPACES) {
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
        managed_charge (tenant, &orphan->bytes, 0, orphan->pid);
        close (orphan->memory);
        *orphan = tenant->orphan_spaces[--tenant->orphan_space_count];
    }
}

void space_release (struct tenant *tenant)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        space_close (&tenant->processes[i]);
    for (unsigned i = 0; i < tenant->orphan_space_count; i++)
        close (tenant->orphan_spaces[i].memory);
    tenant->orphan_space_count = 0;
}
