/* RM_VID_HEAP_CONTROL (NVOS32): the old way to video memory, which no CUDA uses any more and any program can. */
#include "page_tables.h"
#include "space.h"
#include "state.h"

/* attr, NVOS32_ATTR_LOCATION (bits 25 and 26): 0 is video memory */
#define ATTRIBUTE_LOCATION 0x6000000u

/* owner, hMemory, type and flags are the same in the structs of all functions below; FREE has hMemory there too. */
static bool is_allocation (uint32_t function)
{
    return function == NVOS32_FUNCTION_ALLOC_SIZE || function == NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT ||
           function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE;
}

/* Address ranges and system memory are allocated by the same functions. */
static bool is_video_memory (const NVOS32_PARAMETERS *head, uint32_t function)
{
    uint32_t attribute = function == NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT ? head->data.AllocTiledPitchHeight.attr
                                                                              : head->data.AllocSize.attr;

    return (head->data.AllocSize.flags & NVOS32_ALLOC_FLAGS_VIRTUAL) == 0 && (attribute & ATTRIBUTE_LOCATION) == 0;
}

/* The size that the driver granted stands where that of AllocSize does, in AllocTiledPitchHeight too. */
static uint64_t bytes_in (const NVOS32_PARAMETERS *head, uint32_t function)
{
    return function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE ? head->data.AllocSizeRange.size : head->data.AllocSize.size;
}

static uint64_t bytes_asked (const NVOS32_PARAMETERS *head, uint32_t function)
{
    if (function == NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT)
        return (uint64_t) head->data.AllocTiledPitchHeight.height * (uint64_t) (int64_t) head->data.AllocTiledPitchHeight.pitch;
    return bytes_in (head, function);
}

/* A pointer that the driver only writes (rmapi_deprecated_vidheapctrl.c). */
static void clear_address (NVOS32_PARAMETERS *head, uint32_t function)
{
    if (function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE)
        head->data.AllocSizeRange.address = 0;
    else
        head->data.AllocSize.address = 0;
}

/* A range of addresses that names no address space is in the device's own (space.c). */
static bool is_in_space (const struct rm *rm, struct rm_call *call)
{
    const NVOS32_PARAMETERS *head = call->head;

    return (head->data.AllocSize.flags & NVOS32_ALLOC_FLAGS_VIRTUAL) == 0 ||
           space_look_range (rm, call, head->hRoot, head->hVASpace, tracker_find (rm, head->hRoot, head->hObjectParent));
}

static enum rm_verdict refuse (NVOS32_PARAMETERS *head, uint32_t status)
{
    head->status = status;
    return RM_REFUSED;
}

/* The driver frees any object by it (rmapi_deprecated_vidheapctrl.c, _nvos32FunctionFree), of which FREE has rules of its own. */
static bool is_memory (const struct object *object)
{
    switch (object->kind) {
    case CLASS_VIDEO_MEMORY:
    case CLASS_SYSTEM_MEMORY:
    case CLASS_VIRTUAL_RANGE:
    case CLASS_CALLER_BOUND:
    case CLASS_PLAIN:
        return true;
    default:
        return false;
    }
}

enum rm_verdict heap_begin (struct rm *rm, struct rm_call *call)
{
    NVOS32_PARAMETERS *head = call->head;
    uint32_t function = head->function;
    uint64_t bytes;

