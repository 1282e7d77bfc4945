/*
 * GPFIFO_SCHEDULE: nothing else lets channels compute. Of a group the driver starts all that it has in it, and no question lists them: one that a
 * continued call has made there, of this tenant or of another one that was sent the client's file, would compute and never be stopped. So a guard
 * starts the channels that the ledger has, by a call for each. On an H100 (580.159.04) that starts no other one of the group (docs/measured/h100-580.md).
 */
#include "nv_params.h"
#include "state.h"

/* Both structs are of 2 or 3 bytes. */
#define PARAMS_MOST 8u

bool control_is_start (uint32_t number)
{
    return number == NVA06C_CTRL_CMD_GPFIFO_SCHEDULE || number == NVA06F_CTRL_CMD_GPFIFO_SCHEDULE;
}

bool start_may (struct rm *rm, const NVOS54_PARAMETERS *head)
{
    struct object *object = tracker_find (rm, head->hClient, head->hObject);

    if (object == NULL || (object->kind != CLASS_GROUP && object->kind != CLASS_CHANNEL))
        return true;
    if (outcome_allows (rm, object))
        return schedule_before_run (rm, object);
    note (rm, RM_UNKNOWN_OUTCOME, head->cmd);
    return false;
}

/* The channel of the group, by whichever of its handles, after `at`; NULL: none. Its handles are in a ring. */
static const struct object *next_channel (const struct object *group, const struct object *at)
{
    const struct object *handle = at != NULL ? schedule_group_of (at) : group;

    at = at != NULL ? at->role_after : handle->client->channels;
    for (;;) {
        for (; at != NULL; at = at->role_after)
            if (schedule_group_of (at) == handle)
                return at;
        handle = handle->same_after;
        if (handle == NULL || handle == group)
            return NULL;
        at = handle->client->channels;
    }
}

static const struct object *group_of (const struct rm *rm, uint32_t client, uint32_t handle)
{
    const struct object *object = tracker_find (rm, client, handle);

    return object != NULL && object->kind == CLASS_GROUP && object->is_compute ? object : NULL;
}

/* All of them but one; the first status that is not 0. */
static uint32_t start_others (struct rm *rm, const struct object *group, const struct object *one, const struct rm_call *call)
{
    uint32_t size = ((const NVOS54_PARAMETERS *) call->head)->paramsSize;
    _Alignas (uint64_t) uint8_t params[PARAMS_MOST] = { 0 };
    long result = 0;

    for (const struct object *at = next_channel (group, NULL); at != NULL && result == 0; at = next_channel (group, at)) {
        if (at == one)
            continue;
        __builtin_memcpy (params, call->params, size);
        result = schedule_control (rm, at->client->file->link.key, (uint32_t) (at->link.key >> 32), (uint32_t) at->link.key,
                                   NVA06F_CTRL_CMD_GPFIFO_SCHEDULE, params, size);
    }
    return result >= 0 ? (uint32_t) result : NV_ERR_INVALID_CHANNEL;
}

enum rm_verdict start_begin (struct rm *rm, struct rm_call *call)
{
    NVOS54_PARAMETERS *head = call->head;
    const struct object *group = group_of (rm, head->hClient, head->hObject), *first;

    if (!is_guard (rm) || head->cmd != NVA06C_CTRL_CMD_GPFIFO_SCHEDULE || group == NULL)
        return RM_PERFORM;
    if (call->params == NULL || head->paramsSize > PARAMS_MOST) {
        head->status = NV_ERR_INVALID_ARGUMENT;
        return RM_REFUSED;
    }
    first = next_channel (group, NULL);
    /* The call's own file is that of this client alone. */
    if (first == NULL || first->client != group->client) {
        head->status = start_others (rm, group, NULL, call);
        return RM_ANSWERED;
    }
    call->own.reserved = head->hObject;
    head->hObject = (uint32_t) first->link.key;
    head->cmd = NVA06F_CTRL_CMD_GPFIFO_SCHEDULE;
    return RM_PERFORM;
}

void start_end (struct rm *rm, struct rm_call *call, bool done)
{
    NVOS54_PARAMETERS *head = call->head;
    const struct object *first = tracker_find (rm, head->hClient, head->hObject), *group;

    if (call->own.number != NVA06C_CTRL_CMD_GPFIFO_SCHEDULE || call->own.reserved == 0)
        return;
    head->hObject = (uint32_t) call->own.reserved;
    head->cmd = call->own.number;
    group = group_of (rm, head->hClient, head->hObject);
    if (done && head->status == 0 && group != NULL)
        head->status = start_others (rm, group, first, call);
}
