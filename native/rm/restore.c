/*
 * Records of a process that is gone, entered again. It may have been killed between any two stores, and its file may have been
 * damaged, so nothing is believed but cells in use and what each says of itself, as far as that can be: tables, lists, trees,
 * counts and sums are made anew. What cannot be is no ledger at all.
 */
#include "state.h"

/* Raise it whenever a record's meaning changes and its size does not. */
#define LAYOUT 1u
/* Objects are counted up from 1, and never so many are made. */
#define SERIAL_MAX ((uint64_t) 1 << 62)
/* Chunks begin at multiples of it (host->keep). */
#define ALIGNED 16u

struct records {
    uint8_t *bytes;
    size_t size;
    uint64_t address;
    size_t *chunks; /* where they begin, in order */
    size_t chunk_count;
};

uint64_t rm_layout (void)
{
    uint64_t sizes[] = { LAYOUT, sizeof (struct object), sizeof (struct client), sizeof (struct memory),
                         sizeof (struct file), sizeof (struct export), sizeof (struct chunk),
                         offsetof (struct object, memory), offsetof (struct object, kind), CLASS_CALLER_BOUND };
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

static const struct chunk *chunk_at (const struct records *records, size_t at)
{
    return (const struct chunk *) (void *) (records->bytes + at);
}

/* How many chunks there are up to what is none; where they begin, in as many as there is room for. */
static size_t find_chunks (const struct records *records, size_t *chunks, size_t room)
{
    size_t count = 0, at = 0;

    while (records->size - at >= CHUNK_HEAD) {
        size_t size = chunk_at (records, at)->size;

        if (size < CHUNK_HEAD || size > records->size - at || size % ALIGNED != 0)
            break;
        if (count < room)
            chunks[count] = at;
        count++;
        at += size;
    }
    return count;
}

/* Where what a pointer of the other process leads to lies here; NULL: not to a cell in use. */
static void *found (const struct records *records, const void *pointer, enum pool_kind kind)
{
    uint64_t offset = (uint64_t) (uintptr_t) pointer - records->address;
    size_t cell = size_of (kind) + sizeof (uint64_t), low = 0, high = records->chunk_count;
    const struct chunk *chunk;

    if (pointer == NULL || offset >= records->size)
        return NULL;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (records->chunks[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    if (high == low || offset < records->chunks[low] + CHUNK_HEAD)
        return NULL;
    chunk = chunk_at (records, records->chunks[low]);
    offset -= records->chunks[low];
    if (chunk->kind != kind || offset > chunk->size || chunk->size - offset < cell || (offset - CHUNK_HEAD) % cell != 0)
        return NULL;
    return is_used (records->bytes + records->chunks[low] + offset, kind) ? records->bytes + records->chunks[low] + offset : NULL;
}

/* Calls `each` for every cell in use. */
static bool walk (struct rm *rm, const struct records *records, enum pool_kind kind,
                  bool (*each) (struct rm *rm, const struct records *records, void *cell))
{
    size_t cell = size_of (kind) + sizeof (uint64_t);

    for (size_t k = 0; k < records->chunk_count; k++) {
        const struct chunk *chunk = chunk_at (records, records->chunks[k]);
        uint8_t *cells = records->bytes + records->chunks[k];

        for (size_t i = CHUNK_HEAD; chunk->kind == kind && i + cell <= chunk->size; i += cell)
            if (is_used (cells + i, kind) && !each (rm, records, cells + i))
                return false;
    }
    return true;
}

/* Of a share: its GPUs' indices, one that it does not name, one that nobody knows yet. */
static bool is_gpu (int32_t gpu) { return gpu >= GPU_UNKNOWN && gpu < RM_MAX_GPUS; }

/* Of a bool in memory that need not be one. */
static bool is_set (const void *at)
{
    uint8_t byte;

    __builtin_memcpy (&byte, at, sizeof (byte));
    return byte != 0;
}

static bool check_memory (struct rm *rm, const struct records *records, void *cell)
{
    struct memory *old = cell;

    (void) rm;
    (void) records;
    old->references = 0; /* nobody's, yet: they are counted anew */
    return is_gpu (old->gpu) && old->bytes <= BYTES_MAX;
}

static bool check_object (struct rm *rm, const struct records *records, void *cell)
{
    const struct object *old = cell;

    (void) rm;
    (void) records;
    return is_gpu (old->gpu) && old->kind <= CLASS_FORBIDDEN && old->serial < SERIAL_MAX;
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
    if (old->serial == 0)
        return true; /* it was being made */
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
    ((struct object *) (void *) old->link.next)->serial = old->serial;
    if (rm->serial < old->serial)
        rm->serial = old->serial;
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
    if (old->gpu >= 0) {
        if (rm->bytes[old->gpu] > BYTES_MAX) { /* there is not so much in the world */
            memory->gpu = GPU_UNKNOWN;
            memory_drop (rm, memory);
            return NULL;
        }
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
    /* Made before it, or it could lie below itself. */
    if (parent == NULL || parent->client != object->client || (parent->kind != CLASS_CLIENT && parent->serial >= object->serial))
        parent = object->client->object;
    object->parent = parent;
    object->after = parent->child;
    if (parent->child != NULL)
        parent->child->before = object;
    parent->child = object;
    object->asked = old->asked;
    object->has_asked = is_set (&old->has_asked);
    object->engine = old->engine;
    object->instance = old->instance;
    object->gpu = old->gpu;
    object->is_compute = is_set (&old->is_compute);
    if (object->kind == CLASS_DEVICE && object->instance < RM_MAX_GPUS && object->gpu != GPU_UNKNOWN)
        rm->gpu_of_instance[object->instance] = object->gpu;
    object->memory = restore_memory (rm, records, old->memory);
    return object->memory != NULL || found (records, old->memory, POOL_MEMORIES) == NULL;
}

/* Which device each of a client's objects is below: parents come first. */
static void find_devices (struct client *client)
{
    struct object *at = client->object->child;

    while (at != NULL) {
        at->device = at->kind == CLASS_DEVICE ? at : at->parent->device;
        if (at->child != NULL) {
            at = at->child;
            continue;
        }
        while (at != client->object && at->after == NULL)
            at = at->parent;
        at = at != client->object ? at->after : NULL;
    }
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

static bool restore (struct rm *rm, const struct records *records)
{
    bool good = walk (rm, records, POOL_MEMORIES, check_memory) && walk (rm, records, POOL_OBJECTS, check_object) &&
                walk (rm, records, POOL_CLIENTS, restore_client) && walk (rm, records, POOL_OBJECTS, restore_object) &&
                walk (rm, records, POOL_OBJECTS, link_object);

    for (struct client *client = rm->clients; good && client != NULL; client = client->after)
        find_devices (client);
    return good && walk (rm, records, POOL_OBJECTS, give_role) && walk (rm, records, POOL_EXPORTS, restore_export);
}

bool rm_restore (struct rm *rm, void *bytes, size_t size, uint64_t address)
{
    struct records records = { .bytes = bytes, .size = size, .address = address };
    size_t count = find_chunks (&records, NULL, 0);
    bool good;

    records.chunks = count != 0 ? rm->host->allocate (rm->context, count * sizeof (*records.chunks)) : NULL;
    if (count != 0 && records.chunks == NULL)
        return false;
    records.chunk_count = find_chunks (&records, records.chunks, count);
    good = restore (rm, &records);
    if (records.chunks != NULL)
        rm->host->release (rm->context, records.chunks, count * sizeof (*records.chunks));
    /* Half of a ledger is none: the driver is asked what there is. */
    while (!good && rm->clients != NULL)
        tracker_drop_client (rm, rm->clients);
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
