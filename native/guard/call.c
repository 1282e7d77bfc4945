/*
 * An announced ioctl: its struct and what the struct points at are copied once, rm decides, and the call is made here, on a
 * copy of the descriptor, with pointers into this process. The driver never reads memory that the container can change
 * meanwhile. The copy is closed before the answer: it would keep a dead process's client, and its gigabytes, alive.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "arguments.h"
#include "call.h"
#include "client_files.h"
#include "clock.h"
#include "edges.h"
#include "fair.h"
#include "guard_private.h"
#include "held_files.h"
#include "host.h"
#include "inflight.h"
#include "memory.h"
#include "notify.h"
#include "park.h"
#include "privsep.h"
#include "process.h"
#include "query.h"
#include "reach.h"
#include "reconcile.h"
#include "replay.h"
#include "retained.h"
#include "schedule.h"
#include "tenant.h"
#include "wait.h"

#include "rm/abi.h"
#include "rm/bytes.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>

/* What making a device and, later, giving it back costs the driver at the least (H200, 580.159.04). */
#define DEVICE_NS 3000000u
#define OWN_TYPE 'F'

/* The driver is asked about the process of a continued call this much later. */
#define LOOK_AFTER_NS 1000000u

static struct answer failed (int error) { return (struct answer) { .error = -error }; }

static struct answer written (bool is_written, long result)
{
    return is_written ? (struct answer) { .error = (int32_t) result } : failed (EFAULT);
}

/* Whether a call of this number, which the caller cannot change, could become one that takes video memory. Of whatever
 * class NVOS02 is, it makes system memory, a descriptor of the caller's, or a name for nothing
 * (rmapi_deprecated_allocmemory.c of the open kernel modules, rmAllocMemoryTable). */
static bool can_become_memory (uint32_t request) { return rm_request_number (request) != NV_ESC_RM_ALLOC_MEMORY; }

/* Of calls that only their own thread can make: the kernel reads the struct again, and what was decided may not be what is done.
 * reconcile.c looks afterwards at what it came to. */
static struct answer answer_continue (struct tenant *tenant)
{
    tenant->status.continued++;
    return (struct answer) { .continue_syscall = true };
}

/* The client of a process that has ended is the next user's: its memory is looked at when that process ends. */
static void inherit (struct tenant *tenant, const struct rm_call *call)
{
    uint32_t client = get32 (tenant->head, 0);
    uint64_t file = rm_file_of (tenant->rm, client);
    const struct process *owner = file != tenant->current->serial ? process_by_serial (tenant, file) : NULL;

    if (owner != NULL && owner->dead && call->node == RM_NODE_CONTROL && reach_is_file_of (tenant->copy, client))
        rm_move_client (tenant->rm, client, tenant->current->serial);
}

static void end (struct tenant *tenant, struct rm_call *call, long result)
{
    if (result == 0)
        inherit (tenant, call);
    rm_end (tenant->rm, call, result);
    retained_after_call (tenant, result == 0);
    if (result == 0)
        held_files_after_call (tenant, call);
    /* Its file is held now: a channel of a tenant that is frozen is stopped before its caller has the answer. */
    if (tenant->are_edges_old) {
        tenant->are_edges_old = false;
        edges_publish (tenant);
    }
}

/* What is charged may be gone by now: if the call is refused for that, or asks about it, that is refreshed. The call is begun
 * again then, with its struct and params as they were. */
static enum rm_verdict begin (struct tenant *tenant, struct rm_call *call)
{
    bool may_look = host_can_refresh (tenant);
    enum rm_verdict decision;

