/* RM_CONTROL (NVOS54): which controls a tenant may make, and what becomes of them. */
#include "nv_params.h"
#include "state.h"

static enum rm_verdict end_here (struct rm_call *call, uint32_t status, enum rm_verdict decision)
{
    ((NVOS54_PARAMETERS *) call->head)->status = status;
    return decision;
}

/* Imports and exports. */
static bool makes_records (const struct rm_control *control)
{
    return control->kind == CONTROL_IMPORT_OBJECT || control->kind == CONTROL_IMPORT_OBJECTS ||
           control->kind == CONTROL_EXPORT_OBJECT || control->kind == CONTROL_EXPORT_OBJECTS;
}

static struct object *compute_group (const struct rm *rm, const struct rm_call *call)
{
    const NVOS54_PARAMETERS *head = call->head;
    struct object *object = tracker_find (rm, head->hClient, head->hObject);

    return object != NULL && object->kind == CLASS_GROUP && object->is_compute ? object : NULL;
}

static void remember (struct rm *rm, struct object *group, uint64_t asked)
{
    int gpu = tracker_gpu (rm, group);

    /* The host applies the share again: what has just been written may be the owner's value, or an older one. */
    if (!group->has_asked && gpu >= 0)
        rm->changed |= 1u << gpu;
    group->asked = asked;
    group->has_asked = true;
}

/* libcuda's. */
#define OWN_SLICE_US 2048u

static enum rm_verdict set_timeslice (struct rm *rm, struct rm_call *call)
{
    NVA06C_CTRL_TIMESLICE_PARAMS *params = call->params;
    struct object *group = compute_group (rm, call);
    int gpu = group != NULL ? tracker_gpu (rm, group) : GPU_UNKNOWN;
    uint64_t asked = params->timesliceUs;
    uint32_t slice = gpu >= 0 ? rm->host->timeslice (rm->context, gpu) : 0;

    if (group == NULL || (gpu < 0 && is_guard (rm))) {
        if (!is_guard (rm))
            return RM_PASS;
        note (rm, RM_SCHEDULING_CONTROL, call->own.number);
        return end_here (call, 0, RM_ANSWERED);
    }
    call->own.serial = group->serial;
    call->own.reserved = asked;
    if (slice == 0 && is_guard (rm) && asked > OWN_SLICE_US)
        params->timesliceUs = OWN_SLICE_US; /* until the scheduler has looked */
    if (slice == 0)
        return RM_PERFORM;
    if (!is_guard (rm)) {
        params->timesliceUs = slice;
        return RM_PERFORM;
    }
    note (rm, RM_SCHEDULING_CONTROL, call->own.number);
    remember (rm, group, asked);
    (void) schedule_write_slice (rm, group, slice);
    return end_here (call, 0, RM_ANSWERED);
}

static void timeslice_set (struct rm *rm, struct rm_call *call, bool is_good)
{
    struct object *group = compute_group (rm, call);

    /* The caller's struct says again what the caller wrote. */
    ((NVA06C_CTRL_TIMESLICE_PARAMS *) call->params)->timesliceUs = call->own.reserved;
    if (is_good && group != NULL && group->serial == call->own.serial)
        remember (rm, group, call->own.reserved);
}

/* A client becomes known by the first control on it that succeeds. What else a control is about has to be known before. */
static bool is_known (struct rm *rm, const struct rm_call *call, const struct rm_control *control)
{
    const NVOS54_PARAMETERS *head = call->head;

    if (head->hObject != head->hClient && !evidence_has (rm, call, head->hClient, head->hObject))
        return false;
    if (call->params == NULL || call->params_size < control->size)
        return true;
    return !makes_records (control) || share_is_known (rm, control, call);
}

/* Its params name a client beside the channel, and go to the GPU's firmware as they are. */
static bool is_about_other_client (const struct rm *rm, const struct rm_call *call)
{
    return call->own.number == NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND && tracker_may_be_foreign (rm, call, get32 (call->params, 0));
}

