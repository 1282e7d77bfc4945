/*
 * An announced ioctl: its struct and what the struct points at are copied once, rm decides, and the call is made here, on a
 * copy of the descriptor, with pointers into this process. The driver never reads memory that the container can change
 * meanwhile. The copy is closed before the answer: it would keep a dead process's client, and its gigabytes, alive.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "call.h"
#include "clock.h"
#include "descriptors.h"
#include "edges.h"
#include "fair.h"
#include "guard_private.h"
#include "held_files.h"
#include "host.h"
#include "inflight.h"
#include "memory.h"
#include "process.h"
#include "reconcile.h"
#include "replay.h"
#include "retained.h"
#include "tenant.h"
#include "wait.h"

#include "rm/abi.h"
#include "rm/bytes.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Where structs of the resource manager hold pointers: NVOS21 and NVOS64 pAllocParms, at the place of NVOS54 params, and, in the
 * long form of ALLOC, pRightsRequested. */
#define POINTER_AT offsetof (NVOS54_PARAMETERS, params)
#define RIGHTS_AT offsetof (NVOS64_PARAMETERS, pRightsRequested)
#define RIGHTS_SIZE 4u /* RS_ACCESS_MASK */
_Static_assert (POINTER_AT == offsetof (NVOS64_PARAMETERS, pAllocParms), "NVOS54, NVOS64");
_Static_assert (POINTER_AT == offsetof (NVOS21_PARAMETERS, pAllocParms), "NVOS54, NVOS21");
/* What making a device and, later, giving it back costs the driver at the least (H200, 580.159.04). */
#define DEVICE_NS 3000000u
#define OWN_TYPE 'F'

/* To find out whether longer params were changed costs more than to write them. */
#define COMPARED_MOST 4096u

/* The driver is asked about the process of a continued call this much later. */
#define LOOK_AFTER_NS 1000000u

/* Where the container's own pointers lead. Every one of them is replaced before the driver sees the call, also one that leads
 * nowhere: the driver would follow it in this process. */
struct pointers {
    uint64_t params, rights;
    uint32_t params_size;
    struct rm_embedded embedded;
    uint8_t *pieces[RM_EMBEDDED_MAX];
    int descriptor; /* the container's, that a copy in this process stands for */
    int descriptor_copy;
};

static void set_pointer (uint8_t *head, size_t at, const void *pointer) { set64 (head, at, (uint64_t) (uintptr_t) pointer); }

static struct answer failed (int error) { return (struct answer) { .value = 0, .error = -error }; }

/* What the params of a control lead to: lists, and a descriptor. 0 or errno. */
static int gather_embedded (struct tenant *tenant, struct rm_call *call, pid_t thread, struct pointers *pointers)
{
    const NVOS54_PARAMETERS *control = (const void *) tenant->head;
    struct rm_embedded *embedded = &pointers->embedded;
    uint8_t *place = tenant->list;
    enum rm_node node;

    if (!rm_embedded (tenant->abi, control->cmd, call->params, call->params_size, embedded)) {
        guard_note (tenant, RM_BAD_POINTER, rm_request_number (call->request), tenant->current->pid);
        return EINVAL;
    }
    for (unsigned i = 0; i < embedded->count; i++) {
        const struct rm_wanted *wanted = &embedded->pieces[i].wanted;

        if (!memory_read (tenant, thread, wanted->address, place, wanted->size))
            return EFAULT;
        pointers->pieces[i] = place;
        place += (wanted->size + 15u) & ~15u;
    }
    if (embedded->count != 0) {
        call->list = pointers->pieces[0];
        call->list_size = embedded->pieces[0].wanted.size;
    }
    if (embedded->descriptor_at == RM_NO_DESCRIPTOR)
        return 0;
    memcpy (&pointers->descriptor, tenant->params + embedded->descriptor_at, sizeof (int));
    pointers->descriptor_copy = process_copy (tenant, tenant->current, pointers->descriptor, &node);
    return pointers->descriptor_copy < 0 ? EBADF : 0;
}

