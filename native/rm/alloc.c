/* RM_ALLOC (NVOS21, NVOS64), RM_ALLOC_MEMORY (NVOS02), RM_FREE (NVOS00), RM_DUP_OBJECT (NVOS55). All of them begin with the
 * client, its new object's parent, and the new object. */
#include "nv_params.h"
#include "page_tables.h"
#include "space.h"
#include "state.h"

#define MEMORY_STATUS offsetof (NVOS02_PARAMETERS, status)

/* Where the status stands: NVOS21 and NVOS64 are the same only up to pAllocParms. */
static size_t status_at (const struct rm_call *call)
{
    return call->head_size == sizeof (NVOS21_PARAMETERS) ? offsetof (NVOS21_PARAMETERS, status)
                                                         : offsetof (NVOS64_PARAMETERS, status);
}

static enum rm_verdict refuse (struct rm *rm, struct rm_call *call, size_t at, uint32_t status, enum rm_reason reason,
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
    const NVOS21_PARAMETERS *head = call->head;
    uint32_t client = head->hRoot;

    if (call->node != RM_NODE_CONTROL && tracker_find (rm, client, client) == NULL)
        return NULL;
    return tracker_add (rm, call->file, client, head->hObjectParent, handle, kind);
}

/* The driver takes the client for a parent of 0 (alloc_free.c). */
static uint32_t parent_of (const NVOS21_PARAMETERS *head) { return head->hObjectParent != 0 ? head->hObjectParent : head->hRoot; }

/* What the driver refuses because the handle is taken. Continued, the call could be another one by then, and would free nothing. */
static bool is_taken (const struct rm *rm, const NVOS21_PARAMETERS *head, const struct rm_class *class)
{
    uint32_t handle = head->hObjectNew, client = class->kind == CLASS_CLIENT ? handle : head->hRoot;

    return handle != 0 && tracker_find (rm, client, handle) != NULL;
}

/* What nothing could stop: channels are stopped by a subdevice of the GPU. libcuda makes one with each device. */
static bool is_out_of_reach (const struct rm *rm, const NVOS21_PARAMETERS *head, const struct rm_class *class)
{
    return (class->kind == CLASS_GROUP || class->kind == CLASS_CHANNEL) &&
           !schedule_reaches (rm, tracker_find (rm, head->hRoot, parent_of (head)));
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

static struct memory *taken (const struct rm_call *call) { return (struct memory *) (uintptr_t) call->own.serial; }

/* Fabric memory is a range of addresses on NVLink, none of its own. Made over a piece of video memory it holds on to
 * it; what is attached later (ATTACH_MEM) it does not keep: its FREE takes it away (mem_fabric.c,
 * memoryfabricUnmapFrom_IMPL). */
static enum rm_verdict fabric_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t handle = ((const NV00F8_ALLOCATION_PARAMETERS *) call->params)->map.hVidMem;

    uint32_t client = ((const NVOS21_PARAMETERS *) call->head)->hRoot;

    if (handle == 0)
        return RM_PERFORM;
    if (!evidence_has (rm, call, client, handle))
        return refuse (rm, call, status_at (call), NV_ERR_OBJECT_NOT_FOUND, RM_UNKNOWN_OBJECT, rm_request_number (call->request));
    return dup_source (rm, call, client, handle);
}

/* Classes whose params are NV_MEMORY_ALLOCATION_PARAMS: address is a pointer that the driver only writes (standard_mem.c). */
static bool has_address (uint32_t number)
{
    return number == NV01_MEMORY_SYSTEM || number == NV01_MEMORY_LOCAL_USER || number == NV50_MEMORY_VIRTUAL;
}

/* Params that are not as the class's struct has them: rm would read another size than the driver. No program makes such. */
static bool is_serialized (const struct rm_call *call)
{
    return call->head_size != sizeof (NVOS21_PARAMETERS) && ((const NVOS64_PARAMETERS *) call->head)->flags != 0;
}

/* Its context's buffers are charged to a guard's tenant: no object of its own stands for them. */
static enum rm_verdict context_begin (struct rm *rm, struct rm_call *call)
{
    const NVOS21_PARAMETERS *head = call->head;
    uint64_t bytes = schedule_context_bytes (rm, call->own.class->kind, tracker_find (rm, head->hRoot, parent_of (head)),
                                             call->params, call->params != NULL ? call->params_size : 0);

