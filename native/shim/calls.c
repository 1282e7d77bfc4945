#include "calls.h"

#include <errno.h>
#include <fcntl.h>

#include "next.h"
#include "process.h"
#include "raw.h"
#include "rm/abi.h"

/* Addresses that no program has: the driver will say EFAULT. */
static bool readable (const void *address)
{
    return (unsigned long) address >= 4096;
}

static void *wanted_memory (struct rm_wanted wanted, uint32_t *size)
{
    *size = wanted.size && wanted.address >= 4096 ? wanted.size : 0;
    return *size ? (void *) wanted.address : NULL;
}

/* Prepares the call; false: it is the driver's alone. */
static bool prepare (struct process *process, int descriptor, uint32_t request, void *argument, struct rm_call *call)
{
    enum rm_node kind = process_node_kind (process, descriptor);
    bool is_ready = process->settled; /* it has tables, a slot and an rm */
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
    call->file = files_known (&process->files, descriptor, kind);
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
    if (kind == RM_NODE_UVM) /* points at nothing that rm reads */
        return true;
    call->params = wanted_memory (rm_params_wanted (process->abi, kind, request, argument), &call->params_size);
    if (call->params)
        call->list = wanted_memory (rm_list_wanted (process->abi, kind, request, argument, call->params),
                                    &call->list_size);
    return true;
}

static void leave_and_start (struct process *process, uint64_t signals)
{
    bool start = process_settle (process);

    process_leave (process, signals);
    if (start)
        thread_start (process);
}

/* Calls that rm passes whatever it has kept, as most controls, and ranges of UVM: no lock for them, where nothing else
 * is to be done. The descriptor may be anything by now: whatever it is, the call is made. */
static __attribute__ ((noinline)) bool is_needless (int descriptor, uint32_t request, const void *argument)
{
    const struct process *process = &shim_process;
    const struct rm_abi *abi = LOAD_RELAXED (process->abi);

    return abi && files_may_know (&process->files, descriptor) &&
           rm_shim_passes (abi, request, readable (argument) ? argument : NULL) && process_is_settled (process);
}

/* Only these can be: the rest is not worth the questions. */
static bool may_be_needless (uint32_t request)
{
    return request == UVM_CREATE_EXTERNAL || rm_request_number (request) == ESCAPE_NUMBER_CONTROL;
}

/* Calls of UVM that end something: nothing is to be done before them, so both halves are made after them. */
static bool is_end (unsigned long request)
{
    return request == UVM_FREE || request == UVM_UNMAP_EXTERNAL || request == UVM_MAP_SPARSE ||
           request == UVM_UNREGISTER_SPACE || request == UVM_UNREGISTER_GPU;
}

static __attribute__ ((noinline)) int end_ioctl (int descriptor, unsigned long request, void *argument)
{
    struct rm_call call;
    int result = next_ioctl (descriptor, request, argument), after = errno;
    uint64_t signals;
    struct process *process = process_enter_known (&signals);

    if (!process)
        return result;
    process_look (process);
    if (prepare (process, descriptor, (uint32_t) request, argument, &call) &&
        rm_begin (process->rm, &call) == RM_CONTINUE)
        rm_end (process->rm, &call, result < 0 ? -after : 0);
    leave_and_start (process, signals);
    errno = after;
    return result;
}

static __attribute__ ((noinline)) int both_ioctl (int descriptor, unsigned long request, void *argument)
{
    struct rm_call call;
    enum rm_verdict verdict = RM_PASS;
    uint64_t signals;
    int before = errno, result;
    struct process *process = process_enter (&signals);

    if (!process)
        return next_ioctl (descriptor, request, argument);
    process_look (process);
    if (prepare (process, descriptor, (uint32_t) request, argument, &call))
        verdict = rm_begin (process->rm, &call);
    if (verdict != RM_CONTINUE && verdict != RM_PERFORM) {
        leave_and_start (process, signals);
        errno = before;
        return verdict == RM_ANSWERED || verdict == RM_REFUSED ? 0 : next_ioctl (descriptor, request, argument);
    }
    process_unlock (process);
    errno = before;
    result = next_ioctl (descriptor, request, argument);
    before = errno;
    process_lock (process);
    rm_end (process->rm, &call, result < 0 ? -before : 0);
    leave_and_start (process, signals);
    errno = before;
    return result;
}

int call_ioctl (int descriptor, unsigned long request, void *argument)
{
    if (!call_size_may_matter (request) ||
        (may_be_needless ((uint32_t) request) && is_needless (descriptor, (uint32_t) request, argument)))
        return next_ioctl (descriptor, request, argument);
    return (is_end (request) ? end_ioctl : both_ioctl) (descriptor, request, argument);
}

void call_follow (void)
{
    uint64_t signals;
    int before = errno;
    struct process *process = process_enter_own (&signals);

    if (!process)
        return;
    process_look (process);
    leave_and_start (process, signals);
    errno = before;
}

/* --- descriptors --- */

/* The file that a descriptor is the last of, for closed; 0. */
static uint64_t closing (int descriptor)
{
    uint64_t signals, file = 0;
    struct process *process = process_enter_own (&signals);

    if (!process)
        return 0;
    if (files_may_know (&process->files, descriptor))
        file = files_close (&process->files, descriptor);
    process_leave (process, signals);
    return file;
}

static void closed (uint64_t file)
{
    uint64_t signals;
    struct process *process = file ? process_enter_own (&signals) : NULL;

    if (!process)
        return;
    if (process->rm)
        rm_close_file (process->rm, file);
    leave_and_start (process, signals);
}

int call_close (int descriptor)
{
    uint64_t file = closing (descriptor);
    int result = next_close (descriptor), after = errno;

    /* The driver gave its memory back in close; now it may be given to others. */
    closed (file);
    errno = after;
    return result;
}

static void duplicated (int from, int to)
{
    uint64_t signals;
    struct process *process = process_enter_own (&signals);

    if (!process)
        return;
    if (files_may_know (&process->files, from))
        files_duplicate (&process->files, from, to);
    process_leave (process, signals);
}

int call_dup (int descriptor)
{
    int result = next_dup (descriptor), after = errno;

    if (result >= 0 && files_may_know (&shim_process.files, descriptor))
        duplicated (descriptor, result);
    errno = after;
    return result;
}

/* The kernel closes `to` silently; when that was the driver's, it is a close like any other. */
static uint64_t replacing (int from, int to)
{
    return files_may_know (&shim_process.files, to) && RAW2 (SYS_fcntl, from, F_GETFD) >= 0 ? closing (to) : 0;
}

static int replaced (int from, int to, uint64_t file, int result)
{
    int after = errno;

    if (result >= 0 && files_may_know (&shim_process.files, from))
        duplicated (from, to);
    closed (file);
    errno = after;
    return result;
}

int call_dup2 (int from, int to)
{
    uint64_t file = replacing (from, to);

    return replaced (from, to, file, next_dup2 (from, to));
}

int call_dup3 (int from, int to, int flags)
{
    uint64_t file = replacing (from, to);

    return replaced (from, to, file, next_dup3 (from, to, flags));
}