/* Compute that stops later than at an instruction keeps the GPU beyond its slice, and beyond a cap. */
static void set_preemption (struct rm *rm, struct rm_call *call)
{
    NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS *params = call->params;

    uint32_t mode = preempt_mode (rm, call);

    call->own.reserved = (uint64_t) params->flags << 32 | params->cilpPreemptMode;
    /* Of graphics: the driver has no such mode beside it (0x51; H100, 580.159.04). */
    if (!rm->has_graphics && (params->flags & NV2080_GR_PREEMPTION_FLAGS_GFXP_SET) != 0) {
        note (rm, RM_SCHEDULING_CONTROL, call->own.number);
        params->flags &= ~NV2080_GR_PREEMPTION_FLAGS_GFXP_SET;
    }
    if ((params->flags & NV2080_GR_PREEMPTION_FLAGS_CILP_SET) == 0 || params->cilpPreemptMode == mode)
        return;
    note (rm, RM_SCHEDULING_CONTROL, call->own.number);
    params->cilpPreemptMode = mode;
}

/* The driver, and the GPU's firmware, take no other call while one waits; one that is not waited for must not be followed by another. */
#define PREEMPT_US 100000u

static void limit_wait (struct rm_call *call)
{
    NVA06C_CTRL_PREEMPT_PARAMS *params = call->params;

    __builtin_memcpy (&call->own.reserved, params, sizeof (*params));
    if (!params->bManualTimeout || params->timeoutUs > PREEMPT_US)
        params->timeoutUs = PREEMPT_US;
    params->bWait = params->bManualTimeout = 1;
}

static void preemption_set (struct rm_call *call)
{
    NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS *params = call->params;

    params->flags = (uint32_t) (call->own.reserved >> 32);
    params->cilpPreemptMode = (uint32_t) call->own.reserved;
}

enum rm_verdict control_begin (struct rm *rm, struct rm_call *call)
{
    const NVOS54_PARAMETERS *head = call->head;
    uint32_t number = head->cmd;
    const struct rm_control *control = rm_abi_control (rm->abi, number);

    call->own.number = number;
    if (control == NULL || control->kind == CONTROL_FORBIDDEN) {
        note (rm, control == NULL ? RM_UNKNOWN_CONTROL : RM_FORBIDDEN_CONTROL, number);
        if (!is_guard (rm))
            return RM_UNKNOWN;
        return end_here (call, control == NULL ? NV_ERR_NOT_SUPPORTED : NV_ERR_INSUFFICIENT_PERMISSIONS, RM_REFUSED);
    }
    /* Flags are the kernel's own callers': one of them says that pointers lie elsewhere than rows say. */
    if (is_guard (rm) && head->flags != 0) {
        note (rm, RM_FORBIDDEN_CONTROL, number);
        return end_here (call, NV_ERR_INSUFFICIENT_PERMISSIONS, RM_REFUSED);
    }
    /* As the driver refuses params of a size that it checks (_rmapiRmControl in rmapi/control.c). */
    if (is_guard (rm) && control->size != 0 && (call->params == NULL || !rm_params_fit (rm->abi, call->head))) {
        note (rm, RM_BAD_SIZE, number);
        return end_here (call, NV_ERR_INVALID_ARGUMENT, RM_REFUSED);
    }
    if (is_full (rm) && makes_records (control)) {
        note (rm, RM_TOO_MANY, rm_request_number (call->request));
        return end_here (call, NV_ERR_INSUFFICIENT_RESOURCES, RM_REFUSED);
    }
    if (is_guard (rm) && !is_known (rm, call, control)) {
        note (rm, RM_UNKNOWN_OBJECT, rm_request_number (call->request));
        return end_here (call, NV_ERR_OBJECT_NOT_FOUND, RM_REFUSED);
    }
    if (is_guard (rm) && is_about_other_client (rm, call)) {
        note (rm, RM_FORBIDDEN_CONTROL, number);
        return end_here (call, NV_ERR_INVALID_CLIENT, RM_REFUSED);
    }
    if (is_guard (rm) && (!schedule_may_bind (rm, call) || !start_may_reset (rm, call))) {
        note (rm, RM_FORBIDDEN_CONTROL, number);
        return end_here (call, NV_ERR_INVALID_ARGUMENT, RM_REFUSED);
    }
    if (is_guard (rm) && control_is_start (number) && !start_may (rm, head))
        return end_here (call, NV_ERR_INSUFFICIENT_RESOURCES, RM_REFUSED);
    switch (control->kind) {
    case CONTROL_PLAIN:
    case CONTROL_POINTER:
    case CONTROL_DESCRIPTOR:
        break;
    case CONTROL_ANSWERED:
    case CONTROL_SCHEDULING:
        if (!is_guard (rm))
            return RM_PASS;
        if (control->kind == CONTROL_SCHEDULING)
            note (rm, RM_SCHEDULING_CONTROL, number);
        return end_here (call, 0, RM_ANSWERED);
    case CONTROL_PREEMPT:
        if (!is_guard (rm))
            return RM_PASS;
        limit_wait (call);
        return RM_PERFORM;
    case CONTROL_PREEMPTION:
        if (!is_guard (rm))
            return RM_PASS;
        set_preemption (rm, call);
        return RM_PERFORM;
    case CONTROL_SHARE_POLICY:
        if (!is_guard (rm))
            return RM_PASS;
        return policy_inherited (rm, call) ? RM_PERFORM : end_here (call, 0, RM_ANSWERED);
    default:
        /* rm reads or writes these params: the size must be the driver's, which would refuse another one. */
        if (call->params == NULL || call->params_size < control->size || head->paramsSize < control->size) {
            note (rm, RM_BAD_POINTER, rm_request_number (call->request));
            return RM_UNKNOWN;
        }
        if (head->paramsSize < call->params_size)
            call->params_size = head->paramsSize;
        if (control->kind == CONTROL_SET_TIMESLICE)
            return set_timeslice (rm, call);
        if (control->kind == CONTROL_PID_INFO)
            answer_ask_driver_pids (rm, call->params, call->params_size);
        if (control->kind >= CONTROL_EXPORT_OBJECT && !is_guard (rm))
            return RM_CONTINUE;
        if ((control->kind == CONTROL_IMPORT_OBJECT || control->kind == CONTROL_IMPORT_OBJECTS) &&
            !share_may_import (rm, control, call)) {
            note (rm, RM_OVER_QUOTA, NV01_MEMORY_LOCAL_USER);
            return end_here (call, NV_ERR_NO_MEMORY, RM_REFUSED);
        }
        return RM_PERFORM;
    }
    if (!is_guard (rm))
        return RM_PASS;
    /* A guard makes the call with its own copy: params that are there must have been copied. */
    if (head->params != 0 && head->paramsSize != 0 && (call->params == NULL || call->params_size < head->paramsSize)) {
        note (rm, RM_BAD_POINTER, rm_request_number (call->request));
        return RM_UNKNOWN;
    }
    return start_begin (rm, call);
}

