/*
 * ioctl, close, dup, dup2 and dup3 on the driver's nodes (calls.h): tracks the call, asks rm for a decision, makes the
 * call.
 *
 * Runs in every process of a container, on the calling thread. Takes the process's lock, but not during the driver's
 * work.
 */
#include "calls.h"

#include <errno.h>
#include <fcntl.h>

#include "next.h"
#include "process.h"
#include "raw.h"
#include "rm/abi.h"

/* False for NULL and the rest of the first page, which no program maps: the driver returns EFAULT for them. */
static bool readable (const void *address) { return (unsigned long) address >= 4096; }

static void *wanted_memory (struct rm_wanted wanted, uint32_t *size)
{
    *size = wanted.size && wanted.address >= 4096 ? wanted.size : 0;
    return *size ? (void *) wanted.address : NULL;
}

/* Fills in `call` for rm; false: rm has no part in this call. */
static bool prepare (struct process *process, int descriptor, uint32_t request, void *argument, struct rm_call *call)
{
    enum rm_node kind = process_node_kind (process, descriptor);
    bool is_ready = process->current; /* ABI, slot and rm exist */
    uint64_t gone;

    if (kind == RM_NODE_OTHER)
        return false;
    if (!is_ready && !process_knows_driver (process)) {
        process_attach (process);
        return false;
    }
    call->head_size = rm_head_size (process->abi, kind, request);
    if (kind == RM_NODE_UVM ? !call->head_size : !rm_is_interesting (process->abi, kind, request))
        return false;
    if (!is_ready && !process_attach (process))
        return false;
    call->node = kind;
    call->request = request;
    call->file = files_tracked (&process->files, descriptor, kind);
    if (!call->file) {
        call->file = files_open (&process->files, descriptor, kind, &gone);
        if (gone)
            rm_close_file (process->rm, gone);
    }
    call->head = argument;
    call->params = call->list = NULL;
    call->params_size = call->list_size = 0;
    if (!call->file || !call->head_size || !readable (argument))
        return false;
    if (kind == RM_NODE_UVM) /* no pointer in it that rm follows */
        return true;
    call->params = wanted_memory (rm_params_wanted (process->abi, kind, request, argument), &call->params_size);
    if (call->params)
        call->list = wanted_memory (rm_list_wanted (process->abi, kind, request, argument, call->params), &call->list_size);
    return true;
}

static void publish_and_leave (struct process *process, uint64_t signals)
{
    bool start = process_publish (process);

    process_leave (process, signals);
    if (start)
        thread_start (process);
}

/* True when the call needs no lock and no tracking: rm passes it whatever its state (most controls, and UVM ranges),
 * and the current share is applied. Safe without the lock, as the call is made whatever the descriptor refers to by
 * now. */
static __attribute__ ((noinline)) bool can_bypass (int descriptor, uint32_t request, const void *argument)
{
    const struct process *process = &shim_process;
    const struct rm_abi *abi = LOAD_RELAXED (process->abi);

    return abi && files_may_track (&process->files, descriptor) &&
           rm_shim_passes (abi, request, readable (argument) ? argument : NULL) && process_is_current (process);
}

/* A cheap filter before can_bypass: no other request can pass it. */
static bool may_bypass (uint32_t request)
{
    return request == UVM_CREATE_EXTERNAL || rm_request_number (request) == ESCAPE_NUMBER_CONTROL;
}

/* UVM calls that only release something: rm_begin and rm_end both run after the call. */
static bool is_post_only (unsigned long request)
{
    return request == UVM_FREE || request == UVM_UNMAP_EXTERNAL || request == UVM_MAP_SPARSE || request == UVM_UNREGISTER_SPACE ||
           request == UVM_UNREGISTER_GPU;
}

static __attribute__ ((noinline)) int ioctl_post_only (int descriptor, unsigned long request, void *argument)
{
    struct rm_call call;
    int result = next_ioctl (descriptor, request, argument), after = errno;
    uint64_t signals;
    struct process *process = process_enter_known (&signals);

    if (!process)
        return result;
    process_check_limits (process);
    if (prepare (process, descriptor, (uint32_t) request, argument, &call) && rm_begin (process->rm, &call) == RM_CONTINUE)
        rm_end (process->rm, &call, result < 0 ? -after : 0);
    publish_and_leave (process, signals);
    errno = after;
    return result;
}