    tenant->wants_refresh = false;
    memcpy (tenant->head_before, tenant->head, call->head_size);
    if (may_look || call->params_size <= COMPARED_MOST)
        memcpy (tenant->params_before, tenant->params, call->params_size);
    if (!may_look)
        return rm_begin (tenant->rm, call);
    decision = rm_begin (tenant->rm, call);
    if (tenant->wants_refresh) {
        rm_end (tenant->rm, call, -EAGAIN);
        host_refresh (tenant);
        memcpy (tenant->head, tenant->head_before, call->head_size);
        memcpy (tenant->params, tenant->params_before, call->params_size);
        decision = rm_begin (tenant->rm, call);
    } else if (decision == RM_PERFORM && rm_tells_numbers (tenant->rm, call))
        host_refresh (tenant);
    return decision;
}

/* Whether the call is to wait: a thread in a continued call may have left it since, and what that made may show by its next call. */
static bool is_early (struct tenant *tenant, const struct rm_call *call, const struct seccomp_notif *notification)
{
    if (rm_start_of (tenant->rm, call) != RM_START_LATER)
        return false;
    inflight_look (tenant);
    return rm_start_of (tenant->rm, call) == RM_START_LATER && park_call (tenant, notification);
}

/* What the driver said to a call that was made; NV_OK where it says nothing. */
static uint32_t status_of (const struct tenant *tenant, const struct rm_call *call)
{
    switch (rm_request_number (call->request)) {
    case NV_ESC_RM_FREE:
        return get32 (tenant->head, offsetof (NVOS00_PARAMETERS, status));
    case NV_ESC_RM_CONTROL:
        return get32 (tenant->head, offsetof (NVOS54_PARAMETERS, status));
    case NV_ESC_RM_ALLOC:
        return get32 (tenant->head, call->head_size == sizeof (NVOS64_PARAMETERS) ? offsetof (NVOS64_PARAMETERS, status)
                                                                                  : offsetof (NVOS21_PARAMETERS, status));
    default:
        return NV_OK;
    }
}

static bool makes_device (const struct tenant *tenant, const struct rm_call *call)
{
    const NVOS64_PARAMETERS *alloc = (const void *) tenant->head; /* the short form begins as the long one */

    return rm_request_number (call->request) == NV_ESC_RM_ALLOC && alloc->hClass == NV01_DEVICE_0;
}

/* A call that rm wants to be continued. */
static struct answer let_through (struct tenant *tenant, struct rm_call *call, const struct seccomp_notif *notification)
{
    uint32_t client = get32 (tenant->head, 0);

    if (can_become_memory (call->request)) {
        /* Of whichever node this file is, the kernel may find another one under the descriptor. */
        tenant->current->has_clients = true;
        if (!unconfirmed_hold (tenant, (pid_t) notification->pid, client) ||
            !inflight_add (tenant, tenant->current, notification)) {
            rm_end (tenant->rm, call, -EAGAIN);
            return failed (EAGAIN);
        }
        reconcile_at (tenant, tenant->current, guard_now () + LOOK_AFTER_NS);
    }
    rm_forget_call (tenant->rm, call);
    if (call->own.outcome != 0)
        inflight_set_outcome (tenant, call->own.outcome);
    if (makes_device (tenant, call))
        fair_spent (tenant, DEVICE_NS);
    return answer_continue (tenant);
}

