/*
 * Records of a process that is gone, entered again. It may have been killed between any two stores, so nothing is
 * believed but cells in use and what each says of itself: tables, lists, counts and sums are made anew.
 */
#include "state.h"

/* Raise it whenever a record's meaning changes and its size does not. */
#define LAYOUT 1u

struct records {
    uint8_t *bytes;
    size_t size;
    uint64_t address;
};

uint64_t rm_layout (void)
{
    uint64_t sizes[] = { LAYOUT, sizeof (struct object), sizeof (struct client), sizeof (struct memory),
                         sizeof (struct file), sizeof (struct export), sizeof (struct chunk),
                         offsetof (struct object, memory), offsetof (struct object, kind), CLASS_CALLER };
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < sizeof (sizes) / sizeof (sizes[0]); i++)
        sum = (sum ^ sizes[i]) * 0x100000001b3u;
    return sum;
}

static size_t size_of (enum pool_kind kind)
{
    static const size_t sizes[POOL_KINDS] = { [POOL_OBJECTS] = sizeof (struct object),
                                              [POOL_CLIENTS] = sizeof (struct client),
                                              [POOL_MEMORIES] = sizeof (struct memory),
                                              [POOL_FILES] = sizeof (struct file),
                                              [POOL_EXPORTS] = sizeof (struct export) };

    return sizes[kind];
}

static bool is_used (const uint8_t *cell, enum pool_kind kind)
{
    uint64_t mark;

    __builtin_memcpy (&mark, cell + size_of (kind), sizeof (mark));
    return mark == MARK + kind;
}

/* Where what a pointer of the other process leads to lies here; NULL: not to a cell in use. */
static void *found (const struct records *records, const void *pointer, enum pool_kind kind)
{
    uint64_t offset = (uint64_t) (uintptr_t) pointer - records->address;

    if (pointer == NULL || offset >= records->size || records->size - offset < size_of (kind) + sizeof (uint64_t))
        return NULL;
    return is_used (records->bytes + offset, kind) ? records->bytes + offset : NULL;
}

/* Calls `each` for every cell in use. */
static bool walk (struct rm *rm, const struct records *records, enum pool_kind kind,
                  bool (*each) (struct rm *rm, const struct records *records, void *cell))
{
    size_t at = 0, cell = size_of (kind) + sizeof (uint64_t);

    while (records->size - at >= CHUNK_HEAD) {
        const struct chunk *chunk = (const struct chunk *) (void *) (records->bytes + at);

        if (chunk->size < CHUNK_HEAD || chunk->size > records->size - at)
            return true;
        for (size_t i = CHUNK_HEAD; chunk->kind == kind && i + cell <= chunk->size; i += cell)
            if (is_used (records->bytes + at + i, kind) && !each (rm, records, records->bytes + at + i))
                return false;
        at += chunk->size;
    }
    return true;
}

static bool restore_client (struct rm *rm, const struct records *records, void *cell)
{
    const struct client *old = cell;
    const struct object *object = found (records, old->object, POOL_OBJECTS);
    const struct file *file = found (records, old->file, POOL_FILES);

    if (object == NULL || file == NULL || object->kind != CLASS_CLIENT)
        return true;
    return tracker_client (rm, file->link.key, (uint32_t) object->link.key) != NULL;
}

/* What the other process's object became: the pointer is kept in the old one's link. */
static struct object *became (const struct records *records, const struct object *old)
{
    const struct object *cell = found (records, old, POOL_OBJECTS);

    return cell != NULL ? (struct object *) (void *) cell->link.next : NULL;
}

static bool restore_object (struct rm *rm, const struct records *records, void *cell)
{
    struct object *old = cell, *object;
    uint32_t client = (uint32_t) (old->link.key >> 32), handle = (uint32_t) old->link.key;

    (void) records;
    old->link.next = NULL;
    object = tracker_find (rm, client, client);
    if (old->kind == CLASS_CLIENT || handle == client) {
        old->link.next = (struct link *) object;
        return true;
    }
    if (object == NULL || handle == 0 || tracker_find (rm, client, handle) != NULL)
        return true;
    old->link.next = (struct link *) tracker_new (rm, client, handle, old->kind);
    if (old->link.next == NULL)
        return false;
    ((struct object *) (void *) old->link.next)->client = object->client;
    return true;
}

