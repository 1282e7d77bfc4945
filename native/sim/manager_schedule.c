/* Channel groups and channels: their creation, and the controls that schedule them. Runs as manager.c, under
 * manager->lock. */
#include "manager_state.h"

#include <stdlib.h>

#define DISABLE_MAX 64
#define GRAPHICS 1

static struct engine *engine_of (struct manager *manager, uint32_t gpu, uint32_t type)
{
    struct engine *engine;

    if (type == 0)
        type = GRAPHICS; /* the default: graphics and compute */
    for (engine = manager->engines; engine != NULL; engine = engine->next) {
        if (engine->gpu == gpu && engine->type == type)
            return engine;
    }
    engine = calloc (1, sizeof (*engine));
    if (engine == NULL)
        return NULL;
    engine->gpu = gpu;
    engine->type = type;
    engine->now = clock_now (manager);
    engine->next = manager->engines;
    manager->engines = engine;
    trace_engines (manager);
    return engine;
}

/* A context's buffers: seen on an H100, 128 groups took 552 MiB. */
static void add_context (struct request *request, struct engine_group *group)
{
    group->has_context = true;
    group->context = request->manager->counts_overhead ? UINT64_C (9) << 19 : 0;
    request->manager->used[group->engine->gpu] += group->context;
}

enum status group_allocate (struct request *request, struct object *object, uint32_t engine_type)
{
    struct engine *engine;

    if (engine_type > 0x54) /* NV2080_ENGINE_TYPE_LAST */
        return STATUS_INVALID_ARGUMENT;
    clock_run (request->manager);
    engine = engine_of (request->manager, object->gpu, engine_type);
    object->group = engine != NULL ? calloc (1, sizeof (*object->group)) : NULL;
    if (object->group == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    object->group->slice = ENGINE_DEFAULT_SLICE_NS;
    object->group->objects = 1;
    object->group->process = object->client->process;
    engine_add_group (engine, object->group);
    if (engine->type == GRAPHICS)
        add_context (request, object->group);
    object->number = ++request->manager->next_number;
    return STATUS_OK;
}

void group_duplicate (struct object *object, const struct object *source)
{
    object->group = source->group;
    object->group->objects++;
    object->number = source->number;
}

/* Where channels are not numbered by runlist an object of the graphics engine moves the group of its channel there, unless the group was started
 * (kfifoRunlistSetId_GM107): a group that says COPY2 computes on an H100. */
enum status channel_compute (struct request *request, struct object *object)
{
    struct engine_group *group = object->channel->group;
    struct engine *engine;

    if (group->has_context)
        return STATUS_OK;
    for (const struct engine_channel *channel = group->channels; channel != NULL; channel = channel->next)
        if (channel->scheduled)
            return STATUS_INVALID_STATE;
    engine = engine_of (request->manager, group->engine->gpu, GRAPHICS);
    if (engine == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    clock_run (request->manager);
    engine_remove_group (group);
    engine_add_group (engine, group);
    add_context (request, group);
    return STATUS_OK;
}

enum status channel_allocate (struct request *request, struct object *object, uint32_t engine_type)
{
    struct engine_group *group = object->parent->group;

    clock_run (request->manager);
    if (group == NULL) {
        enum status status = group_allocate (request, object, engine_type);
        if (status != STATUS_OK)
            return status;
        group = object->group;
    }
    object->channel = calloc (1, sizeof (*object->channel));
    if (object->channel == NULL)
        return STATUS_INSUFFICIENT_RESOURCES; /* the object's destruction frees the group */
    engine_add_channel (group, object->channel);
    object->number = ++request->manager->next_number;
    return STATUS_OK;
}

void schedule_destroy (struct object *object)
{
    if (object->channel == NULL && object->group == NULL)
        return;
    clock_run (object->client->file->manager);
    if (object->channel != NULL)
        engine_remove_channel (object->channel);
    free (object->channel);
    if (object->group == NULL || --object->group->objects > 0)
        return;
    object->client->file->manager->used[object->gpu] -= object->group->context;
    engine_remove_group (object->group);
    free (object->group);
}

/* bEnable 0 does not stop a group on the real driver either (observed for six seconds). */
enum status control_schedule (struct request *request, struct object *object)
{
    bool is_enabled = request->params[0] != 0;

    /* The group's call is about the channels that it has by then. */
    if (object->channel == NULL && is_enabled) {
        clock_run (request->manager);
        object->group->is_started = true;
        if (object->group->written != 0)
            engine_set_slice (object->group, object->group->written);
    }
    if (object->channel != NULL)
        object->channel->scheduled |= is_enabled;
    for (struct engine_channel *channel = object->channel != NULL ? NULL : object->group->channels; channel != NULL;
         channel = channel->next)
        channel->scheduled |= is_enabled;
    return STATUS_OK;
}

/* RESET_CHANNEL. What the driver does with a channel that is stopped is not known: here it runs on, the worst that it could. */
enum status control_reset (struct request *request, struct object *object)
{
    clock_run (request->manager);
    while (object->channel->stops != 0)
        engine_freeze (object->channel, false, 0);
    return STATUS_OK;
}

static bool computes (const struct engine_group *group)
{
    for (const struct engine_channel *channel = group->channels; channel != NULL; channel = channel->next)
        if (channel->scheduled)
            return true;
    return false;
}

/* Not in force where the group's channels were started one by one (H100, docs/measured/h100-580-driver.md). */
enum status control_set_slice (struct request *request, struct object *object)
{
    uint64_t microseconds = get64 (request->params, 0);