    call->own.gpu = tracker_gpu_of (rm, head->hRoot, parent_of (head));
    if (bytes == 0 || call->own.gpu < 0)
        return RM_PERFORM;
    if (!memory_reserve (rm, call->own.gpu, bytes))
        return refuse (rm, call, status_at (call), NV_ERR_NO_MEMORY, RM_OVER_QUOTA, head->hClass);
    call->own.reserved = bytes;
    return RM_PERFORM;
}

static enum rm_verdict range_begin (struct rm *rm, struct rm_call *call)
{
    const NV_MEMORY_ALLOCATION_PARAMS *params = call->params;
    const NVOS21_PARAMETERS *head = call->head;

    call->own.gpu = tracker_gpu_of (rm, head->hRoot, parent_of (head));
    if (!tables_reserve (rm, call, params->flags, params->size))
        return refuse (rm, call, status_at (call), NV_ERR_NO_MEMORY, RM_OVER_QUOTA, head->hClass);
    return RM_PERFORM;
}

static bool is_continued (const struct rm_call *call, const struct rm_class *class)
{
    return class->kind == CLASS_CLIENT || class->kind == CLASS_CALLER_BOUND ||
           (class->kind == CLASS_DEVICE && ((const NVOS21_PARAMETERS *) call->head)->hObjectNew != 0 && !space_is_private (call));
}

/* The driver lets a process debug what another process of the same user made: root's, in every container. The owner of an event's
 * object it does not check. A client of the tenant that has an object is in the ledger. */
static bool is_about_other_client (const struct rm *rm, const struct rm_call *call, const struct rm_class *class)
{
    uint32_t client;

    if (class->kind == CLASS_DEVICE)
        return !space_may_be_shared (rm, call);
    if (call->params == NULL)
        return false;
    if (class->kind == CLASS_DEBUGGER)
        return tracker_may_be_foreign (rm, call, ((const NV83DE_ALLOC_PARAMETERS *) call->params)->hAppClient);
    if (class->number == NV01_EVENT_OS_EVENT || class->number == NV01_EVENT)
        client = ((const NV0005_ALLOC_PARAMETERS *) call->params)->hParentClient;
    else
        return false;
    return client != 0 && tracker_find (rm, client, client) == NULL;
}

/* What is found under its handle afterwards was not there before: the ledger does not have all that is. */
static enum rm_verdict continue_begin (struct rm *rm, struct rm_call *call)
{
    const NVOS21_PARAMETERS *head = call->head;

    call->own.outcome = ++rm->serial;
    if (evidence_of (rm, call, head->hRoot, head->hObjectNew) == EVIDENCE_NONE)
        return RM_CONTINUE;
    set32 (call->head, status_at (call), NV_ERR_INSERT_DUPLICATE_NAME);
    return RM_REFUSED;
}

enum rm_verdict alloc_begin (struct rm *rm, struct rm_call *call)
{
    const NVOS21_PARAMETERS *head = call->head;
    uint32_t number = head->hClass;
    const struct rm_class *class = rm_abi_class (rm->abi, number);
    bool has_params = head->pAllocParms != 0;
    size_t status = status_at (call);
    uint64_t bytes;