/* Copies what head points at: what the driver reads of it, or, where that cannot be told, nothing. 0 or errno. */
static int gather (struct tenant *tenant, struct rm_call *call, pid_t thread, struct pointers *pointers)
{
    uint32_t number = rm_request_number (call->request);
    struct rm_wanted wanted = rm_params_wanted (tenant->abi, call->node, call->request, call->head);
    bool fits = number != NV_ESC_RM_CONTROL || rm_params_fit (tenant->abi, call->head);

    *pointers = (struct pointers) { .params_size = fits ? wanted.size : 0, .descriptor_copy = -1 };
    if (number == NV_ESC_RM_ALLOC || number == NV_ESC_RM_CONTROL)
        pointers->params = get64 (tenant->head, POINTER_AT);
    if (pointers->params_size > SCRATCH_SIZE)
        return EFAULT;
    if (!memory_read_params (tenant, thread, pointers->params, pointers->params_size))
        return EFAULT;
    call->params = pointers->params_size ? tenant->params : NULL;
    call->params_size = pointers->params_size;
    if (number == NV_ESC_RM_ALLOC && call->head_size == sizeof (NVOS64_PARAMETERS)) {
        pointers->rights = get64 (tenant->head, RIGHTS_AT);
        if (pointers->rights && !memory_read (tenant, thread, pointers->rights, tenant->rights, RIGHTS_SIZE))
            return EFAULT;
    }
    return number == NV_ESC_RM_CONTROL ? gather_embedded (tenant, call, thread, pointers) : 0;
}

/* Makes the call on the copy, with every pointer leading here, and puts the container's own pointers back. */
static long perform (struct tenant *tenant, const struct rm_call *call, const struct pointers *pointers)
{
    const struct rm_embedded *embedded = &pointers->embedded;
    uint8_t *descriptor = pointers->descriptor_copy >= 0 ? tenant->params + embedded->descriptor_at : NULL;
    long result;

    /* Where nothing was copied there are no params: the driver may read them whatever their size is said to be. */
    if (pointers->params)
        set_pointer (tenant->head, POINTER_AT, pointers->params_size != 0 ? tenant->params : NULL);
    if (pointers->rights)
        set_pointer (tenant->head, RIGHTS_AT, tenant->rights);
    for (unsigned i = 0; i < embedded->count; i++)
        set_pointer (tenant->params, embedded->pieces[i].at, pointers->pieces[i]);
    if (descriptor)
        memcpy (descriptor, &pointers->descriptor_copy, sizeof (int));
    result = ioctl (tenant->copy, call->request, tenant->head) < 0 ? -errno : 0;
    if (pointers->params)
        set64 (tenant->head, POINTER_AT, pointers->params);
    if (pointers->rights)
        set64 (tenant->head, RIGHTS_AT, pointers->rights);
    for (unsigned i = 0; i < embedded->count; i++)
        set64 (tenant->params, embedded->pieces[i].at, embedded->pieces[i].wanted.address);
    if (descriptor)
        memcpy (descriptor, &pointers->descriptor, sizeof (int));
    return result;
}

/* What is not changed need not be written: about half of those that make or free objects. */
static bool is_changed (const void *now, const void *before, size_t size)
{
    return size > COMPARED_MOST || memcmp (now, before, size) != 0;
}

