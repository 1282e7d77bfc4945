/*
 * The trace of context switches: memory without a device (class 0x90CE), an event buffer in it (0x90CD), bound to a GPU with
 * GR_FECS_BIND_EVTBUF_FOR_UID_V2, which needs CAP_SYS_ADMIN. A record is appended as an engine switches, over the oldest one where the ring is
 * full; of the header only recordPut is written. Runs as manager.c, under manager->lock.
 */
#include "manager_state.h"

#include "rm/nv_params.h"

#include <stdlib.h>
#include <string.h>

#define COMPUTE 1 /* NV2080_ENGINE_TYPE_GRAPHICS */
#define MOST (UINT32_C (64) << 20)
#define TELL_NS UINT64_C (33000000) /* the driver hands records on by a timer */

struct trace {
    struct trace *next; /* of those that are bound */
    struct ring *header, *records;
    uint32_t gpu, count, put;
    uint16_t number;
    bool is_bound, is_enabled;
};

static void drop (struct manager *manager, struct ring *ring)
{
    if (--ring->references > 0)
        return;
    if (manager->mapped == ring)
        manager->mapped = NULL;
    free (ring);
}

static enum status allocate_memory (struct object *object, const NV_MEMORY_ALLOCATION_PARAMS *params)
{
    if (params->size == 0 || params->size > MOST)
        return STATUS_INVALID_ARGUMENT;
    object->ring = calloc (1, sizeof (*object->ring) + params->size);
    if (object->ring == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    object->ring->references = 1;
    object->ring->size = (uint32_t) params->size;
    return STATUS_OK;
}

static struct ring *ring_of (struct client *client, uint32_t handle)
{
    struct object *object = object_find (client, handle);

    return object != NULL ? object->ring : NULL;
}

static enum status allocate_buffer (struct object *object, const NV_EVENT_BUFFER_ALLOC_PARAMETERS *params)
{
    struct ring *header = ring_of (object->client, params->hBufferHeader),
                *records = ring_of (object->client, params->hRecordBuffer);

    if (header == NULL || records == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    if (params->recordSize != sizeof (NV_EVENT_BUFFER_FECS_RECORD) || params->recordCount == 0 ||
        params->recordCount > records->size / params->recordSize || header->size < 8)
        return STATUS_INVALID_ARGUMENT;
    object->trace = calloc (1, sizeof (*object->trace));
    if (object->trace == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    *object->trace = (struct trace) { .header = header, .records = records, .count = params->recordCount };
    header->references++;
    records->references++;
    return STATUS_OK;
}

enum status trace_allocate (struct object *object, const uint8_t *params)
{
    return object->class_number == CLASS_DEVICELESS ? allocate_memory (object, (const void *) params)
                                                    : allocate_buffer (object, (const void *) params);
}

void trace_destroy (struct object *object)
{
    struct manager *manager = object->client->file->manager;
    struct trace *trace = object->trace;

    if (object->ring != NULL)
        drop (manager, object->ring);
    if (trace == NULL)
        return;
    for (struct trace **place = &manager->traces; *place != NULL; place = &(*place)->next)
        if (*place == trace) {
            *place = trace->next;
            break;
        }
    drop (manager, trace->header);
    drop (manager, trace->records);
    free (trace);
    trace_engines (manager);
}

static void append (struct manager *manager, struct trace *trace, const struct engine *engine, const struct engine_group *group,
                    bool is_on)
{
    NV_EVENT_BUFFER_FECS_RECORD record = {
        .type = 1, .tag = is_on ? 6 : 7, .seqno = trace->number++, .pid = group->process, .timestamp = engine->now
    };

    memcpy (trace->records->bytes + (size_t) trace->put * sizeof (record), &record, sizeof (record));
    trace->put = (trace->put + 1) % trace->count;
    put32 (trace->header->bytes, 4, trace->put);
    if (manager->mapped == trace->records)
        atomic_store (&manager->is_traced, true);
}

static void switched (const struct engine *engine, const struct engine_group *group, bool is_on)
{
    struct manager *manager = engine->context;

    for (struct trace *trace = manager->traces; trace != NULL; trace = trace->next)
        if (trace->gpu == engine->gpu && trace->is_enabled)
            append (manager, trace, engine, group, is_on);
}

void trace_engines (struct manager *manager)
{
    for (struct engine *engine = manager->engines; engine != NULL; engine = engine->next) {
        engine->switched = NULL;
        engine->context = manager;
        for (const struct trace *trace = manager->traces; trace != NULL; trace = trace->next)
            if (trace->gpu == engine->gpu && engine->type == COMPUTE)
                engine->switched = switched;
    }
}

enum status control_bind_trace (struct request *request, struct object *object)
{
    const NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS *params = (const void *) request->params;
    struct object *buffer = object_find (object->client, params->hEventBuffer);

    if (!request->caller->privileged (request->caller->context))
        return STATUS_INSUFFICIENT_PERMISSIONS;
    if (buffer == NULL || buffer->trace == NULL || buffer->trace->is_bound)
        return STATUS_INVALID_ARGUMENT;
    clock_run (request->manager);
    buffer->trace->gpu = object->gpu;
    buffer->trace->is_bound = true;
    buffer->trace->next = request->manager->traces;
    request->manager->traces = buffer->trace;
    trace_engines (request->manager);
    return STATUS_OK;
}

enum status control_enable_trace (struct request *request, struct object *object)
{
    const NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS *params = (const void *) request->params;

    if (object->trace == NULL)
        return STATUS_NOT_SUPPORTED;
    clock_run (request->manager);
    object->trace->is_enabled = params->enable != 0;
    return STATUS_OK;
}

enum status trace_map (struct manager *manager, const struct object *object)
{
    if (manager->mapped != NULL && manager->mapped != object->ring)
        return STATUS_NOT_SUPPORTED;
    manager->mapped = object->ring;
    atomic_store (&manager->is_traced, true);
    return STATUS_OK;
}

void manager_read (struct manager *manager, uint64_t offset, uint8_t *to, size_t size)
{
    memset (to, 0, size);
    pthread_mutex_lock (&manager->lock);
    if (manager->mapped != NULL && offset < manager->mapped->size)
        memcpy (to, manager->mapped->bytes + offset,
                size < manager->mapped->size - offset ? size : (size_t) (manager->mapped->size - offset));
    pthread_mutex_unlock (&manager->lock);
}

bool manager_has_news (struct manager *manager)
{
    bool has_news;
    uint64_t now;

    if (!atomic_load (&manager->is_traced))
        return false;
    pthread_mutex_lock (&manager->lock);
    now = clock_now (manager);
    has_news = manager->told_at == 0 || now - manager->told_at >= TELL_NS;
    if (has_news) {
        manager->told_at = now;
        atomic_store (&manager->is_traced, false);
    }
    pthread_mutex_unlock (&manager->lock);
    return has_news;
}
