/* RM_VID_HEAP_CONTROL (NVOS32): the old way to video memory, which no CUDA uses any more and any program can. */
#include "state.h"

#define HEAP_FUNCTION 8u
#define HEAP_STATUS 20u
#define HEAP_HANDLE 44u /* hMemory, of all functions below */
#define HEAP_FLAGS 52u
#define FLAG_VIRTUAL 0x80000u
/* attr, bits 25 and 26: 0 is video memory */
#define ATTRIBUTE_LOCATION 0x6000000u

enum function { ALLOC_SIZE = 2, FREE = 3, INFO = 5, ALLOC_TILED = 6, ALLOC_RANGE = 14 };

static uint32_t size_at (uint32_t function) { return function == ALLOC_RANGE ? 80 : 88; }
/* Of a pointer that the driver only writes (rmapi_deprecated_vidheapctrl.c). */
static uint32_t address_at (uint32_t function) { return function == ALLOC_RANGE ? 128 : 120; }

static bool is_allocation (uint32_t function)
{
    return function == ALLOC_SIZE || function == ALLOC_TILED || function == ALLOC_RANGE;
}

/* Address ranges and system memory are allocated by the same functions. */
static bool is_video_memory (const void *head, uint32_t function)
{
    uint32_t attribute = get32 (head, function == ALLOC_TILED ? 64 : 56);

    return (get32 (head, HEAP_FLAGS) & FLAG_VIRTUAL) == 0 && (attribute & ATTRIBUTE_LOCATION) == 0;
}

static uint64_t bytes_asked (const void *head, uint32_t function)
{
    if (function == ALLOC_TILED)
        return (uint64_t) get32 (head, 56) * get32 (head, 60);
    return get64 (head, size_at (function));
}

enum rm_verdict heap_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t function = get32 (call->head, HEAP_FUNCTION);
    uint64_t bytes;

    call->own.number = function;
    call->own.gpu = tracker_gpu_of (rm, get32 (call->head, 0), get32 (call->head, 4));
    if (function == FREE) {
        const struct object *object = tracker_find (rm, get32 (call->head, 0), get32 (call->head, HEAP_HANDLE));

        call->own.serial = object != NULL ? object->serial : 0;
        return RM_PERFORM;
    }
    if (function == INFO)
        return RM_PERFORM;
    if (!is_allocation (function)) {
        if (!is_guard (rm))
            return RM_PASS;
        note (rm, RM_FORBIDDEN_ESCAPE, rm_request_number (call->request));
        set32 (call->head, HEAP_STATUS, STATUS_NOT_SUPPORTED);
        return RM_REFUSED;
    }
    if (is_guard (rm) && rm->objects.count >= OBJECTS_MAX) {
        note (rm, RM_TOO_MANY, rm_request_number (call->request));
        set32 (call->head, HEAP_STATUS, STATUS_INSUFFICIENT_RESOURCES);
        return RM_REFUSED;
    }
    if (is_guard (rm))
        set64 (call->head, address_at (function), 0);
    /* serial says whether it is video memory: the driver may write to attr. */
    call->own.serial = is_video_memory (call->head, function);
    if (call->own.serial == 0)
        return RM_PERFORM;
    bytes = bytes_asked (call->head, function);
    if (!memory_reserve (rm, call->own.gpu, bytes)) {
        note (rm, RM_OVER_QUOTA, 0x40);
        set32 (call->head, HEAP_STATUS, STATUS_NO_MEMORY);
        return RM_REFUSED;
    }
    call->own.reserved = call->own.gpu >= 0 ? bytes : 0;
    return RM_PERFORM;
}

void heap_end (struct rm *rm, struct rm_call *call, bool done)
{
    uint32_t function = call->own.number, client = get32 (call->head, 0);
    uint32_t handle = get32 (call->head, HEAP_HANDLE);
    bool is_good = done && get32 (call->head, HEAP_STATUS) == 0;
    struct object *object;

    if (is_good && is_allocation (function)) {
        object = tracker_add (rm, call->file, client, get32 (call->head, 4), handle,
                              call->own.serial != 0 ? CLASS_VIDEO_MEMORY : CLASS_SYSTEM_MEMORY);
        if (call->own.serial != 0)
            memory_settle (rm, object, call->own.gpu, call->own.reserved, get64 (call->head, size_at (function)));
    } else if (is_allocation (function)) {
        memory_refund (rm, call->own.gpu, call->own.reserved);
    } else if (is_good && function == FREE) {
        object = tracker_find (rm, client, handle);
        if (object != NULL && object->serial == call->own.serial)
            tracker_drop (rm, object);
    }
    if (done)
        answer_heap (rm, call->own.gpu, call->head, is_good && function == INFO);
}
