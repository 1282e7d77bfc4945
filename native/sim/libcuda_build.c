/*
 * Creation of a context: the objects that libcuda of driver 580 creates for one, in its order (traced on an H200): 17
 * pieces of video memory, 513 MiB together; one compute group of 8 channels; three copy groups of 4. Runs in the
 * program's process, on the calling thread, under the library's lock.
 */
#include "libcuda.h"

#include <string.h>
#include <unistd.h>

enum { CLASS_SYSTEM_MEMORY = 0x3e, CLASS_VIDEO_MEMORY = 0x40, CLASS_GROUP = 0xa06c, CLASS_SUBCONTEXT = 0x9067, CLASS_EVENT = 0x79 };
enum { ESCAPE_REGISTER_FD = 0xc9, ESCAPE_ALLOC_OS_EVENT = 0xce };
enum { ENGINE_COMPUTE = 1, ENGINE_COPY = 0xb, COMPUTE_CHANNELS = 8, COPY_CHANNELS = 4, COPY_GROUPS = 3 };
#define CONTROL_SET_TIMESLICE 0xa06c0103u
#define CONTROL_WORK_TOKEN 0xc36f0108u
#define CONTROL_PREEMPTION_MODE 0x20801210u
#define TIMESLICE 2048u /* microseconds: libcuda's own, on the compute group */

struct classes {
    uint32_t channel, compute, copy;
};

static struct classes classes_of (const struct machine_gpu *gpu)
{
    switch (gpu->arch_major * 10 + gpu->arch_minor) {
    case 70:
        return (struct classes) { 0xc36f, 0xc3c0, 0xc3b5 };
    case 75:
        return (struct classes) { 0xc46f, 0xc5c0, 0xc5b5 };
    case 80:
        return (struct classes) { 0xc56f, 0xc6c0, 0xc6b5 };
    case 86:
        return (struct classes) { 0xc56f, 0xc7c0, 0xc7b5 };
    case 89:
        return (struct classes) { 0xc56f, 0xc9c0, 0xc7b5 };
    default:
        return gpu->arch_major >= 10 ? (struct classes) { 0xc96f, 0xcdc0, 0xc9b5 } : (struct classes) { 0xc86f, 0xcbc0, 0xc8b5 };
    }
}

static uint32_t add (CUcontext context, uint32_t parent, uint32_t class_number, void *parameters, uint32_t *object)
{
    uint32_t handle = cuda_new_handle ();
    uint32_t status = rm_allocate_object (&cuda.rm, parent, handle, class_number, parameters);

    if (status != RM_STATUS_OK) {
        cuda_give_handle (handle);
        return status;
    }
    context->objects[context->object_count].parent = parent;
    context->objects[context->object_count++].object = handle;
    if (object != NULL)
        *object = handle;
    return RM_STATUS_OK;
}

static uint32_t add_memory (CUcontext context, uint32_t class_number, uint64_t size, uint32_t attributes)
{
    struct rm_memory_parameters parameters = {
        .owner = cuda.rm.client,
        .flags = class_number == CLASS_VIDEO_MEMORY ? 0x1c101 : 0xc001,
        .attributes = attributes,
        .size = size,
    };

    return add (context, context->device->device, class_number, &parameters, NULL);
}

static uint32_t add_group (CUcontext context, uint32_t engine, uint32_t *group)
{
    /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
    uint32_t parameters[8] = { 0, 0, context->device->vaspace, engine };

    return add (context, context->device->device, CLASS_GROUP, parameters, group);
}

/* A channel, its notifier's page and its engine objects. */
static uint32_t add_channel (CUcontext context, uint32_t group, uint32_t engine, bool compute, uint32_t *channel)
{
    const struct classes classes = classes_of (context->device->gpu);
    uint32_t parameters[128] = { 0 }; /* NV_CHANNEL_ALLOC_PARAMS: 368 bytes of it */
    uint32_t nothing[16] = { 0 }, token = 0;
    uint32_t status = add_memory (context, CLASS_SYSTEM_MEMORY, 0x1000, 0x3a000000);

    parameters[4] = 1024; /* entries of the ring */
    parameters[128 / 4] = engine;
    if (status == RM_STATUS_OK)
        status = add (context, group, classes.channel, parameters, channel);
    if (status == RM_STATUS_OK && compute)
        status = add (context, *channel, classes.compute, nothing, NULL);
    if (status == RM_STATUS_OK)
        status = add (context, *channel, classes.copy, nothing, NULL);
    if (status == RM_STATUS_OK)
        status = rm_control (&cuda.rm, *channel, CONTROL_WORK_TOKEN, &token, sizeof (token));
    return status;
}

static uint32_t add_channels (CUcontext context, uint32_t group, uint32_t engine, int count)
{
    uint32_t status = RM_STATUS_OK;

    for (int i = 0; status == RM_STATUS_OK && i < count; i++) {
        uint32_t channel = 0;
        status = add_channel (context, group, engine, engine == ENGINE_COMPUTE, &channel);
        if (engine == ENGINE_COMPUTE && i == 0)
            context->channel = channel;
    }
    if (status == RM_STATUS_OK)
        status = rm_schedule_group (&cuda.rm, group);
    return status;
}

