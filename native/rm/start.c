/*
 * GPFIFO_SCHEDULE: nothing else lets channels compute. The driver puts a change of a group's timeslice in force only where the group itself was started:
 * of one with channels that were started by a call for each, the first one stays, on an H100 with 580.159.04 (docs/measured/h100-580-driver.md). So a call
 * for a channel of a group of the tenant's own becomes its group's. With bEnable 0 the driver does not stop a group (seen on an H200): it is not asked to.
 * RESET_CHANNEL may start one: what the firmware does with a channel that is stopped is not known.
 */
#include "nv_params.h"
#include "state.h"

/* Of NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS and NVA06F's: bEnable, bSkipSubmit, of later versions bSkipEnable, too. */
enum { ENABLE, SKIP };

bool control_is_start (uint32_t number)
{
    return number == NVA06C_CTRL_CMD_GPFIFO_SCHEDULE || number == NVA06F_CTRL_CMD_GPFIFO_SCHEDULE;
}

bool start_may (struct rm *rm, const NVOS54_PARAMETERS *head)
{
    struct object *object = tracker_find (rm, head->hClient, head->hObject);

    if (object == NULL)
        return true;
    /* The ledger can be wrong about it: the driver freed that one with what it named, and a raced ALLOC made another one. */
    if (object->kind != CLASS_GROUP && object->kind != CLASS_CHANNEL) {
        note (rm, RM_SCHEDULING_CONTROL, head->cmd);
        return false;
    }
    if (!outcome_allows (rm, object)) {
        note (rm, RM_UNKNOWN_OUTCOME, head->cmd);
        return false;
    }
    if (schedule_before_run (rm, object) && preempt_before_run (rm, object))
        return true;
    note (rm, RM_SCHEDULING_CONTROL, head->cmd);
    return false;
}

/* The compute group that is started, or has the channel that is. */
static const struct object *group_of (const struct rm *rm, const NVOS54_PARAMETERS *head)
{
    const struct object *object = tracker_find (rm, head->hClient, head->hObject);

    if (object != NULL && object->kind == CLASS_CHANNEL)
        object = schedule_group_of (object);
    return object != NULL && object->kind == CLASS_GROUP && object->is_compute ? object : NULL;
}

enum rm_verdict start_begin (struct rm *rm, struct rm_call *call)
{
    NVOS54_PARAMETERS *head = call->head;
    const struct object *group = is_guard (rm) && control_is_start (head->cmd) ? group_of (rm, head) : NULL;
    uint8_t *params = call->params;

    if (group == NULL)
        return RM_PERFORM;
    if (params == NULL || head->paramsSize == 0) {
        head->status = NV_ERR_INVALID_ARGUMENT;
        return RM_REFUSED;
    }
    if (params[ENABLE] == 0) {
        note (rm, RM_SCHEDULING_CONTROL, head->cmd);
        head->status = 0;
        return RM_ANSWERED;
    }
    /* A group that is not enabled, or not submitted, has channels that are started one by one. */
    __builtin_memset (params + SKIP, 0, head->paramsSize - SKIP);
    /* MPS's server lends a group that runs already: another start of it starts no channel that a client made in it. */
    if (group->is_foreign)
        return RM_PERFORM;
    call->own.reserved = head->hObject;
    head->hObject = (uint32_t) group->link.key;
    head->cmd = NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
    return RM_PERFORM;
}

void start_end (const struct rm_call *call)
{
    NVOS54_PARAMETERS *head = call->head;

    if (!control_is_start (call->own.number) || call->own.reserved == 0)
        return;
    head->hObject = (uint32_t) call->own.reserved;
    head->cmd = call->own.number;
}

static const struct object *reset_of (const struct rm *rm, const struct rm_call *call)
{
    const NVOS54_PARAMETERS *head = call->head;

    return rm_request_number (call->request) == NV_ESC_RM_CONTROL && head->cmd == NV906F_CTRL_CMD_RESET_CHANNEL
               ? tracker_find (rm, head->hClient, head->hObject)
               : NULL;
}

int rm_reset_of (const struct rm *rm, const struct rm_call *call)
{
    const struct object *object = reset_of (rm, call);

    return object != NULL ? tracker_gpu (rm, object) : -1;
}

/* libcuda resets its channel after a trap or a stack overflow, and waits without end for what follows. Its engine is reset too, where the channel is on it
 * (ctrl906f.h): it names its own. */
bool start_may_reset (const struct rm *rm, const struct rm_call *call)
{
    const NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS *params = call->params;
    const struct object *object = reset_of (rm, call);

    if (((const NVOS54_PARAMETERS *) call->head)->cmd != NV906F_CTRL_CMD_RESET_CHANNEL)
        return true;
    return object != NULL && object->kind == CLASS_CHANNEL && tracker_gpu (rm, object) >= 0 && params != NULL &&
           call->params_size >= sizeof (*params) && params->engineID == object->engine &&
           schedule_is_graphics (rm, params->engineID) && params->subdeviceInstance == 0 &&
           params->resetReason == NV906F_CTRL_CMD_RESET_CHANNEL_REASON_DEFAULT;
}
