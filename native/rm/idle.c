/*
 * RM_IDLE_CHANNELS: the driver waits until channels have nothing to do, with the locks of their GPUs, which all programs' calls need, and as long as the
 * caller says (kernel_idle_channels.c; the same of 535 to 595). Of programs, those of graphics and video make it.
 */
#include "nvos.h"
#include "state.h"

/* As long as a PREEMPT waits. */
#define IDLE_US 100000u

enum rm_verdict idle_begin (struct rm *rm, struct rm_call *call)
{
    NVOS30_PARAMETERS *head = call->head;

    if (!is_guard (rm))
        return RM_PASS;
    if (!evidence_has (rm, call, head->hClient, head->hClient)) {
        note (rm, RM_UNKNOWN_OBJECT, rm_request_number (call->request));
        head->status = NV_ERR_OBJECT_NOT_FOUND;
        return RM_REFUSED;
    }
    call->own.reserved = head->timeout;
    if (head->timeout == 0 || head->timeout > IDLE_US)
        head->timeout = IDLE_US;
    return RM_PERFORM;
}

void idle_end (struct rm *rm, struct rm_call *call, bool done)
{
    NVOS30_PARAMETERS *head = call->head;

    (void) rm;
    (void) done;
    head->timeout = (uint32_t) call->own.reserved;
}
