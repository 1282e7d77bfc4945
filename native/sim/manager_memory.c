/* Video memory and system memory: pieces, and the calls that allocate them under other names. Runs as manager.c, under
 * manager->lock. */
#include "manager_state.h"

#include <stdlib.h>
#include <string.h>

#define LARGE (UINT64_C (2) << 20)
#define SMALL (UINT64_C (64) << 10)
#define MAX_SIZE (UINT64_C (1) << 50)
/* NVOS32_ATTR_LOCATION and its VIDMEM; NVOS32_ALLOC_FLAGS_VIRTUAL. */
#define LOCATION(attributes) ((attributes) >> 25 & 3)
/* NVOS32_ATTR_PAGE_SIZE: small pages are reported, and 64 KiB are taken for each piece all the same (seen on an H100). */
#define PAGE_SIZE(attributes) ((attributes) >> 23 & 3)
#define PAGE_SIZE_4KB 1
#define FLAG_VIRTUAL UINT32_C (0x00080000)
#define FLAG_HANDLE_PROVIDED UINT32_C (0x00004000)

enum classes { CLASS_SYSTEM = 0x3E, CLASS_VIDEO = 0x40 };
enum heap_function { HEAP_SIZE = 2, HEAP_FREE = 3, HEAP_INFO = 5, HEAP_RANGE = 14 };

uint64_t memory_capacity (const struct manager *manager, uint32_t gpu)
{
    return manager->machine->gpus[gpu].memory - manager->machine->gpus[gpu].memory_reserved;
}

uint64_t memory_rounded (uint64_t bytes)
{
    uint64_t granule = bytes >= LARGE ? LARGE : SMALL;

    return (bytes + granule - 1) & ~(granule - 1);
}

enum status piece_create (struct manager *manager, uint32_t gpu, bool video, uint64_t bytes, struct holder *holder)
{
    struct piece *piece;

    if (video && bytes > memory_capacity (manager, gpu) - manager->used[gpu])
        return STATUS_NO_MEMORY;
    piece = calloc (1, sizeof (*piece));
    if (piece == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    *piece = (struct piece) { .bytes = bytes, .reported = bytes, .holders = 1, .gpu = gpu, .video = video };
    if (video)
        manager->used[gpu] += bytes;
    *holder = (struct holder) { .piece = piece, .previous = holder, .next = holder, .owner = true };
    return STATUS_OK;
}

void piece_hold (struct holder *holder, struct holder *source)
{
    *holder = (struct holder) { .piece = source->piece, .previous = source, .next = source->next };
    source->next->previous = holder;
    source->next = holder;
    source->piece->holders++;
}

void piece_drop (struct manager *manager, struct holder *holder)
{
    struct piece *piece = holder->piece;

    if (holder->owner)
        holder->next->owner = true;
    holder->previous->next = holder->next;
    holder->next->previous = holder->previous;
    *holder = (struct holder) { .piece = NULL };
    if (--piece->holders > 0)
        return;
    if (piece->video)
        manager->used[piece->gpu] -= piece->bytes;
    free (piece);
}

enum status memory_allocate (struct request *request, struct object *object, uint8_t *params)
{
    bool video = object->class_number == CLASS_VIDEO;
    uint64_t size = get64 (params, 64), reported;
    enum status status;

    if (get32 (params, 0) == 0 || get32 (params, 0) == UINT32_MAX)
        return STATUS_INVALID_OWNER; /* stdmemValidateParams */
    /* The location in the attributes must fit the class. */
    if (video != (LOCATION (get32 (params, 24)) == 0) || (get32 (params, 8) & FLAG_VIRTUAL) || size == 0)
        return STATUS_INVALID_ARGUMENT;
    if (size > MAX_SIZE)
        return STATUS_NO_MEMORY;
    reported = size = (size + 4095) & ~UINT64_C (4095);
    if (video && PAGE_SIZE (get32 (params, 24)) != PAGE_SIZE_4KB)
        reported = memory_rounded (size);
    if (video)
        size = memory_rounded (size);
    status = piece_create (request->manager, object->gpu, video, size, &object->memory);
    if (status != STATUS_OK)
        return status;
    object->memory.piece->reported = reported;
    put64 (params, 64, reported);
    put64 (params, 88, reported - 1);
    return STATUS_OK;
}

static enum status heap_allocate (struct request *request, struct client *client, size_t size_at)
{
    uint8_t *head = request->head;
    struct object *parent = object_find (client, get32 (head, 4));
    struct object *object;
    uint64_t size = get64 (head, size_at);
    bool video = LOCATION (get32 (head, 56)) == 0;
    enum status status;

    if (parent == NULL || !(parent->kind & (KIND_DEVICE | KIND_SUBDEVICE)))
        return STATUS_INVALID_OBJECT_PARENT;
    if (size == 0 || (get32 (head, 52) & FLAG_VIRTUAL))
        return STATUS_INVALID_ARGUMENT;
    if (get32 (head, 40) == 0 || get32 (head, 40) == UINT32_MAX)
        return STATUS_INVALID_OWNER;
    if (size > MAX_SIZE)
        return STATUS_NO_MEMORY;
    status = object_create (client, parent, (get32 (head, 52) & FLAG_HANDLE_PROVIDED) ? get32 (head, 44) : 0, KIND_MEMORY, &object);
    if (status != STATUS_OK)
        return status;
    object->class_number = video ? CLASS_VIDEO : CLASS_SYSTEM;
    size = video ? memory_rounded (size) : (size + 4095) & ~UINT64_C (4095);
    status = piece_create (request->manager, object->gpu, video, size, &object->memory);
    if (status != STATUS_OK) {
        object_destroy (object);
        return status;
    }
    put32 (head, 44, object->handle);
    put64 (head, size_at, size);
    return STATUS_OK;
}

static enum status heap_information (struct request *request, struct client *client)
{
    struct object *parent = object_find (client, get32 (request->head, 4));

    if (parent == NULL || !(parent->kind & (KIND_DEVICE | KIND_SUBDEVICE)))
        return STATUS_INVALID_OBJECT_PARENT;
    uint64_t capacity = memory_capacity (request->manager, parent->gpu);
    uint64_t available = capacity - request->manager->used[parent->gpu];
    put64 (request->head, 24, capacity);
    put64 (request->head, 32, available);
    put64 (request->head, 48, 0);
    put64 (request->head, 56, available);
    put64 (request->head, 64, 0);
    return STATUS_OK;
}

enum status memory_vid_heap (struct request *request)
{
    uint8_t *head = request->head;
    struct client *client = client_of (request, get32 (head, 0));
    struct object *object;

    if (client == NULL)
        return client_error (request, get32 (head, 0));
    switch (get32 (head, 8)) {
    case HEAP_SIZE:
        return heap_allocate (request, client, 88);
    case HEAP_RANGE:
        return heap_allocate (request, client, 80);
    case HEAP_INFO:
        return heap_information (request, client);
    case HEAP_FREE:
        /* flags, NVOS32_FREE_FLAGS_MEMORY_HANDLE_PROVIDED (rmapi_deprecated_vidheapctrl.c) */
        if ((get32 (head, 48) & 1) == 0)
            return STATUS_INVALID_ARGUMENT;
        object = object_find (client, get32 (head, 44));
        if (object == NULL || object->kind != KIND_MEMORY)
            return STATUS_INVALID_OBJECT_HANDLE;
        object_destroy (object);
        return STATUS_OK;
    default:
        return STATUS_NOT_SUPPORTED;
    }
}