void control_end (struct rm *rm, struct rm_call *call, bool done)
{
    const struct rm_control *control = rm_abi_control (rm->abi, call->own.number);
    const struct object *group;
    bool is_good;

    if (control == NULL)
        return;
    start_end (call);
    is_good = done && ((const NVOS54_PARAMETERS *) call->head)->status == 0;
    if (is_good && is_guard (rm) && call->node == RM_NODE_CONTROL)
        (void) evidence_client (rm, call, call->file, ((const NVOS54_PARAMETERS *) call->head)->hClient);
    switch (control->kind) {
    case CONTROL_SET_TIMESLICE:
        timeslice_set (rm, call, is_good);
        break;
    case CONTROL_PREEMPT:
        __builtin_memcpy (call->params, &call->own.reserved, sizeof (NVA06C_CTRL_PREEMPT_PARAMS));
        break;
    case CONTROL_PREEMPTION:
        preemption_set (call);
        if (is_good && is_guard (rm))
            preempt_asked (rm, call);
        break;
    case CONTROL_GET_TIMESLICE:
        group = compute_group (rm, call);
        if (is_good && group != NULL && group->has_asked)
            ((NVA06C_CTRL_TIMESLICE_PARAMS *) call->params)->timesliceUs = group->asked;
        break;
    case CONTROL_FB_INFO:
    case CONTROL_FB_INFO_LIST:
    case CONTROL_PIDS:
    case CONTROL_PID_INFO:
        if (is_good)
            answer_control (rm, control, call);
        if (control->kind == CONTROL_PID_INFO)
            answer_show_pids (rm, call->params, call->params_size);
        break;
    case CONTROL_EXPORT_OBJECT:
    case CONTROL_EXPORT_OBJECTS:
        if (is_good)
            share_export (rm, control, call);
        break;
    case CONTROL_IMPORT_OBJECT:
    case CONTROL_IMPORT_OBJECTS:
        if (is_good)
            share_import (rm, control, call);
        break;
    default:
        break;
    }
}
