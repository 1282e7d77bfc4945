/* See arguments.h. The driver never reads memory that the container can change meanwhile. */
#include "arguments.h"
#include "client_files.h"
#include "guard_private.h"
#include "memory.h"
#include "notify.h"
#include "process.h"
#include "tenant.h"

#include "rm/abi.h"
#include "rm/bytes.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

/* Where structs of the resource manager hold pointers: NVOS21 and NVOS64 pAllocParms, at the place of NVOS54 params, and, in the
 * long form of ALLOC, pRightsRequested. */
#define POINTER_AT offsetof (NVOS54_PARAMETERS, params)
#define RIGHTS_AT offsetof (NVOS64_PARAMETERS, pRightsRequested)
#define RIGHTS_SIZE 4u /* RS_ACCESS_MASK */
_Static_assert (POINTER_AT == offsetof (NVOS64_PARAMETERS, pAllocParms), "NVOS54, NVOS64");
_Static_assert (POINTER_AT == offsetof (NVOS21_PARAMETERS, pAllocParms), "NVOS54, NVOS21");
static void set_pointer (uint8_t *head, size_t at, const void *pointer) { set64 (head, at, (uint64_t) (uintptr_t) pointer); }

/* What the params of a control, or head, lead to: lists, and a descriptor. 0 or errno. */
static int gather_embedded (struct tenant *tenant, struct rm_call *call, pid_t thread, struct call_pointers *pointers)
{
    const NVOS54_PARAMETERS *control = (const void *) tenant->head;
    struct rm_embedded *embedded = &pointers->embedded;
    uint8_t *place = tenant->list;
    enum rm_node node;

    if (!(rm_request_number (call->request) == NV_ESC_RM_CONTROL
              ? rm_embedded (tenant->abi, control->cmd, call->params, call->params_size, embedded)
              : rm_embedded_in_head (call->request, tenant->head, embedded))) {
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
    pointers->descriptor_copy = named_file (tenant, tenant->current, pointers->descriptor, &node);
    call->named = pointers->descriptor_copy;
    return pointers->descriptor_copy < 0 || !notify_is_waiting (tenant) ? EBADF : 0;
}

int arguments_gather (struct tenant *tenant, struct rm_call *call, pid_t thread, struct call_pointers *pointers)
{
    uint32_t number = rm_request_number (call->request);
    struct rm_wanted wanted = rm_params_wanted (tenant->abi, call->node, call->request, call->head);
    bool fits = number != NV_ESC_RM_CONTROL || rm_params_fit (tenant->abi, call->head);

    *pointers = (struct call_pointers) { .params_size = fits ? wanted.size : 0, .descriptor_copy = -1 };
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
    return number == NV_ESC_RM_CONTROL || number == NV_ESC_RM_IDLE_CHANNELS ? gather_embedded (tenant, call, thread, pointers) : 0;
}

long arguments_perform (struct tenant *tenant, const struct rm_call *call, const struct call_pointers *pointers)
{
    const struct rm_embedded *embedded = &pointers->embedded;
    uint8_t *descriptor = pointers->descriptor_copy >= 0 ? tenant->params + embedded->descriptor_at : NULL;
    uint8_t *holder = embedded->is_in_head ? tenant->head : tenant->params;
    long result;

    /* Where nothing was copied there are no params: the driver may read them whatever their size is said to be. */
    if (pointers->params)
        set_pointer (tenant->head, POINTER_AT, pointers->params_size != 0 ? tenant->params : NULL);
    if (pointers->rights)
        set_pointer (tenant->head, RIGHTS_AT, tenant->rights);
    for (unsigned i = 0; i < embedded->count; i++)
        set_pointer (holder, embedded->pieces[i].at, pointers->pieces[i]);
    if (descriptor)
        memcpy (descriptor, &pointers->descriptor_copy, sizeof (int));
    result = ioctl (tenant->copy, call->request, tenant->head) < 0 ? -errno : 0;
    if (pointers->params)
        set64 (tenant->head, POINTER_AT, pointers->params);
    if (pointers->rights)
        set64 (tenant->head, RIGHTS_AT, pointers->rights);
    for (unsigned i = 0; i < embedded->count; i++)
        set64 (holder, embedded->pieces[i].at, embedded->pieces[i].wanted.address);
    if (descriptor)
        memcpy (descriptor, &pointers->descriptor, sizeof (int));
    return result;
}

/* What is not changed need not be written: about half of those that make or free objects. */
static bool is_changed (const void *now, const void *before, size_t size)
{
    return size > COMPARED_MOST || memcmp (now, before, size) != 0;
}

bool arguments_write_back (struct tenant *tenant, const struct rm_call *call, const struct call_pointers *pointers, pid_t thread,
                           uint64_t address)
{
    bool is_written = true;

    for (unsigned i = 0; i < pointers->embedded.count; i++)
        is_written &= memory_write (tenant, thread, pointers->embedded.pieces[i].wanted.address, pointers->pieces[i],
                                    pointers->embedded.pieces[i].wanted.size);
    if (is_changed (tenant->params, tenant->params_before, pointers->params_size))
        is_written &= memory_write (tenant, thread, pointers->params, tenant->params, pointers->params_size);
    if (is_changed (tenant->head, tenant->head_before, call->head_size))
        is_written &= memory_write (tenant, thread, address, tenant->head, call->head_size);
    return is_written;
}