static struct answer write_back (struct tenant *tenant, const struct rm_call *call, const struct pointers *pointers,
                                 pid_t thread, uint64_t address, long result)
{
    struct memory_piece pieces[RM_EMBEDDED_MAX + 2];
    unsigned count = 0;

    for (unsigned i = 0; i < pointers->embedded.count; i++) {
        const struct rm_wanted *wanted = &pointers->embedded.pieces[i].wanted;

        pieces[count++] = (struct memory_piece) { wanted->address, pointers->pieces[i], wanted->size };
    }
    if (is_changed (tenant->params, tenant->params_before, pointers->params_size))
        pieces[count++] = (struct memory_piece) { pointers->params, tenant->params, pointers->params_size };
    if (is_changed (tenant->head, tenant->head_before, call->head_size))
        pieces[count++] = (struct memory_piece) { address, tenant->head, call->head_size };
    return memory_write_all (tenant, thread, pieces, count) ? (struct answer) { .value = 0, .error = (int32_t) result }
                                                            : failed (EFAULT);
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

static void end (struct tenant *tenant, struct rm_call *call, long result)
{
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

static struct answer decide (struct tenant *tenant, struct rm_call *call, struct pointers *pointers,
                             const struct seccomp_notif *notification)
{
    pid_t thread = (pid_t) notification->pid;
    uint64_t address = notification->data.args[2];
    const NVOS64_PARAMETERS *alloc = (const void *) tenant->head; /* the short form begins as the long one */
    enum rm_verdict decision = begin (tenant, call);
    struct answer answer;
    long result;

    switch (decision) {
    case RM_CONTINUE:
        if (can_become_memory (call->request)) {
            if (!inflight_add (tenant, tenant->current, notification)) {
                rm_end (tenant->rm, call, -EAGAIN);
                return failed (EAGAIN);
            }
            reconcile_at (tenant, tenant->current, guard_now () + LOOK_AFTER_NS);
        }
        rm_forget_call (tenant->rm, call);
        if (rm_request_number (call->request) == NV_ESC_RM_ALLOC && alloc->hClass == NV01_DEVICE_0)
            fair_spent (tenant, DEVICE_NS);
        return answer_continue (tenant);
    case RM_ANSWERED:
    case RM_REFUSED:
        tenant->status.refused += decision == RM_REFUSED;
        return write_back (tenant, call, pointers, thread, address, 0);
    case RM_UNKNOWN:
        tenant->status.refused++;
        return failed (EINVAL);
    case RM_PASS:
    case RM_PERFORM:
        break;
    }
    /* What is harmless is made here too: continued, another thread could turn it into what is not. */
    tenant->status.performed++;
    if (decision == RM_PERFORM)
        retained_before_call (tenant, call);
    fair_begin (tenant);
    result = perform (tenant, call, pointers);
    if (decision == RM_PERFORM)
        end (tenant, call, result);
    fair_end (tenant);
    answer = write_back (tenant, call, pointers, thread, address, result);
    answer.head_size = call->head_size;
    return answer;
}

static struct answer handle (struct tenant *tenant, struct rm_call *call, struct process *process,
                             const struct seccomp_notif *notification)
{
    pid_t thread = (pid_t) notification->pid;
    struct pointers pointers;
    struct answer answer;
    int error;

    tenant->current = process;
    error = gather (tenant, call, thread, &pointers);
    if (error != 0)
        answer = failed (error);
    else {
        uint32_t client = get32 (tenant->head, 0); /* the first field of every such struct */

        /* CUDA makes some calls on a GPU's node, of the same client. And what the call says is not known to be true: a
         * descriptor that is known already is given up only when the scheduler finds that it is wrong (reach.c). */
        if (call->node == RM_NODE_CONTROL && process_descriptor_of (process, client) < 0)
            process_remember_client (tenant, process, client, (int) notification->data.args[0]);
        answer = decide (tenant, call, &pointers, notification);
    }
    if (pointers.descriptor_copy >= 0)
        wait_close (tenant, process->pid, pointers.descriptor_copy);
    tenant->current = NULL;
    return answer;
}

struct answer call_ioctl (struct tenant *tenant, int listener, const struct seccomp_notif *notification,
                          struct process *process)
{
    uint32_t request = (uint32_t) notification->data.args[1];
    uint64_t address = notification->data.args[2];
    pid_t thread = (pid_t) notification->pid;
    struct rm_call call = { .file = process->serial, .request = request, .head = tenant->head };
    struct answer answer;
    uint64_t id = notification->id;

    /* Another driver's call with this low byte, or none that the driver takes: whatever descriptor it is made on, NVIDIA's
     * driver refuses the size. */
    if (rm_head_size (tenant->abi, RM_NODE_CONTROL, request) == 0 && rm_head_size (tenant->abi, RM_NODE_GPU, request) == 0)
        return answer_continue (tenant);
    tenant->copy = process_copy (tenant, process, (int) notification->data.args[0], &call.node);
    /* Never continued: the descriptor may be there a moment later. */
    if (tenant->copy < 0)
        return (struct answer) { .error = tenant->copy, .is_stale = tenant->copy == -ESRCH };
    if (ioctl (listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) != 0)
        answer = failed (EINTR); /* the thread does not wait any more */
    else if (call.node != RM_NODE_CONTROL && call.node != RM_NODE_GPU)
        answer = failed (ENOTTY);
    else if (((request >> 8) & 0xff) != OWN_TYPE) {
        guard_note (tenant, RM_FORBIDDEN_ESCAPE, rm_request_number (request), process->pid);
        tenant->status.refused++;
        answer = failed (EINVAL);
    } else {
        call.head_size = rm_head_size (tenant->abi, call.node, request);
        if (call.head_size == 0 || call.head_size > sizeof (tenant->head))
            answer = failed (EINVAL);
        else if (!memory_read_head (tenant, thread, address, request, call.head_size))
            answer = failed (EFAULT);
        else if (!replay_find (tenant, notification, &answer))
            answer = handle (tenant, &call, process, notification);
    }
    wait_close (tenant, process->pid, tenant->copy);
    tenant->copy = -1;
    return answer;
}
