/* RM_ALLOC (NVOS21, NVOS64), RM_ALLOC_MEMORY (NVOS02), RM_FREE (NVOS00), RM_DUP_OBJECT (NVOS55). */
#include "state.h"

/* NVOS21 and NVOS64 begin alike: hRoot, hObjectParent, hObjectNew, hClass, pAllocParms. */
#define ALLOC_STATUS_NVOS21 28u
#define ALLOC_STATUS_NVOS64 40u
#define NVOS21_SIZE 32u
#define ALLOC_FLAGS_NVOS64 36u

#define MEMORY_LIMIT 32u
#define MEMORY_STATUS 40u
#define FREE_STATUS 12u
#define DUP_STATUS 24u

/* NV_MEMORY_ALLOCATION_PARAMS: a pointer that the driver only writes (standard_mem.c). */
#define MEMORY_ADDRESS 96u
/* NV00F8_ALLOCATION_PARAMETERS: map.hVidMem */
#define CLASS_FABRIC 0xf8u
#define FABRIC_MEMORY 40u

#define CONTROL_GID_INFO 0x2080014au
#define GID_SIZE 268u
#define GID_FLAGS 4u
#define GID_LENGTH 8u
#define GID_DATA 12u
#define GID_BINARY_SHA1 2u
#define UUID_SIZE 16u

static uint32_t status_at (const struct rm_call *call)
{
    return call->head_size == NVOS21_SIZE ? ALLOC_STATUS_NVOS21 : ALLOC_STATUS_NVOS64;
}

static enum rm_verdict refuse (struct rm *rm, struct rm_call *call, uint32_t at, uint32_t status, enum rm_reason reason,
                               uint32_t number)
{
    note (rm, reason, number);
    set32 (call->head, at, status);
    return RM_REFUSED;
}

/* A client that was never seen is taken to be of this file, but only if it is the control node's: the others serve
 * clients of another file too. */
static struct object *add (struct rm *rm, const struct rm_call *call, uint32_t handle, uint8_t kind)
{
    uint32_t client = get32 (call->head, 0);

    if (call->node != RM_NODE_CONTROL && tracker_find (rm, client, client) == NULL)
        return NULL;
    return tracker_add (rm, call->file, client, get32 (call->head, 4), handle, kind);
}

static bool is_full (const struct rm *rm)
{
    return is_guard (rm) && rm->objects.count >= OBJECTS_MAX;
}

/* Which of the share's GPUs a subdevice is, by the driver's own word. */
static void learn_gpu (struct rm *rm, uint64_t file, struct object *subdevice)
{
    uint32_t aligned[GID_SIZE / 4] = {0};
    uint8_t *params = (uint8_t *) aligned;
    struct object *device = subdevice->device;
    int gpu;

    set32 (params, GID_FLAGS, GID_BINARY_SHA1);
    if (device == NULL || schedule_control (rm, file, (uint32_t) (subdevice->link.key >> 32),
                                            (uint32_t) subdevice->link.key,
                                            CONTROL_GID_INFO, params, GID_SIZE) != 0)
        return;
    if (get32 (params, GID_LENGTH) != UUID_SIZE)
        return;
    gpu = rm->host->find_gpu (rm->context, params + GID_DATA);
    tracker_set_device_gpu (rm, device, gpu >= 0 && gpu < RM_MAX_GPUS ? gpu : RM_NO_GPU);
}

/* A reference to existing memory, taken before the driver takes its own: it must not be refunded in between. */
static enum rm_verdict dup_source (struct rm *rm, struct rm_call *call, uint32_t client, uint32_t handle)
{
    const struct object *source = tracker_find (rm, client, handle);

    if (source != NULL && source->memory != NULL) {
        source->memory->references++;
        call->own.serial = (uint64_t) (uintptr_t) source->memory;
    }
    return RM_PERFORM;
}

static struct memory *taken (const struct rm_call *call)
{
    return (struct memory *) (uintptr_t) call->own.serial;
}

/* Fabric memory is a range of addresses on NVLink, none of its own. Made over a piece of video memory it holds on to
 * it; what is attached later (ATTACH_MEM) it does not keep: its FREE takes it away (mem_fabric.c,
 * memoryfabricUnmapFrom_IMPL). */
static enum rm_verdict fabric_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t handle = get32 (call->params, FABRIC_MEMORY);

    return handle != 0 ? dup_source (rm, call, get32 (call->head, 0), handle) : RM_PERFORM;
}

/* NV01_MEMORY_SYSTEM, NV01_MEMORY_LOCAL_USER, NV50_MEMORY_VIRTUAL */
static bool has_address (uint32_t number) { return number == 0x3e || number == 0x40 || number == 0x50a0; }

