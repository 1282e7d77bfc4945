/*
 * Compute stops at any instruction when its turn is over, or long kernels compute beyond a cap: 31 % of an H100 under one of 20 %, for a program that asks for no
 * mode (docs/measured/h100-580-driver.md). libcuda asks once a context, after its groups have started. So a group of which that was not seen gets the mode before
 * it starts; and once it has started, with each object that computes. The mode is that of the group's context, whatever handle or channel it is set by.
 */
#include "nv_params.h"
#include "state.h"

/* Of struct object's context_state. */
enum { STARTED = 1, COMPUTES = 2, PREEMPTIBLE = 4 };

/* The last byte of classes that run kernels. */
#define COMPUTE_CLASS 0xc0u

/* The group, or the channel without one, that has the context. */
static struct object *owner_of (struct object *object)
{
    struct object *group = object->kind == CLASS_CHANNEL ? schedule_group_of (object) : object;

    return group != NULL ? group : object;
}

static void put (struct object *owner, uint8_t state)
{
    struct object *at = owner;

    do {
        at->context_state = state;
        at = at->same_after != NULL ? at->same_after : at;
    } while (at != owner);
}

/* A channel with the context; none: the group. */
static struct object *named_of (struct object *owner)
{
    struct object *at = owner;

    do {
        for (struct object *below = at->child; at->kind == CLASS_GROUP && below != NULL; below = below->after)
            if (below->kind == CLASS_CHANNEL)
                return below;
        at = at->same_after != NULL ? at->same_after : at;
    } while (at != owner);
    return owner;
}

static long set_mode (struct rm *rm, const struct object *named)
{
    const struct object *subdevice = schedule_subdevice (rm, named->client, tracker_gpu (rm, named));
    _Alignas (uint64_t) NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS params = {
        .flags = NV2080_GR_PREEMPTION_FLAGS_CILP_SET,
        .hChannel = (uint32_t) named->link.key,
        .cilpPreemptMode = NV2080_GR_PREEMPTION_COMPUTE_CILP,
    };

    if (subdevice == NULL)
        return NV_ERR_OBJECT_NOT_FOUND;
    return schedule_control (rm, named->client->file->link.key, (uint32_t) (named->link.key >> 32), (uint32_t) subdevice->link.key,
                             NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE, &params, sizeof (params));
}

/* Where nothing in it runs kernels the driver may have no such mode for it. */
static bool set (struct rm *rm, struct object *owner)
{
    struct object *named;

    if (!is_guard (rm) || !owner->is_compute || tracker_gpu (rm, owner) < 0 || (owner->context_state & PREEMPTIBLE) != 0)
        return true;
    named = named_of (owner);
    if (set_mode (rm, named) == 0 || (named->kind == CLASS_CHANNEL && set_mode (rm, owner_of (named)) == 0))
        put (owner, owner->context_state | PREEMPTIBLE);
    return (owner->context_state & (COMPUTES | PREEMPTIBLE)) != COMPUTES;
}

bool preempt_before_run (struct rm *rm, struct object *object)
{
    struct object *owner = owner_of (object);

    if (!set (rm, owner))
        return false;
    put (owner, owner->context_state | STARTED);
    return true;
}

bool preempt_object (struct rm *rm, struct object *object, uint32_t class)
{
    struct object *owner;

    if (object->kind != CLASS_COMPUTE || object->parent->kind != CLASS_CHANNEL || (class != 0 && (class & 0xff) != COMPUTE_CLASS))
        return true;
    owner = owner_of (object->parent);
    put (owner, (owner->context_state & STARTED) | COMPUTES);
    return (owner->context_state & STARTED) == 0 || set (rm, owner);
}

void preempt_asked (const struct rm *rm, const struct rm_call *call)
{
    const NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS *params = call->params;
    struct object *object = tracker_find (rm, ((const NVOS54_PARAMETERS *) call->head)->hClient, params->hChannel);

    if (object == NULL || (object->kind != CLASS_CHANNEL && object->kind != CLASS_GROUP) ||
        (params->flags & NV2080_GR_PREEMPTION_FLAGS_CILP_SET) == 0)
        return;
    put (owner_of (object), owner_of (object)->context_state | PREEMPTIBLE);
}