static struct answer decide (struct tenant *tenant, struct rm_call *call, struct call_pointers *pointers,
                             const struct seccomp_notif *notification)
{
    pid_t thread = (pid_t) notification->pid;
    uint64_t address = notification->data.args[2];
    uint32_t number = rm_request_number (call->request);
    bool is_free = number == NV_ESC_RM_FREE || number == NV_ESC_RM_VID_HEAP_CONTROL;
    int reset = rm_reset_of (tenant->rm, call);
    enum rm_verdict decision;
    enum rm_piece_call kind = RM_NO_PIECE;
    struct answer answer;
    uint64_t bytes = 0;
    long result;

    /* Before what is freed is asked about, and so enters the ledger: won by a race it is more than its size. */
    if (is_free)
        reconcile_unconfirmed (tenant);
    if (is_early (tenant, call, notification))
        return (struct answer) { .is_parked = true };
    if (reset >= 0 && schedule_is_off (tenant, (uint32_t) reset))
        return park_call (tenant, notification) ? (struct answer) { .is_parked = true } : failed (EAGAIN);
    decision = begin (tenant, call);
    switch (decision) {
    case RM_CONTINUE:
        return let_through (tenant, call, notification);
    case RM_ANSWERED:
        held_files_after_call (tenant, call);
        /* fall through */
    case RM_REFUSED:
        tenant->status.refused += decision == RM_REFUSED;
        return written (arguments_write_back (tenant, call, pointers, thread, address), 0);
    case RM_UNKNOWN:
        tenant->status.refused++;
        return failed (EINVAL);
    case RM_PASS:
    case RM_PERFORM:
        break;
    }
    if (!held_files_have_room (tenant, call)) {
        if (decision == RM_PERFORM)
            rm_end (tenant->rm, call, -EMFILE);
        guard_note (tenant, RM_TOO_MANY, number, tenant->current->pid);
        tenant->status.refused++;
        return failed (EMFILE);
    }
    /* What is harmless is made here too: continued, another thread could turn it into what is not. */
    tenant->status.performed++;
    if (decision == RM_PERFORM)
        retained_before_call (tenant, call);
    /* The driver makes a device only for a process that has the GPU's node open: 0x1b (nv_is_gpu_accessible). */
    if (makes_device (tenant, call))
        query_open (tenant);
    fair_begin (tenant);
    result = arguments_perform (tenant, call, pointers);
    if (decision == RM_PERFORM) {
        kind = result == 0 && status_of (tenant, call) == NV_OK ? rm_piece_call_of (tenant->rm, call, &bytes) : RM_NO_PIECE;
        end (tenant, call, result);
    }
    if (is_free)
        reconcile_freed (tenant);
    if (reset >= 0)
        edges_stop_again (tenant, (uint32_t) reset);
    fair_end (tenant, kind, bytes);
    answer = written (arguments_write_back (tenant, call, pointers, thread, address), result);
    answer.head_size = call->head_size;
    return answer;
}

static struct answer handle (struct tenant *tenant, struct rm_call *call, const struct seccomp_notif *notification)
{
    pid_t thread = (pid_t) notification->pid;
    struct process *process = tenant->current;
    struct call_pointers pointers;
    struct answer answer;
    int error = arguments_gather (tenant, call, thread, &pointers);

    if (error != 0)
        answer = failed (error);
    else {
        process->has_clients |= call->node == RM_NODE_CONTROL;
        answer = decide (tenant, call, &pointers, notification);
    }
    if (pointers.descriptor_copy >= 0)
        wait_close (tenant, process->pid, pointers.descriptor_copy);
    return answer;
}

/* On a file that is what the descriptor stands for, or was when its client was first used. */
static struct answer call_on (struct tenant *tenant, struct rm_call *call, const struct seccomp_notif *notification)
{
    struct answer answer;

    if (!notify_is_waiting (tenant))
        return failed (EINTR);
    if (call->node != RM_NODE_CONTROL && call->node != RM_NODE_GPU)
        return failed (ENOTTY);
    if (((call->request >> 8) & 0xff) != OWN_TYPE) {
        guard_note (tenant, RM_FORBIDDEN_ESCAPE, rm_request_number (call->request), tenant->current->pid);
        tenant->status.refused++;
        return failed (EINVAL);
    }
    if (rm_is_answered (tenant->abi, call->request))
        return (struct answer) { 0 };
    if (rm_head_size (tenant->abi, call->node, call->request) == 0)
        return failed (EINVAL);
    return replay_find (tenant, notification, &answer) ? answer : handle (tenant, call, notification);
}