enum rm_verdict alloc_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t number = get32 (call->head, 12);
    const struct rm_class *class = rm_abi_class (rm->abi, number);
    bool has_params = get64 (call->head, 16) != 0;
    uint32_t status = status_at (call);
    uint64_t bytes;

    call->own.number = number;
    call->own.class = class;
    if (class == NULL || class->kind == CLASS_FORBIDDEN) {
        enum rm_reason reason = class == NULL ? RM_UNKNOWN_CLASS : RM_FORBIDDEN_CLASS;

        if (is_guard (rm))
            return refuse (rm, call, status, STATUS_INVALID_CLASS, reason, number);
        note (rm, reason, number);
        return RM_CONTINUE;
    }
    /* Params that are not as the class's struct has them: rm would read another size than the driver. No program does. */
    if (is_guard (rm) && call->head_size != NVOS21_SIZE && get32 (call->head, ALLOC_FLAGS_NVOS64) != 0)
        return refuse (rm, call, status, STATUS_INSUFFICIENT_PERMISSIONS, RM_FORBIDDEN_CLASS, number);
    if (is_full (rm))
        return refuse (rm, call, status, STATUS_INSUFFICIENT_RESOURCES, RM_TOO_MANY, rm_request_number (call->request));
    /* The driver writes the client that it made into the caller's struct, and remembers who the caller is. A device is
     * made only by the process that made its client (the driver asserts it on the way to the GPU's firmware); where
     * the driver would pick the handle nobody else could tell which. */
    if (class->kind == CLASS_CLIENT || class->kind == CLASS_CALLER)
        return RM_CONTINUE;
    if (class->kind == CLASS_DEVICE && is_guard (rm) && get32 (call->head, 8) != 0)
        return RM_CONTINUE;
    if (has_params && class->size != 0 && (call->params == NULL || call->params_size < class->size)) {
        note (rm, RM_BAD_POINTER, rm_request_number (call->request));
        return RM_UNKNOWN;
    }
    if (is_guard (rm) && has_params && has_address (number))
        set64 (call->params, MEMORY_ADDRESS, 0);
    if (class->kind != CLASS_VIDEO_MEMORY)
        return RM_PERFORM;
    if (!has_params) {
        if (is_guard (rm))
            return refuse (rm, call, status, STATUS_INVALID_CLASS, RM_BAD_POINTER, rm_request_number (call->request));
        return RM_PERFORM;
    }
    if (number == CLASS_FABRIC)
        return fabric_begin (rm, call);
    bytes = get64 (call->params, class->size_at);
    call->own.gpu = tracker_gpu_of (rm, get32 (call->head, 0), get32 (call->head, 4));
    if (!memory_reserve (rm, call->own.gpu, bytes))
        return refuse (rm, call, status, STATUS_NO_MEMORY, RM_OVER_QUOTA, number);
    call->own.reserved = call->own.gpu >= 0 ? bytes : 0;
    return RM_PERFORM;
}

void alloc_continued (struct rm *rm, struct rm_call *call)
{
    const struct rm_class *class = call->own.class;
    struct object *object;

    /* Whether there is such a device shows when something is made below it: until then it is only a name. */
    if (class == NULL || class->kind != CLASS_DEVICE)
        return;
    object = add (rm, call, get32 (call->head, 8), CLASS_DEVICE);
    if (object != NULL && call->params != NULL && call->params_size >= class->size)
        object->instance = get32 (call->params, 0);
}

void alloc_end (struct rm *rm, struct rm_call *call, bool done)
{
    const struct rm_class *class = call->own.class;
    uint8_t kind = class != NULL ? class->kind : CLASS_UNKNOWN;
    uint32_t handle = get32 (call->head, 8);
    bool has_params = call->params != NULL && class != NULL && call->params_size >= class->size;
    struct object *object;

    if (!done || get32 (call->head, status_at (call)) != 0) {
        memory_refund (rm, call->own.gpu, call->own.reserved);
        memory_drop (rm, taken (call));
        return;
    }
    if (kind == CLASS_CLIENT) {
        /* A new client: whatever had its handle is gone. */
        object = tracker_find (rm, handle, handle);
        if (object != NULL)
            tracker_drop (rm, object);
        tracker_client (rm, call->file, handle);
        return;
    }
    object = add (rm, call, handle, kind);
    if (object == NULL && kind != CLASS_VIDEO_MEMORY)
        return;
    switch (kind) {
    case CLASS_DEVICE:
        object->instance = has_params ? get32 (call->params, 0) : 0;
        break;
    case CLASS_SUBDEVICE:
        tracker_add_role (&object->client->subdevices, object);
        learn_gpu (rm, call->file, object);
        break;
    case CLASS_VIDEO_MEMORY:
        if (call->own.number == CLASS_FABRIC) {
            if (object != NULL)
                object->memory = taken (call);
            break;
        }
        memory_settle (rm, object, call->own.gpu, call->own.reserved,
                       has_params ? get64 (call->params, class->size_at) : 0);
        break;
    default:
        schedule_added (rm, object, has_params ? call->params : NULL, has_params ? class->size : 0);
    }
}