    call->own.number = number;
    call->own.class = class;
    if (class == NULL || class->kind == CLASS_FORBIDDEN) {
        enum rm_reason reason = class == NULL ? RM_UNKNOWN_CLASS : RM_FORBIDDEN_CLASS;

        if (is_guard (rm))
            return refuse (rm, call, status, NV_ERR_INVALID_CLASS, reason, number);
        note (rm, reason, number);
        return RM_CONTINUE;
    }
    if (is_guard (rm) && is_serialized (call))
        return refuse (rm, call, status, NV_ERR_INSUFFICIENT_PERMISSIONS, RM_FORBIDDEN_CLASS, number);
    if (is_full (rm))
        return refuse (rm, call, status, NV_ERR_INSUFFICIENT_RESOURCES, RM_TOO_MANY, rm_request_number (call->request));
    /* OS descriptors are made by RM_ALLOC_MEMORY, which cannot become video memory: CUDA, graphics and video make none here
     * (gVisor's list of what they do, nvproxy/version.go, has no such class). */
    if (is_guard (rm) && number == NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
        return refuse (rm, call, status, NV_ERR_INVALID_CLASS, RM_FORBIDDEN_CLASS, number);
    /* The driver writes the client that it made into the caller's struct, and remembers the calling process. A device is
     * made only by the process that made its client (the driver asserts it on the way to the GPU's firmware); where
     * the driver would pick the handle no other process could tell which. Whatever a continued call is said to make enters the
     * ledger when the driver was asked about it (evidence.c). */
    if (is_guard (rm) && is_continued (call, class) && is_taken (rm, head, class)) {
        set32 (call->head, status, NV_ERR_INSERT_DUPLICATE_NAME);
        return RM_REFUSED;
    }
    if (class->kind == CLASS_CLIENT) {
        call->own.outcome = ++rm->serial;
        return RM_CONTINUE;
    }
    if (is_guard (rm) && (!evidence_has (rm, call, head->hRoot, parent_of (head)) || is_out_of_reach (rm, head, class)))
        return refuse (rm, call, status, NV_ERR_OBJECT_NOT_FOUND, RM_UNKNOWN_OBJECT, rm_request_number (call->request));
    if (class->kind != CLASS_CALLER_BOUND && has_params && class->size != 0 &&
        (call->params == NULL || call->params_size < class->size)) {
        note (rm, RM_BAD_POINTER, rm_request_number (call->request));
        return RM_UNKNOWN;
    }
    if (is_guard (rm) && number == NV01_EVENT &&
        (!has_params || ((const NV0005_ALLOC_PARAMETERS *) call->params)->hClass != NV01_EVENT_OS_EVENT))
        return refuse (rm, call, status, NV_ERR_INVALID_CLASS, RM_FORBIDDEN_CLASS, number);
    if (is_guard (rm) && is_about_other_client (rm, call, class))
        return refuse (rm, call, status, NV_ERR_INVALID_CLIENT, RM_FORBIDDEN_CLASS, number);
    if (is_guard (rm) && is_continued (call, class))
        return continue_begin (rm, call);
    if (class->kind == CLASS_CALLER_BOUND)
        return RM_CONTINUE;
    if (is_guard (rm) && !space_look (rm, call, tracker_find (rm, head->hRoot, parent_of (head))))
        return refuse (rm, call, status, NV_ERR_INVALID_STATE, RM_FORBIDDEN_CLASS, number);
    if (is_guard (rm) && class->kind == CLASS_COMPUTE &&
        !schedule_may_compute (rm, tracker_find (rm, head->hRoot, parent_of (head))))
        return refuse (rm, call, status, NV_ERR_INVALID_CLASS, RM_FORBIDDEN_CLASS, number);
    if (is_guard (rm) && preempt_is_graphics (number) &&
        !preempt_may_draw (rm, call, tracker_find (rm, head->hRoot, parent_of (head))))
        return refuse (rm, call, status, NV_ERR_INVALID_CLASS, RM_FORBIDDEN_CLASS, number);
    if (is_guard (rm) && has_params && has_address (number))
        ((NV_MEMORY_ALLOCATION_PARAMS *) call->params)->address = 0;
    if (class->kind == CLASS_GROUP || class->kind == CLASS_CHANNEL)
        return context_begin (rm, call);
    if (is_guard (rm) && number == NV50_MEMORY_VIRTUAL && has_params)
        return range_begin (rm, call);
    if (class->kind != CLASS_VIDEO_MEMORY)
        return RM_PERFORM;
    if (!has_params) {
        if (is_guard (rm))
            return refuse (rm, call, status, NV_ERR_INVALID_CLASS, RM_BAD_POINTER, rm_request_number (call->request));
        return RM_PERFORM;
    }
    if (number == NV_MEMORY_FABRIC)
        return fabric_begin (rm, call);
    bytes = memory_footprint (rm, get64 (call->params, class->size_at));
    call->own.gpu = tracker_gpu_of (rm, head->hRoot, head->hObjectParent);
    if (!memory_reserve (rm, call->own.gpu, bytes))
        return refuse (rm, call, status, NV_ERR_NO_MEMORY, RM_OVER_QUOTA, number);
    call->own.reserved = call->own.gpu >= 0 ? bytes : 0;
    return RM_PERFORM;
}

/* What was made and may not stay. */
static void take_back (struct rm *rm, struct rm_call *call, const struct object *object, uint32_t status, enum rm_reason reason)
{
    uint32_t handle = (uint32_t) object->link.key;

    note (rm, reason, call->own.number);
    share_give_back (rm, call, (uint32_t) (object->link.key >> 32), (uint32_t) object->parent->link.key, handle);
    set32 (call->head, status_at (call), status);
}

void alloc_end (struct rm *rm, struct rm_call *call, bool done)
{
    const struct rm_class *class = call->own.class;
    uint8_t kind = class != NULL ? class->kind : CLASS_UNKNOWN;
    uint32_t handle = ((const NVOS21_PARAMETERS *) call->head)->hObjectNew;
    bool has_params = call->params != NULL && class != NULL && call->params_size >= class->size;
    struct object *object;

    preempt_drew (rm, call, done && get32 (call->head, status_at (call)) == 0);
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
        return; /* what was taken for it stays charged */
    switch (kind) {
    case CLASS_DEVICE:
        object->instance = has_params ? ((const NV0080_ALLOC_PARAMETERS *) call->params)->deviceId : 0;
        object->space_serial = space_is_private (call) ? SPACE_ITSELF : 0;
        break;
    case CLASS_SUBDEVICE:
        tracker_add_subdevice (rm, call->file, object);
        break;
    case CLASS_VIDEO_MEMORY:
        if (call->own.number == NV_MEMORY_FABRIC) {
            if (object != NULL)
                object->memory = taken (call); /* the driver counts the piece, and not this */
            break;
        }
        memory_commit (rm, object, call->own.gpu, call->own.reserved, has_params ? get64 (call->params, class->size_at) : 0);
        break;
    case CLASS_GROUP:
    case CLASS_CHANNEL:
        object->made = object->serial;
        object->context_bytes = call->own.reserved;
        object->context_gpu = call->own.gpu;
        /* fall through */
    default:
        if (kind == CLASS_VIRTUAL_RANGE)
            tables_made (rm, call, object,
                         call->own.reserved != 0 ? ((const NV_MEMORY_ALLOCATION_PARAMS *) call->params)->size : 0);
        schedule_added (rm, object, has_params ? call->params : NULL, has_params ? class->size : 0);
        if (!space_made (rm, call, object))
            take_back (rm, call, object, NV_ERR_INVALID_STATE, RM_FORBIDDEN_CLASS);
        else if (!preempt_object (rm, object, call->own.number))
            take_back (rm, call, object, NV_ERR_INSUFFICIENT_RESOURCES, RM_SCHEDULING_CONTROL);
    }
}

enum rm_verdict alloc_memory_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t number = ((const NVOS02_PARAMETERS *) call->head)->hClass;
    const struct rm_class *class = rm_abi_class (rm->abi, number);

