/*
 * Which groups take turns with compute: those on the graphics engine's runlist. A group says an engine. Up to Turing the driver ignores it
 * (kfifoIsPerRunlistChramSupportedInHw); and where channels are not numbered by runlist, as on a GPU without virtual functions, an object of the
 * graphics engine, of such a copy engine, or BIND, moves a group of another engine there that was not started (chandesConstruct_IMPL, kfifoRunlistSetId_GM107). Some copy
 * engines are on that runlist themselves. Source, 535 to 595.
 */
#include "nv_params.h"
#include "state.h"

#define NO_COPY UINT32_MAX
/* The last byte of *_DMA_COPY_*. */
#define DMA_COPY 0xb5u

static uint32_t copy_of (uint32_t engine)
{
    if (engine >= NV2080_ENGINE_TYPE_COPY0 && engine <= NV2080_ENGINE_TYPE_COPY9)
        return engine - NV2080_ENGINE_TYPE_COPY0;
    if (engine >= NV2080_ENGINE_TYPE_COPY10 && engine <= NV2080_ENGINE_TYPE_COPY19)
        return engine - NV2080_ENGINE_TYPE_COPY10 + 10;
    return NO_COPY;
}

static uint32_t engine_of_copy (uint32_t copy)
{
    return copy < 10 ? NV2080_ENGINE_TYPE_COPY0 + copy : NV2080_ENGINE_TYPE_COPY10 + copy - 10;
}

/* One of which the driver says nothing counts, and is asked about again. */
static bool is_with_graphics (struct rm *rm, const struct object *object, uint32_t copy)
{
    NV2080_CTRL_CE_GET_CAPS_V2_PARAMS caps = { .ceEngineType = engine_of_copy (copy) };
    int gpu = tracker_gpu (rm, object);
    const struct object *subdevice = schedule_subdevice (rm, object->client, gpu);

    if (gpu < 0)
        return false; /* none of the share's */
    if ((rm->copies_known[gpu] & 1u << copy) != 0)
        return (rm->copies_with_graphics[gpu] & 1u << copy) != 0;
    if (subdevice == NULL ||
        schedule_control (rm, object->client->file->link.key, (uint32_t) (object->link.key >> 32), (uint32_t) subdevice->link.key,
                          NV2080_CTRL_CMD_CE_GET_CAPS_V2, &caps, sizeof (caps)) != 0)
        return true;
    rm->copies_known[gpu] |= 1u << copy;
    if ((caps.capsTbl[0] & NV2080_CTRL_CE_CAPS_CE_GRCE) != 0)
        rm->copies_with_graphics[gpu] |= 1u << copy;
    return (caps.capsTbl[0] & NV2080_CTRL_CE_CAPS_CE_GRCE) != 0;
}

bool runlist_computes (struct rm *rm, const struct object *object, uint32_t engine)
{
    uint32_t copy = copy_of (engine);

    return schedule_computes (rm, engine) || (is_guard (rm) && copy != NO_COPY && is_with_graphics (rm, object, copy));
}

bool runlist_is_unsaid (const struct rm *rm, const struct rm_class *class)
{
    return is_guard (rm) && class->kind == CLASS_CHANNEL && class->number < AMPERE_CHANNEL_GPFIFO_A;
}

/* Of a channel what its group says. */
static const struct object *sayer (const struct object *object)
{
    const struct object *group = object->kind == CLASS_CHANNEL ? schedule_group_of (object) : NULL;

    return group != NULL ? group : object;
}

bool runlist_refuses (const struct rm *rm, const struct object *channel, const struct rm_class *class)
{
    return class->kind == CLASS_COMPUTE && channel != NULL && channel->kind == CLASS_CHANNEL &&
           !schedule_computes (rm, sayer (channel)->engine);
}

/* What it says is of no effect where channels are numbered by runlist: a program is not refused for it. */
bool runlist_moves (struct rm *rm, const struct object *channel, const struct rm_class *class, const void *params)
{
    const NVB0B5_ALLOCATION_PARAMETERS *copy = params;
    uint32_t engine = NV2080_ENGINE_TYPE_COPY0;

    if (class->kind != CLASS_ENGINE || (class->number & 0xff) != DMA_COPY || channel->kind != CLASS_CHANNEL ||
        sayer (channel)->is_compute)
        return false;
    if (copy != NULL)
        engine = copy->version == NVB0B5_ALLOCATION_PARAMETERS_VERSION_0 && copy->engineType < 20
                     ? engine_of_copy (copy->engineType)
                     : copy->engineType;
    return runlist_computes (rm, channel, engine);
}

bool runlist_may_bind (struct rm *rm, uint32_t client, uint32_t handle, uint32_t engine)
{
    const struct object *object = tracker_find (rm, client, handle);

    return object == NULL || sayer (object)->is_compute || !runlist_computes (rm, object, engine);
}