    clock_run (request->manager);
    if (microseconds > UINT64_C (8400000)) /* the most that a runlist entry can hold: about 8.4 s */
        microseconds = UINT64_C (8400000);
    object->group->written = microseconds * 1000;
    if (object->group->is_started || !computes (object->group))
        engine_set_slice (object->group, microseconds * 1000);
    pthread_cond_broadcast (&request->manager->changed);
    return STATUS_OK;
}

/* NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS: 0 channel, 4 property (0: timeslice of the engine), 8 microseconds. */
enum status control_channel_property (struct request *request, struct object *object)
{
    struct object *channel = object_find (object->client, get32 (request->params, 0));
    struct engine_group *group;

    if (channel == NULL || channel->kind != KIND_CHANNEL)
        return STATUS_INVALID_CHANNEL;
    if (get32 (request->params, 4) != 0)
        return STATUS_NOT_SUPPORTED;
    group = channel->group != NULL ? channel->group : channel->parent->group;
    clock_run (request->manager);
    engine_set_slice (group, get64 (request->params, 8) * 1000);
    pthread_cond_broadcast (&request->manager->changed);
    return STATUS_OK;
}

enum status control_get_slice (struct request *request, struct object *object)
{
    put64 (request->params, 0, (object->group->written != 0 ? object->group->written : object->group->slice) / 1000);
    request->params_changed = true;
    return STATUS_OK;
}

enum status control_preempt (struct request *request, struct object *object)
{
    clock_run (request->manager);
    engine_preempt (object->group);
    return STATUS_OK;
}

/* NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS: 0 flags (1: that of compute is set), 4 channel or group, 12 where compute stops (2: at any instruction). */
enum status control_preemption_mode (struct request *request, struct object *object)
{
    const struct object *named = object_find (object->client, get32 (request->params, 4));
    struct engine_group *group;

    if (named == NULL || (named->kind != KIND_CHANNEL && named->kind != KIND_GROUP))
        return STATUS_INVALID_CHANNEL;
    group = named->channel != NULL ? named->channel->group : named->group;
    if (group->channels == NULL)
        return STATUS_INVALID_ARGUMENT;
    if ((get32 (request->params, 0) & 1) != 0)
        group->is_preemptible = get32 (request->params, 12) == 2;
    return STATUS_OK;
}

enum status control_number (struct request *request, struct object *object)
{
    put32 (request->params, 0, object->number);
    request->params_changed = true;
    return STATUS_OK;
}

enum status control_token (struct request *request, struct object *object) { return control_number (request, object); }

/*
 * FIFO_DISABLE_CHANNELS: 0 disable, 4 count, 8 only scheduling, 16 an event of the kernel's, 24 clients, 280 channels.
 * Any process's clients are accepted: the driver has no check (observed on an H200, 580.159.04). Every channel must be
 * on the subdevice's GPU.
 */
enum status control_disable (struct request *request, struct object *object)
{
    const uint8_t *params = request->params;
    bool disable = params[0] != 0;
    uint32_t count = get32 (params, 4);
    struct engine_channel *channels[DISABLE_MAX];
    uint64_t delay = !disable ? ENGINE_RESUME_NS : params[8] ? ENGINE_RESUME_NS : ENGINE_STOP_NS;

    if (count > DISABLE_MAX)
        return STATUS_INVALID_ARGUMENT;
    if (get64 (params, 16) != 0)
        return STATUS_INSUFFICIENT_PERMISSIONS;
    for (uint32_t i = 0; i < count; i++) {
        struct client *client = client_find (request->manager, get32 (params, 24 + 4 * (size_t) i));
        struct object *channel;
        if (client == NULL)
            return STATUS_INVALID_CLIENT;
        channel = object_find (client, get32 (params, 280 + 4 * (size_t) i));
        if (channel == NULL || channel->kind != KIND_CHANNEL)
            return STATUS_INVALID_OBJECT_HANDLE;
        if (channel->gpu != object->gpu)
            return STATUS_INVALID_CHANNEL;
        channels[i] = channel->channel;
    }
    clock_run (request->manager);
    for (uint32_t i = 0; i < count; i++)
        engine_freeze (channels[i], disable, delay);
    pthread_cond_broadcast (&request->manager->changed);
    if (count == 0 || request->manager->manual)
        return STATUS_OK; /* a manual clock advances only by SIM_CLOCK: the call must not wait for that */
    for (uint64_t until = clock_now (request->manager) + delay; clock_now (request->manager) < until;) {
        if (!clock_wait (request, until))
            break;
    }
    return STATUS_OK;
}
