/*
 * Compute stops at any instruction when its turn is over, or long kernels compute beyond a cap: 31 % of an H100 under one of 20 %, for a program that asks for no
 * mode (docs/measured/h100-580-driver.md). libcuda asks once a context, after its groups have started. So a group of which that was not seen gets the mode before
 * it starts; and once it has started, with each object that computes. The mode is that of the group's context, whatever handle or channel it is set by.
 *
 * A context has this mode or objects of graphics: where one is there the driver refuses the other (0x3f, 0x31; H100, 580.159.04, also for Vulkan's own
 * groups). With graphics a kernel stops at the end of a block, and a draw at its own. So these objects are made only where the node's settings say so.
 */
#include "nv_params.h"
#include "state.h"

/* Of struct object's context_state. */
enum { STARTED = 1, COMPUTES = 2, PREEMPTIBLE = 4, DRAWS = 8, DREW = 16 };

/* The last byte of classes that run kernels. */
#define COMPUTE_CLASS 0xc0u
/* And of those that draw. */
#define GRAPHICS_CLASS 0x97u

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

static uint32_t mode_of (const struct object *owner)
{
    return (owner->context_state & DRAWS) != 0 ? NV2080_GR_PREEMPTION_COMPUTE_CTA : NV2080_GR_PREEMPTION_COMPUTE_CILP;
}

static long set_mode (struct rm *rm, const struct object *named, uint32_t mode)
{
    const struct object *subdevice = schedule_subdevice (rm, named->client, tracker_gpu (rm, named));
    _Alignas (uint64_t) NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS params = {
        .flags = NV2080_GR_PREEMPTION_FLAGS_CILP_SET,
        .hChannel = (uint32_t) named->link.key,
        .cilpPreemptMode = mode,
    };

    if (subdevice == NULL)
        return NV_ERR_OBJECT_NOT_FOUND;
    return schedule_control (rm, named->client->file->link.key, (uint32_t) (named->link.key >> 32), (uint32_t) subdevice->link.key,
                             NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE, &params, sizeof (params));
}

static long set_mode_of (struct rm *rm, struct object *owner)
{
    struct object *named = named_of (owner);
    long status = set_mode (rm, named, mode_of (owner));

    return status != 0 && named->kind == CLASS_CHANNEL ? set_mode (rm, owner_of (named), mode_of (owner)) : status;
}

/* Whatever the driver says, but for a group that named no engine (before Ampere) and has nothing that computes: for one of a copy engine the driver may
 * have no such mode. */
static bool set (struct rm *rm, struct object *owner)
{
    long status;

    if (!is_guard (rm) || !owner->is_compute || tracker_gpu (rm, owner) < 0 || (owner->context_state & PREEMPTIBLE) != 0)
        return true;
    status = set_mode_of (rm, owner);
    /* There are objects of graphics that the ledger does not have. */
    if (rm->has_graphics && (owner->context_state & DRAWS) == 0 &&
        (status == NV_ERR_INVALID_REQUEST || status == NV_ERR_INVALID_OBJECT)) {
        put (owner, owner->context_state | DRAWS | DREW);
        status = set_mode_of (rm, owner);
        if (status != 0)
            put (owner, (uint8_t) (owner->context_state & ~(DRAWS | DREW)));
    }
    if (status == 0)
        put (owner, owner->context_state | PREEMPTIBLE);
    return status == 0 || (owner->engine == 0 && (owner->context_state & COMPUTES) == 0 && status != NV_ERR_INVALID_REQUEST);
}

bool preempt_is_graphics (uint32_t class) { return class == FERMI_TWOD_A || (class > 0x9000 && (class & 0xff) == GRAPHICS_CLASS); }

void rm_allow_graphics (struct rm *rm) { rm->has_graphics = true; }

bool preempt_may_draw (struct rm *rm, struct rm_call *call, struct object *channel)
{
    struct object *owner;

    if (!rm->has_graphics || channel == NULL || channel->kind != CLASS_CHANNEL)
        return false;
    owner = owner_of (channel);
    if ((owner->context_state & DREW) != 0)
        return true;
    call->own.draws = true;
    call->own.looked_at = owner->serial;
    if ((owner->context_state & DRAWS) != 0)
        return true;
    put (owner, owner->context_state | DRAWS);
    if ((owner->context_state & (STARTED | PREEMPTIBLE)) == 0 || set_mode_of (rm, owner) == 0)
        return true;
    put (owner, (uint8_t) (owner->context_state & ~DRAWS));
    return false;
}

void preempt_drew (struct rm *rm, const struct rm_call *call, bool is_made)
{
    const NVOS21_PARAMETERS *head = call->head;
    struct object *channel = call->own.draws ? tracker_find (rm, head->hRoot, head->hObjectParent) : NULL;
    struct object *owner = channel != NULL ? owner_of (channel) : NULL;

    if (owner == NULL || owner->serial != call->own.looked_at || (owner->context_state & DREW) != 0)
        return;
    if (is_made) {
        put (owner, owner->context_state | DRAWS | DREW);
        return;
    }
    /* Nothing draws: its kernels stop at any instruction again. */
    put (owner, (uint8_t) (owner->context_state & ~(DRAWS | PREEMPTIBLE)));
    if ((owner->context_state & STARTED) != 0 && !set (rm, owner))
        note (rm, RM_SCHEDULING_CONTROL, call->own.number);
}

uint32_t preempt_mode (const struct rm *rm, const struct rm_call *call)
{
    const NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS *params = call->params;
    struct object *object = tracker_find (rm, ((const NVOS54_PARAMETERS *) call->head)->hClient, params->hChannel);

    if (object == NULL || (object->kind != CLASS_CHANNEL && object->kind != CLASS_GROUP))
        return NV2080_GR_PREEMPTION_COMPUTE_CILP;
    return mode_of (owner_of (object));
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
    put (owner, (owner->context_state & (STARTED | DRAWS | DREW)) | COMPUTES);
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
