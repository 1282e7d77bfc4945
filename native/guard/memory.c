/*
 * The container's memory: copied out once, copied back once, by /proc/PID/mem, which the monitor opened: reading and writing takes no
 * rights then. It can be a file's that does not answer (FUSE, NFS), or its process can be forked or executed, which takes seconds when
 * it is large.
 *
 * /proc/PID/mem reaches private memory that its process has made read-only, or not accessible (FOLL_FORCE; fs/proc/base.c), where the
 * kernel's own copy would give EFAULT: of the caller's own memory, which its own call names. Not shared read-only mappings.
 *
 * Runs in the tenant's thread.
 */
#include "clock.h"
#include "memory.h"
#include "notify.h"
#include "process.h"
#include "tenant.h"
#include "wait.h"

#include <string.h>
#include <unistd.h>

#define PAGE 4096u /* the smallest that the kernel has */

/* While the container's memory kept this thread waiting, the number of the one that called can have come to mean a stranger. */
static bool is_caller (const struct tenant *tenant, const struct process *process, pid_t thread)
{
    return guard_now () - atomic_load_explicit (&tenant->called_at, memory_order_relaxed) < THREAD_SOON_NS ||
           (process_has_thread (process, thread) && process_is_there (process));
}

static ssize_t copy (struct tenant *tenant, uint64_t address, void *to, const void *from, size_t size)
{
    int memory = tenant->current->memory;
    struct process *current = wait_begin (tenant, tenant->current->pid);
    ssize_t done = to != NULL ? pread (memory, to, size, (off_t) address) : pwrite (memory, from, size, (off_t) address);

    wait_end (tenant, current);
    return done;
}

static bool copy_all (struct tenant *tenant, pid_t thread, uint64_t address, void *to, const void *from, size_t size)
{
    ssize_t done;

    if (size == 0)
        return true;
    /* A negative offset is an address of the kernel's, which no process has. */
    if (address > INT64_MAX || tenant->notified.is_over || !is_caller (tenant, tenant->current, thread))
        return false;
    done = copy (tenant, address, to, from, size);
    /* Nothing, and no error: the address space has no user any more (mem_rw). Its process has executed something: before this call, whose
     * thread waits, or now, and then what is there by the thread's number is another program, which no answer is to be written into. */
    if (done == 0 && process_open_memory (tenant, tenant->current, thread) && notify_is_waiting (tenant))
        done = copy (tenant, address, to, from, size);
    return done == (ssize_t) size;
}

/* As it was when the struct was read: the same memory, and what another thread writes there meanwhile is not part of the call either way. */
static bool is_in_window (const struct memory_window *window, uint64_t address, size_t size)
{
    return address >= window->address && address - window->address <= window->size &&
           size <= window->size - (address - window->address);
}

bool memory_read (struct tenant *tenant, pid_t thread, uint64_t address, void *to, size_t size)
{
    const struct memory_window *window = &tenant->window;

    if (!is_in_window (window, address, size))
        return copy_all (tenant, thread, address, to, NULL, size);
    memcpy (to, window->bytes + (address - window->address), size);
    return true;
}

/* Of the pages of the struct itself only: another one may be a file's that does not answer. */
bool memory_read_head (struct tenant *tenant, pid_t thread, uint64_t address, size_t size)
{
    struct memory_window *window = &tenant->window;
    uint64_t page = address & ~(uint64_t) (PAGE - 1), last = (address + size - 1) | (PAGE - 1);
    uint64_t from = address - page < WINDOW_BEFORE ? page : address - WINDOW_BEFORE;
    uint64_t behind = last - (address + size - 1);
    size_t whole = (size_t) (address - from) + size + (size_t) (behind < WINDOW_BEHIND ? behind : WINDOW_BEHIND);

    window->size = 0;
    if (address > INT64_MAX || !copy_all (tenant, thread, from, window->bytes, NULL, whole))
        return false;
    window->address = from;
    window->size = whole;
    memcpy (tenant->head, window->bytes + (address - from), size);
    return true;
}

bool memory_read_params (struct tenant *tenant, pid_t thread, uint64_t params, uint32_t size)
{
    /* The driver reads some params by a size of its own: what is not there must not be an earlier call's. */
    if (tenant->params_used > size)
        memset (tenant->params + size, 0, tenant->params_used - size);
    tenant->params_used = size;
    return memory_read (tenant, thread, params, tenant->params, size);
}

bool memory_write (struct tenant *tenant, pid_t thread, uint64_t address, const void *from, size_t size)
{
    return copy_all (tenant, thread, address, NULL, from, size);
}
