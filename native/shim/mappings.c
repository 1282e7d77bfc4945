/*
 * Managed memory: mmap and munmap of UVM's node (calls.h). Runs in every process of a container that uses a GPU, on the
 * calling thread. Takes the process's lock, but not during the mmap itself.
 */
#include <errno.h>
#include <sys/mman.h>

#include "calls.h"
#include "limits.h"
#include "next.h"
#include "process.h"
#include "raw.h"
#include "refused.h"
#include "rm/managed.h"

/* GPUs that libnvc-shim-api.so designated for the next managed mapping of a thread. */
#define MAX_DESIGNATIONS 16
static struct {
    uint32_t thread; /* 0: free */
    uint8_t uuid[16];
} designations[MAX_DESIGNATIONS];
static uint32_t designation_count;

void call_next_managed (const uint8_t uuid[16])
{
    uint32_t thread = (uint32_t) RAW0 (SYS_gettid), unused;

    for (int pass = 0; pass < 2; pass++) /* the thread's own entry first, then an unused one */
        for (int i = 0; i < MAX_DESIGNATIONS; i++) {
            unused = 0;
            if (pass == 0 ? LOAD (designations[i].thread) != thread
                          : !__atomic_compare_exchange_n (&designations[i].thread, &unused, thread, false, __ATOMIC_SEQ_CST,
                                                          __ATOMIC_SEQ_CST))
                continue;
            for (int byte = 0; byte < 16; byte++)
                designations[i].uuid[byte] = uuid[byte];
            if (pass == 1)
                __atomic_add_fetch (&designation_count, 1, __ATOMIC_SEQ_CST);
            return;
        }
}

static int designated_gpu (struct process *process)
{
    uint32_t thread;
    int gpu = RM_NO_GPU;

    if (!LOAD (designation_count))
        return gpu;
    thread = (uint32_t) RAW0 (SYS_gettid);
    for (int i = 0; i < MAX_DESIGNATIONS; i++)
        if (LOAD (designations[i].thread) == thread) {
            gpu = limits_find_gpu (process->limits, designations[i].uuid);
            __atomic_sub_fetch (&designation_count, 1, __ATOMIC_SEQ_CST);
            STORE (designations[i].thread, 0u);
        }
    return gpu;
}

static void update_has_managed (struct process *process)
{
    process->in_managed = false;
    __atomic_store_n (&process->has_managed, rm_has_managed (process->rm), __ATOMIC_RELAXED);
}

static void discharge (struct process *process, uint64_t address, uint64_t length)
{
    process->in_managed = true;
    rm_unmap (process->rm, address, length);
    update_has_managed (process);
}

/* After a failed mmap with MAP_FIXED. The previous mapping is intact or gone as a whole: kernels differ in whether they
 * unmap before they call the driver. */
static void discharge_if_gone (struct process *process, uint64_t address, uint64_t length)
{
    uint64_t managed = rm_managed_from (process->rm, address, length);

    if (managed != UINT64_MAX && RAW3 (SYS_msync, managed, 4096, MS_ASYNC) == -ENOMEM)
        discharge (process, address, length);
}

static uint64_t whole_pages (uint64_t length) { return (length + 4095) & ~(uint64_t) 4095; }

/* Reserves the quota for a mapping of the UVM node, and locks the process. false, without the lock: it is no such
 * mapping (*process is NULL), or it exceeds the quota. */
static bool begin_mapping (struct process **process, int descriptor, uint64_t place, uint64_t size, struct rm_mapping *mapping,
                           uint64_t *signals)
{
    bool granted;

    *process = process_enter_known (signals);
    if (!*process)
        return false;
    if (!(*process)->rm || process_node_kind (*process, descriptor) != RM_NODE_UVM) {
        process_leave (*process, *signals);
        *process = NULL;
        return false;
    }
    (*process)->in_managed = true;
    granted = rm_mapping_begin ((*process)->rm, designated_gpu (*process), place, size, mapping);
    update_has_managed (*process);
    if (!granted)
        process_leave (*process, *signals);
    return granted;
}

void *call_mmap (enum next which, void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    bool fixed = flags & MAP_FIXED, shared = (flags & MAP_TYPE) != MAP_PRIVATE && !(flags & MAP_ANONYMOUS), uvm;
    /* UVM accepts a mapping only at the address that equals its offset: so the address is known before the call. */
    uint64_t signals, size = whole_pages (length), place = fixed ? (uint64_t) address : (uint64_t) offset;
    struct process *process = NULL;
    struct rm_mapping mapping;
    int before = errno;
    void *result;

    uvm = shared && length && begin_mapping (&process, descriptor, place, size, &mapping, &signals);
    if (process && !uvm) {
        refused_set ((uint32_t) RAW0 (SYS_gettid));
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (uvm)
        process_unlock (process);
    errno = before;
    result = next_mmap (which, address, length, protection, flags, descriptor, offset);
    before = errno;
    if (uvm)
        process_lock (process);
    else if (fixed && length)
        process = process_enter_known (&signals);
    if (process) {
        if (uvm) {
            process->in_managed = true;
            if (result == MAP_FAILED)
                rm_mapping_refused (process->rm, &mapping);
            else
                rm_mapping_made (process->rm, &mapping, (uint64_t) result);
            update_has_managed (process);
        }
        if (fixed && process->rm && result == MAP_FAILED)
            discharge_if_gone (process, place, size);
        else if (fixed && process->rm && !uvm)
            discharge (process, place, size);
        process_leave (process, signals);
    }
    errno = before;
    return result;
}

int call_munmap (void *address, size_t length)
{
    uint64_t signals;
    struct process *process = NULL;

    if (length && ((unsigned long) address & 4095) == 0)
        process = process_enter_known (&signals);
    if (process) {
        if (process->rm)
            discharge (process, (uint64_t) address, whole_pages (length));
        process_leave (process, signals);
    }
    return next_munmap (address, length);
}