    call->own.number = number;
    call->own.class = class;
    /* NV01_MEMORY_LOCAL_PRIVILEGED is registers of the device here; only the caller can map what the driver hands out. */
    if (class == NULL ||
        (number != NV01_MEMORY_LOCAL_USER && class->kind != CLASS_SYSTEM_MEMORY && number != NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)) {
        if (is_guard (rm))
            return refuse (rm, call, MEMORY_STATUS, NV_ERR_INVALID_CLASS, RM_FORBIDDEN_CLASS, number);
        return RM_CONTINUE;
    }
    if (is_full (rm))
        return refuse (rm, call, MEMORY_STATUS, NV_ERR_INSUFFICIENT_RESOURCES, RM_TOO_MANY, rm_request_number (call->request));
    if (!evidence_has (rm, call, ((const NVOS21_PARAMETERS *) call->head)->hRoot, parent_of (call->head)))
        return refuse (rm, call, MEMORY_STATUS, NV_ERR_OBJECT_NOT_FOUND, RM_UNKNOWN_OBJECT, rm_request_number (call->request));
    /* NV01_MEMORY_LOCAL_USER here allocates nothing: it is the old question of how much memory there is, less one byte (and for
     * root a window on all of it). */
    return class->kind == CLASS_VIDEO_MEMORY ? RM_PERFORM : RM_CONTINUE;
}

void alloc_memory_end (struct rm *rm, struct rm_call *call, bool done)
{
    const struct rm_class *class = call->own.class;
    NVOS02_PARAMETERS *head = call->head;
    struct rm_numbers numbers;
    int gpu;

    if (!done || head->status != 0)
        return;
    add (rm, call, head->hObjectNew, class != NULL ? class->kind : CLASS_UNKNOWN);
    if (class == NULL || class->kind != CLASS_VIDEO_MEMORY)
        return;
    gpu = tracker_gpu_of (rm, head->hRoot, head->hObjectParent);
    if (gpu < 0)
        return;
    numbers = rm->host->numbers (rm->context, gpu);
    if (numbers.limit != 0 && head->limit >= numbers.limit)
        head->limit = numbers.limit - 1;
}