enum rm_verdict alloc_memory_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t number = get32 (call->head, 12);
    const struct rm_class *class = rm_abi_class (rm->abi, number);

    call->own.number = number;
    call->own.class = class;
    /* 0x3f is registers of the device here; only the caller can map what the driver hands out. */
    if (class == NULL || (number != 0x40 && class->kind != CLASS_SYSTEM_MEMORY && number != 0x71)) {
        if (is_guard (rm))
            return refuse (rm, call, MEMORY_STATUS, STATUS_INVALID_CLASS, RM_FORBIDDEN_CLASS, number);
        return RM_CONTINUE;
    }
    if (is_full (rm))
        return refuse (rm, call, MEMORY_STATUS, STATUS_INSUFFICIENT_RESOURCES, RM_TOO_MANY,
                       rm_request_number (call->request));
    /* Class 0x40 here allocates nothing: it is the old question of how much memory there is, less one byte (and for
     * root a window on all of it). */
    return class->kind == CLASS_VIDEO_MEMORY ? RM_PERFORM : RM_CONTINUE;
}

void alloc_memory_end (struct rm *rm, struct rm_call *call, bool done)
{
    const struct rm_class *class = call->own.class;
    uint32_t client = get32 (call->head, 0);
    struct rm_numbers numbers;
    uint64_t limit;
    int gpu;

    if (!done || get32 (call->head, MEMORY_STATUS) != 0)
        return;
    add (rm, call, get32 (call->head, 8), class != NULL ? class->kind : CLASS_UNKNOWN);
    if (class == NULL || class->kind != CLASS_VIDEO_MEMORY)
        return;
    gpu = tracker_gpu_of (rm, client, get32 (call->head, 4));
    if (gpu < 0)
        return;
    numbers = rm->host->numbers (rm->context, gpu);
    limit = get64 (call->head, MEMORY_LIMIT);
    if (numbers.limit != 0 && limit >= numbers.limit)
        set64 (call->head, MEMORY_LIMIT, numbers.limit - 1);
}

/* hRoot, hObjectParent, hObjectOld; an old habit is to leave hRoot out when a client frees itself. */
enum rm_verdict free_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t client = get32 (call->head, 0), handle = get32 (call->head, 8);
    const struct object *object = tracker_find (rm, client != 0 ? client : handle, handle);

    if (object == NULL)
        return is_guard (rm) ? RM_PERFORM : RM_PASS;
    call->own.serial = object->serial;
    return RM_PERFORM;
}

void free_end (struct rm *rm, struct rm_call *call, bool done)
{
    uint32_t client = get32 (call->head, 0), handle = get32 (call->head, 8);
    struct object *object;

    if (!done || get32 (call->head, FREE_STATUS) != 0 || call->own.serial == 0)
        return;
    object = tracker_find (rm, client != 0 ? client : handle, handle);
    /* Between the driver's freeing and now another thread may have got the same handle for something new. */
    if (object != NULL && object->serial == call->own.serial)
        tracker_drop (rm, object);
}

/* hClient, hParent, hObject (new; 0: the driver picks), hClientSrc, hObjectSrc. */
enum rm_verdict dup_begin (struct rm *rm, struct rm_call *call)
{
    if (is_full (rm))
        return refuse (rm, call, DUP_STATUS, STATUS_INSUFFICIENT_RESOURCES, RM_TOO_MANY,
                       rm_request_number (call->request));
    return dup_source (rm, call, get32 (call->head, 12), get32 (call->head, 16));
}

void dup_end (struct rm *rm, struct rm_call *call, bool done)
{
    struct memory *memory = taken (call);
    struct object *object = NULL;

    if (done && get32 (call->head, DUP_STATUS) == 0)
        object = add (rm, call, get32 (call->head, 8), memory != NULL ? CLASS_VIDEO_MEMORY : CLASS_PLAIN);
    if (object != NULL)
        object->memory = memory;
    else
        memory_drop (rm, memory);
}