static __attribute__ ((noinline)) int ioctl_with_pre_and_post (int descriptor, unsigned long request, void *argument)
{
    struct rm_call call;
    enum rm_verdict decision = RM_PASS;
    uint64_t signals;
    int before = errno, result;
    struct process *process = process_enter (&signals);

    if (!process)
        return next_ioctl (descriptor, request, argument);
    process_check_limits (process);
    if (prepare (process, descriptor, (uint32_t) request, argument, &call))
        decision = rm_begin (process->rm, &call);
    if (decision != RM_CONTINUE && decision != RM_PERFORM) {
        publish_and_leave (process, signals);
        errno = before;
        return decision == RM_ANSWERED || decision == RM_REFUSED ? 0 : next_ioctl (descriptor, request, argument);
    }
    process_unlock (process);
    errno = before;
    result = next_ioctl (descriptor, request, argument);
    before = errno;
    process_lock (process);
    rm_end (process->rm, &call, result < 0 ? -before : 0);
    publish_and_leave (process, signals);
    errno = before;
    return result;
}

int call_ioctl (int descriptor, unsigned long request, void *argument)
{
    if (!call_size_may_matter (request) ||
        (may_bypass ((uint32_t) request) && can_bypass (descriptor, (uint32_t) request, argument)))
        return next_ioctl (descriptor, request, argument);
    return (is_post_only (request) ? ioctl_post_only : ioctl_with_pre_and_post) (descriptor, request, argument);
}

void call_apply_changes (void)
{
    uint64_t signals;
    int before = errno;
    struct process *process = process_enter_own (&signals);

    if (!process)
        return;
    process_check_limits (process);
    publish_and_leave (process, signals);
    errno = before;
}

/* --- descriptors --- */

/* The open file whose last descriptor this is, for release_file; 0: there are others. */
static uint64_t untrack_descriptor (int descriptor)
{
    uint64_t signals, file = 0;
    struct process *process = process_enter_own (&signals);

    if (!process)
        return 0;
    if (files_may_track (&process->files, descriptor))
        file = files_close (&process->files, descriptor);
    process_leave (process, signals);
    return file;
}

static void release_file (uint64_t file)
{
    uint64_t signals;
    struct process *process = file ? process_enter_own (&signals) : NULL;

    if (!process)
        return;
    if (process->rm)
        rm_close_file (process->rm, file);
    publish_and_leave (process, signals);
}

int call_close (int descriptor)
{
    uint64_t file = untrack_descriptor (descriptor);
    int result = next_close (descriptor), after = errno;

    /* The driver has freed its memory in close: only now may the quota be granted to other processes. */
    release_file (file);
    errno = after;
    return result;
}

static void track_duplicate (int from, int to)
{
    uint64_t signals;
    struct process *process = process_enter_own (&signals);

    if (!process)
        return;
    if (files_may_track (&process->files, from))
        files_duplicate (&process->files, from, to);
    process_leave (process, signals);
}

int call_dup (int descriptor)
{
    int result = next_dup (descriptor), after = errno;

    if (result >= 0 && files_may_track (&shim_process.files, descriptor))
        track_duplicate (descriptor, result);
    errno = after;
    return result;
}

/* dup2 closes `to` implicitly: for a descriptor of the driver that is a close. */
static uint64_t untrack_target (int from, int to)
{
    return files_may_track (&shim_process.files, to) && RAW2 (SYS_fcntl, from, F_GETFD) >= 0 ? untrack_descriptor (to) : 0;
}

static int finish_replace (int from, int to, uint64_t file, int result)
{
    int after = errno;

    if (result >= 0 && files_may_track (&shim_process.files, from))
        track_duplicate (from, to);
    release_file (file);
    errno = after;
    return result;
}

int call_dup2 (int from, int to)
{
    uint64_t file = untrack_target (from, to);

    return finish_replace (from, to, file, next_dup2 (from, to));
}

int call_dup3 (int from, int to, int flags)
{
    uint64_t file = untrack_target (from, to);

    return finish_replace (from, to, file, next_dup3 (from, to, flags));
}
