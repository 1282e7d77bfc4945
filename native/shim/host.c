/*
 * The callbacks of rm (struct rm_host, rm.h) in a process: memory, calls of the driver, the quota.
 *
 * Runs in every process of a container that uses a GPU, on the thread that called rm, under the process's lock.
 */
#include "limits.h"
#include "plain.h"
#include "process.h"
#include "raw.h"

static void *allocate (void *context, size_t size) { return memory_allocate (&((struct process *) context)->memory, size); }

static void release (void *context, void *piece, size_t size)
{
    memory_release (&((struct process *) context)->memory, piece, size);
}

static long call (void *context, uint64_t file, uint32_t request, void *argument)
{
    struct process *process = context;
    int descriptor = files_descriptor (&process->files, file);
    long result;

    if (descriptor < 0)
        return -9; /* EBADF */
    /* All signals are blocked; a call that a tracer interrupted is made again. */
    while ((result = RAW3 (SYS_ioctl, descriptor, request, argument)) == -4)
        ;
    return result > 0 ? 0 : result;
}

static int find_gpu (void *context, const uint8_t uuid[16])
{
    struct process *process = context;

    /* Without limits every GPU is one on which nothing may be allocated. */
    return process->known ? limits_find_gpu (process->limits, uuid) : 0;
}

static bool reserve (void *context, int gpu, uint64_t bytes)
{
    struct process *process = context;

    process_check_limits (process);
    if (!process->usable)
        return false;
    if (gpu < 0 || gpu >= SHARE_MAX_GPUS)
        return true;
    if (!region_reserve (&process->region, gpu, bytes, process_memory_limit (process, gpu)))
        return false;
    if (process->in_managed)
        __atomic_add_fetch (&process->region.slot->managed[gpu], bytes, __ATOMIC_RELAXED);
    return true;
}

static void refund (void *context, int gpu, uint64_t bytes)
{
    struct process *process = context;
    uint64_t *managed;

    if (gpu < 0 || gpu >= SHARE_MAX_GPUS)
        return;
    region_refund (&process->region, gpu, bytes);
    managed = &process->region.slot->managed[gpu];
    if (process->in_managed)
        __atomic_store_n (managed, *managed > bytes ? *managed - bytes : 0, __ATOMIC_RELAXED);
}

/* Memory that the driver has allocated already: charged whatever the limit. */
static void charge (void *context, int gpu, uint64_t bytes)
{
    struct process *process = context;

    if (gpu < 0 || gpu >= SHARE_MAX_GPUS)
        return;
    region_reserve (&process->region, gpu, bytes, 0);
    if (process->in_managed)
        __atomic_add_fetch (&process->region.slot->managed[gpu], bytes, __ATOMIC_RELAXED);
}

static uint64_t file_of (void *context, int descriptor)
{
    struct process *process = context;
    uint64_t gone, file;

    if (process_node_kind (process, descriptor) != RM_NODE_CONTROL)
        return 0;
    file = files_open (&process->files, descriptor, RM_NODE_CONTROL, &gone);
    /* `gone` was not a control node: rm has no objects of it. */
    return file;
}

static struct rm_numbers numbers (void *context, int gpu)
{
    struct process *process = context;
    struct rm_numbers answer = { 0, 0 };

    process_check_limits (process);
    if (!process->known || gpu < 0 || gpu >= SHARE_MAX_GPUS)
        return answer;
    region_sweep_throttled (&process->region);
    answer.limit = process_memory_limit (process, gpu);
    answer.used = region_sum (&process->region, gpu, false);
    return answer;
}

static uint32_t timeslice (void *context, int gpu)
{
    struct process *process = context;

    return process->known && gpu >= 0 && gpu < SHARE_MAX_GPUS ? process_timeslice (process, gpu) : 0;
}

static uint32_t shown_pid (void *context, uint32_t pid)
{
    return region_has_process (&((struct process *) context)->region, pid) ? pid : 0;
}

static void groups_changed (void *context, int gpu)
{
    struct process *process = context;

    if (gpu >= 0 && gpu < SHARE_MAX_GPUS)
        process->regrouped |= 1u << gpu;
}

static void note (void *context, enum rm_reason reason, uint32_t number)
{
    struct process *process = context;

    region_note (&process->region, reason, number);
    log_note (process, rm_reason_word (reason), number);
}

void host_set (struct rm_host *host)
{
    host->allocate = allocate;
    host->release = release;
    host->ioctl = call;
    host->find_gpu = find_gpu;
    host->reserve = reserve;
    host->refund = refund;
    host->charge = charge;
    host->numbers = numbers;
    host->file_of = file_of;
    host->timeslice = timeslice;
    host->shown_pid = shown_pid;
    host->groups_changed = groups_changed;
    host->note = note;
}