    call->own.number = function;
    if (!evidence_has (rm, call, head->hRoot, head->hObjectParent != 0 ? head->hObjectParent : head->hRoot) ||
        (function == NVOS32_FUNCTION_FREE && is_guard (rm) &&
         evidence_of (rm, call, head->hRoot, head->data.Free.hMemory) == EVIDENCE_UNUSABLE)) {
        note (rm, RM_UNKNOWN_OBJECT, rm_request_number (call->request));
        return refuse (head, NV_ERR_OBJECT_NOT_FOUND);
    }
    call->own.gpu = tracker_gpu_of (rm, head->hRoot, head->hObjectParent);
    if (function == NVOS32_FUNCTION_FREE) {
        struct object *object = tracker_find (rm, head->hRoot, head->data.Free.hMemory);

        if (is_guard (rm) && object != NULL && !is_memory (object)) {
            note (rm, RM_FORBIDDEN_ESCAPE, rm_request_number (call->request));
            return refuse (head, NV_ERR_INVALID_STATE);
        }
        call->own.serial = object != NULL ? object->serial : 0;
        space_leaves (object);
        return RM_PERFORM;
    }
    if (function == NVOS32_FUNCTION_INFO)
        return RM_PERFORM;
    if (!is_allocation (function)) {
        if (!is_guard (rm))
            return RM_PASS;
        note (rm, RM_FORBIDDEN_ESCAPE, rm_request_number (call->request));
        return refuse (head, NV_ERR_NOT_SUPPORTED);
    }
    if (is_full (rm)) {
        note (rm, RM_TOO_MANY, rm_request_number (call->request));
        return refuse (head, NV_ERR_INSUFFICIENT_RESOURCES);
    }
    if (is_guard (rm))
        clear_address (head, function);
    /* serial says whether it is video memory: the driver may write to attr. */
    call->own.serial = is_video_memory (head, function);
    if (call->own.serial == 0 && is_guard (rm) && !is_in_space (rm, call)) {
        note (rm, RM_FORBIDDEN_ESCAPE, rm_request_number (call->request));
        return refuse (head, NV_ERR_INVALID_STATE);
    }
    if (is_guard (rm) && call->own.space_serial != 0 &&
        !tables_reserve (rm, call, head->data.AllocSize.flags, bytes_asked (head, function))) {
        note (rm, RM_OVER_QUOTA, NV50_MEMORY_VIRTUAL);
        return refuse (head, NV_ERR_NO_MEMORY);
    }
    if (call->own.serial == 0)
        return RM_PERFORM;
    bytes = memory_footprint (rm, bytes_asked (head, function));
    if (!memory_reserve (rm, call->own.gpu, bytes)) {
        note (rm, RM_OVER_QUOTA, NV01_MEMORY_LOCAL_USER);
        return refuse (head, NV_ERR_NO_MEMORY);
    }
    call->own.reserved = call->own.gpu >= 0 ? bytes : 0;
    return RM_PERFORM;
}

void heap_end (struct rm *rm, struct rm_call *call, bool done)
{
    NVOS32_PARAMETERS *head = call->head;
    uint32_t function = call->own.number, handle = head->data.AllocSize.hMemory;
    bool is_good = done && head->status == 0;
    struct object *object;

    if (is_good && is_allocation (function)) {
        object = tracker_add (rm, call->file, head->hRoot, head->hObjectParent, handle,
                              call->own.serial != 0         ? CLASS_VIDEO_MEMORY
                              : call->own.space_serial != 0 ? CLASS_VIRTUAL_RANGE
                                                            : CLASS_SYSTEM_MEMORY);
        if (call->own.space_serial != 0)
            tables_made (rm, call, object, bytes_in (head, function));
        if (call->own.serial != 0)
            memory_commit (rm, object, call->own.gpu, call->own.reserved, bytes_in (head, function));
        else if (object != NULL && !space_made (rm, call, object)) {
            note (rm, RM_FORBIDDEN_ESCAPE, rm_request_number (call->request));
            share_give_back (rm, call, head->hRoot, head->hObjectParent, handle);
            head->status = NV_ERR_INVALID_STATE;
        }
    } else if (is_allocation (function)) {
        memory_refund (rm, call->own.gpu, call->own.reserved);
    } else if (is_good && function == NVOS32_FUNCTION_FREE) {
        object = tracker_find (rm, head->hRoot, handle);
        if (object != NULL && object->serial == call->own.serial)
            tracker_drop (rm, object);
    }
    if (done)
        answer_heap (rm, call->own.gpu, head, is_good && function == NVOS32_FUNCTION_INFO);
}