static uint32_t add_memories (CUcontext context, const uint64_t sizes[], size_t count)
{
    uint32_t status = RM_STATUS_OK;

    for (size_t i = 0; status == RM_STATUS_OK && i < count; i++)
        status = add_memory (context, CLASS_VIDEO_MEMORY, sizes[i], ATTRIBUTES_BLOCK);
    return status;
}
#define COUNT(array) (sizeof (array) / sizeof (*(array)))

static uint32_t build (CUcontext context)
{
    static const uint64_t first[] = { 0x420000, 0x200000, 0x200000, 0x200000 };
    static const uint64_t then[] = { 0x200000, 0x200000, 0x200000, 0x200000,  0x200000, 0x200000,
                                     0x200000, 0x200000, 0x200000, 0x44c6880, 0x200000 };
    uint32_t subcontext[3] = { context->device->vaspace, 0, 0 };
    uint64_t slice = TIMESLICE;
    uint32_t mode[8] = { 1, 0, 0, 2 }; /* compute stops at any instruction */
    uint32_t status = add_memories (context, first, COUNT (first));

    if (status == RM_STATUS_OK)
        status = add_group (context, ENGINE_COMPUTE, &context->group);
    if (status == RM_STATUS_OK)
        status = add (context, context->group, CLASS_SUBCONTEXT, subcontext, NULL);
    if (status == RM_STATUS_OK)
        status = add_memory (context, CLASS_VIDEO_MEMORY, 0x200000, ATTRIBUTES_BLOCK);
    if (status == RM_STATUS_OK)
        status = add_memory (context, CLASS_SYSTEM_MEMORY, 0x3800000, 0x5a000000);
    if (status == RM_STATUS_OK)
        status = add_channels (context, context->group, ENGINE_COMPUTE, COMPUTE_CHANNELS);
    for (uint32_t i = 0; status == RM_STATUS_OK && i < COPY_GROUPS; i++) {
        uint32_t group = 0;
        status = add_group (context, ENGINE_COPY + i, &group);
        if (status == RM_STATUS_OK)
            status = add_channels (context, group, ENGINE_COPY + i, COPY_CHANNELS);
    }
    mode[1] = context->group;
    if (status == RM_STATUS_OK)
        status = rm_control (&cuda.rm, context->device->subdevice, CONTROL_PREEMPTION_MODE, mode, sizeof (mode));
    if (status == RM_STATUS_OK)
        status = add_memories (context, then, COUNT (then));
    /* At the end, over any earlier value: another timeslice must be written after this. */
    if (status == RM_STATUS_OK)
        status = rm_control (&cuda.rm, context->group, CONTROL_SET_TIMESLICE, &slice, sizeof (slice));
    if (status == RM_STATUS_OK)
        status = add_memory (context, CLASS_VIDEO_MEMORY, 0x19c80000, ATTRIBUTES_BLOCK);
    return status;
}

/* Notification of faults: an event of the subdevice, on an open node of the GPU that has no other use. */
static uint32_t listen (CUcontext context)
{
    struct {
        uint32_t client, device;
        int32_t fd;
        uint32_t status;
    } call = { .client = cuda.rm.client, .device = context->device->device };
    struct {
        uint32_t client, source, class_number, index;
        uint64_t fd;
    } parameters = { .client = cuda.rm.client, .source = context->device->subdevice, .class_number = CLASS_EVENT };
    int control = cuda.rm.control;

    context->events = rm_open_node (context->device->gpu->node);
    if (context->events < 0)
        return RM_STATUS_SYSTEM;
    call.fd = context->events;
    parameters.fd = (uint64_t) context->events;
    uint32_t status = rm_call (context->events, ESCAPE_REGISTER_FD, &control, sizeof (control));
    if (status == RM_STATUS_OK)
        status = rm_call (context->events, ESCAPE_ALLOC_OS_EVENT, &call, sizeof (call));
    if (status == RM_STATUS_OK)
        status = call.status;
    return status != RM_STATUS_OK ? status : add (context, context->device->subdevice, CLASS_EVENT, &parameters, NULL);
}

CUresult cuda_context_build (CUcontext context)
{
    context->events = -1;
    uint32_t status = cuda.manager ? listen (context) : RM_STATUS_NOT_SUPPORTED;
    CUresult result = cuda_status (status == RM_STATUS_OK ? build (context) : status);

    if (result != CUDA_SUCCESS)
        cuda_context_unbuild (context);
    return result;
}

void cuda_context_unbuild (CUcontext context)
{
    while (context->object_count > 0) {
        context->object_count--;
        rm_free_object (&cuda.rm, context->objects[context->object_count].parent, context->objects[context->object_count].object);
        cuda_give_handle (context->objects[context->object_count].object);
    }
    if (context->events >= 0)
        close (context->events);
    context->events = -1;
}