/* A client that was freed needs no file, and one that the driver does not know by this file may have come by another. */
static void release_files (struct tenant *tenant, struct process *process, const struct rm_call *call, int descriptor,
                           uint32_t client)
{
    uint32_t status = status_of (tenant, call);

    if (rm_request_number (call->request) == NV_ESC_RM_FREE && status == NV_OK &&
        get32 (tenant->head, offsetof (NVOS00_PARAMETERS, hObjectOld)) == client)
        client_files_forget (tenant, client);
    else if (status == NV_ERR_INVALID_CLIENT)
        client_file_drop (tenant, process, descriptor, client);
}

/* A request of UVM that a container's programs have no use for. Never continued, as below. */
static struct answer answer_uvm (struct tenant *tenant, const struct seccomp_notif *notification, struct process *process,
                                 enum rm_uvm_kind kind)
{
    uint32_t request = (uint32_t) notification->data.args[1], status = 0;
    struct answer answer = { 0 };
    enum rm_node node;
    int copy = process_file (tenant, process, (int) notification->data.args[0], &node);

    if (copy < 0)
        return (struct answer) { .error = copy, .is_stale = copy == -ESRCH };
    wait_close (tenant, process->pid, copy);
    if (node != RM_NODE_UVM)
        return failed (ENOTTY);
    if (kind == UVM_KIND_ANSWERED) {
        /* All that its struct has is the status. */
        tenant->current = process;
        if (!memory_write (tenant, (pid_t) notification->pid, notification->data.args[2], &status, sizeof (status)))
            answer = failed (EFAULT);
        tenant->current = NULL;
        return answer;
    }
    guard_note (tenant, RM_UNKNOWN_ESCAPE, request, process->pid);
    tenant->status.refused++;
    return failed (EINVAL);
}

struct answer call_ioctl (struct tenant *tenant, const struct seccomp_notif *notification, struct process *process)
{
    uint32_t request = (uint32_t) notification->data.args[1], client;
    int descriptor = (int) notification->data.args[0];
    struct rm_call call = {
        .file = process->serial, .descriptor = (uint32_t) descriptor, .request = request, .head = tenant->head
    };
    struct answer answer;
    enum rm_uvm_kind uvm = rm_abi_uvm_kind (tenant->abi, request);

    if (uvm != UVM_KIND_NONE)
        return answer_uvm (tenant, notification, process, uvm);
    /* Another driver's call with this low byte, or none that the driver takes: whatever descriptor it is made on, NVIDIA's
     * driver refuses the size. */
    call.head_size = rm_head_size (tenant->abi, RM_NODE_CONTROL, request);
    if (call.head_size == 0)
        call.head_size = rm_head_size (tenant->abi, RM_NODE_GPU, request);
    if (call.head_size == 0)
        return answer_continue (tenant);
    tenant->current = process;
    /* Only copied: that it is one of the driver's descriptors is not known yet. */
    if (call.head_size > sizeof (tenant->head))
        answer = failed (EINVAL);
    else if (!memory_read_head (tenant, (pid_t) notification->pid, notification->data.args[2], call.head_size))
        answer = (struct answer) { .error = -EFAULT, .is_stale = !process_is_there (process) };
    else {
        client = get32 (tenant->head, 0); /* the first field of every such struct */
        tenant->copy = client != 0 ? client_file (tenant, process, descriptor, client, &call.node)
                                   : process_file (tenant, process, descriptor, &call.node);
        tenant->copy_node = call.node;
        /* Never continued: the descriptor may be there a moment later. */
        if (tenant->copy < 0)
            answer = (struct answer) { .error = tenant->copy, .is_stale = tenant->copy == -ESRCH };
        else
            answer = call_on (tenant, &call, notification);
        if (tenant->copy >= 0 && client == 0)
            wait_close (tenant, process->pid, tenant->copy);
        tenant->copy = -1;
        if (client != 0 && answer.head_size != 0)
            release_files (tenant, process, &call, descriptor, client);
    }
    tenant->current = NULL;
    return answer;
}