static struct memory *restore_memory (struct rm *rm, const struct records *records, const struct memory *pointer)
{
    struct memory *old = found (records, pointer, POOL_MEMORIES), *memory;
    uint64_t charged;

    if (old == NULL)
        return NULL;
    /* Met before: where its bytes were is the new one, and nobody counts so many references. */
    if (old->references == UINT32_MAX) {
        memory = (struct memory *) (uintptr_t) old->bytes;
        memory->references++;
        return memory;
    }
    memory = memory_create (rm, old->gpu, old->bytes);
    if (memory == NULL)
        return NULL;
    if (old->gpu >= 0 && old->gpu < RM_MAX_GPUS) {
        memory_charge (rm, old->gpu, old->bytes, &charged);
        memory->bytes = charged;
    }
    old->bytes = (uint64_t) (uintptr_t) memory;
    old->references = UINT32_MAX;
    return memory;
}

static bool link_object (struct rm *rm, const struct records *records, void *cell)
{
    const struct object *old = cell;
    struct object *object = (struct object *) (void *) old->link.next, *parent;

    if (object == NULL || object->kind == CLASS_CLIENT)
        return true;
    parent = became (records, old->parent);
    if (parent == NULL || parent->client != object->client)
        parent = object->client->object;
    object->parent = parent;
    object->after = parent->child;
    if (parent->child != NULL)
        parent->child->before = object;
    parent->child = object;
    object->asked = old->asked;
    object->has_asked = old->has_asked;
    object->engine = old->engine;
    object->instance = old->instance;
    object->gpu = old->gpu;
    object->is_compute = old->is_compute;
    object->device = object->kind == CLASS_DEVICE ? object : became (records, old->device);
    if (object->kind == CLASS_DEVICE && object->instance < RM_MAX_GPUS && object->gpu != GPU_UNKNOWN)
        rm->gpu_of_instance[object->instance] = object->gpu;
    object->memory = restore_memory (rm, records, old->memory);
    return object->memory != NULL || found (records, old->memory, POOL_MEMORIES) == NULL;
}

/* When every object knows its GPU. */
static bool give_role (struct rm *rm, const struct records *records, void *cell)
{
    const struct object *old = cell;
    struct object *object = (struct object *) (void *) old->link.next;

    (void) records;
    if (object == NULL || object->kind == CLASS_CLIENT)
        return true;
    if (object->kind == CLASS_SUBDEVICE)
        tracker_add_role (&object->client->subdevices, object);
    schedule_restored (rm, object);
    return true;
}

static bool restore_export (struct rm *rm, const struct records *records, void *cell)
{
    const struct export *old = cell;
    struct memory *memory = restore_memory (rm, records, old->memory);

    if (memory == NULL)
        return found (records, old->memory, POOL_MEMORIES) == NULL;
    memory->references--; /* tracker_export counts it */
    tracker_export (rm, old->file, memory, old->slot);
    memory->exporter = old->file;
    memory->exporters++;
    return true;
}

bool rm_restore (struct rm *rm, void *bytes, size_t size, uint64_t address)
{
    struct records records = { bytes, size, address };
    bool good = walk (rm, &records, POOL_CLIENTS, restore_client) && walk (rm, &records, POOL_OBJECTS, restore_object) &&
                walk (rm, &records, POOL_OBJECTS, link_object) && walk (rm, &records, POOL_OBJECTS, give_role) &&
                walk (rm, &records, POOL_EXPORTS, restore_export);

    schedule_tell (rm);
    return good;
}

void rm_drop (struct rm *rm, uint32_t client, uint32_t handle)
{
    struct object *object = tracker_find (rm, client, handle);

    if (object != NULL)
        tracker_drop (rm, object);
    schedule_tell (rm);
}
