/* Timeslices of what computes, and what a context takes: for groups, and for channels that have none. */
#include "nv_params.h"
#include "state.h"

bool schedule_is_lone (const struct rm *rm, const struct object *object)
{
    return is_guard (rm) && object->kind == CLASS_CHANNEL && schedule_group_of (object) == NULL;
}

/* Of a group that was found: it may be another tenant's, and have a shorter timeslice from that supervisor. */
static bool is_shorter (struct rm *rm, const struct object *group, uint32_t microseconds)
{
    NVA06C_CTRL_TIMESLICE_PARAMS is = { 0 };

    return schedule_control (rm, group->client->file->link.key, (uint32_t) (group->link.key >> 32), (uint32_t) group->link.key,
                             NVA06C_CTRL_CMD_GET_TIMESLICE, &is, sizeof (is)) == 0 &&
           is.timesliceUs < microseconds;
}

long schedule_write_slice (struct rm *rm, struct object *object, uint32_t microseconds)
{
    _Alignas (uint64_t) NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS of_channel = {
        .hChannel = (uint32_t) object->link.key,
        .property = NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_ENGINETIMESLICEINMICROSECONDS,
        .value = microseconds,
    };
    NVA06C_CTRL_TIMESLICE_PARAMS of_group = { .timesliceUs = microseconds };
    uint64_t file = object->client->file->link.key;
    uint32_t client = (uint32_t) (object->link.key >> 32);
    long result;

    if (object->is_found && is_shorter (rm, object, microseconds))
        result = 0;
    else if (object->kind == CLASS_GROUP)
        result = schedule_control (rm, file, client, (uint32_t) object->link.key, NVA06C_CTRL_CMD_SET_TIMESLICE, &of_group,
                                   sizeof (of_group));
    else
        result = schedule_control (rm, file, client, (uint32_t) object->device->link.key,
                                   NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES, &of_channel, sizeof (of_channel));
    if (result == 0)
        object->slice = microseconds;
    return result;
}

static long slice_all (struct rm *rm, struct object *first, int gpu, uint32_t microseconds)
{
    long problem = 0, result;

    for (struct object *at = first; at != NULL; at = at->role_after) {
        if (!at->is_compute || tracker_gpu (rm, at) != gpu || (at->kind == CLASS_CHANNEL && !schedule_is_lone (rm, at)))
            continue;
        result = schedule_write_slice (rm, at, microseconds);
        problem = problem == 0 ? result : problem;
    }
    return problem;
}

long rm_set_timeslice (struct rm *rm, int gpu, uint32_t microseconds)
{
    long problem = 0, result;

    for (struct client *client = rm->clients; client != NULL; client = client->after) {
        result = slice_all (rm, client->groups, gpu, microseconds);
        problem = problem == 0 ? result : problem;
        result = slice_all (rm, client->channels, gpu, microseconds);
        problem = problem == 0 ? result : problem;
    }
    return problem;
}

bool schedule_before_run (struct rm *rm, struct object *object)
{
    struct object *group = object->kind == CLASS_CHANNEL && schedule_group_of (object) != NULL ? schedule_group_of (object)
                                                                                               : object;
    int gpu = tracker_gpu (rm, group);
    uint32_t slice = gpu >= 0 && group->is_compute ? rm->host->timeslice (rm->context, gpu) : 0;

    return slice == 0 || slice == group->slice || schedule_write_slice (rm, group, slice) == 0;
}

uint64_t schedule_context_bytes (const struct rm *rm, uint8_t kind, const struct object *parent, const void *params,
                                 uint32_t params_size)
{
    const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *of_group = params;
    const NV_CHANNEL_ALLOC_PARAMS *of_channel = params;
    uint32_t engine = 0;

    if (!is_guard (rm) || (kind == CLASS_CHANNEL && parent != NULL && parent->kind == CLASS_GROUP))
        return 0;
    if (kind == CLASS_GROUP && params_size >= sizeof (*of_group))
        engine = of_group->engineType;
    else if (kind == CLASS_CHANNEL && params_size >= sizeof (*of_channel))
        engine = of_channel->engineType;
    return schedule_computes (rm, engine) ? SCHEDULE_CONTEXT_BYTES : 0;
}
