/*
 * External ranges of UVM, into which the resource manager's memory is mapped (uvm_map_external.c).
 *
 * A mapping duplicates the memory into a client of the kernel: the memory exists as long as the mapping, also after a
 * free of its handle, and is reported for no process. One call duplicates once a GPU; the parts of a split mapping
 * share their duplicate. A range ends with FREE or with the file, independently of the program's own mappings of these
 * addresses. Runs as manager.c, under manager->lock.
 */
#include "manager_state.h"
#include "versions.h"

#include <stdlib.h>

#define PAGE UINT64_C (4096)
/* UvmGpuMappingAttributes: a UUID and five words. */
#define ATTRIBUTES_SIZE 36

struct duplicate {
    uint32_t references;
    struct holder holder;
    int gpu;
    uint64_t tables; /* bytes of page tables, where they count */
};

struct external_map {
    struct external_map *next;
    uint64_t base, end;
    int gpu; /* with access to it; the memory may be on another */
    uint32_t process; /* that made it */
    struct duplicate *duplicate;
};

struct external_range {
    struct external_range *next;
    uint64_t base, end;
    struct external_map *maps;
};

static bool is_range (uint64_t base, uint64_t length)
{
    return base % PAGE == 0 && length % PAGE == 0 && length != 0 && base != 0 && base + length > base;
}

static struct external_range *find (const struct manager_file *file, uint64_t base, uint64_t length)
{
    for (struct external_range *range = file->ranges; range != NULL; range = range->next) {
        if (base >= range->base && base + length <= range->end)
            return range;
    }
    return NULL;
}

static void map_destroy (struct manager *manager, struct external_map *map)
{
    if (--map->duplicate->references == 0) {
        piece_drop (manager, &map->duplicate->holder);
        manager->used[map->duplicate->gpu] -= map->duplicate->tables;
        free (map->duplicate);
    }
    free (map);
}

/* Unmaps between the two addresses for the GPU; mappings that extend beyond them are split. */
static enum status unmap (struct manager *manager, struct external_range *range, int gpu, uint64_t base, uint64_t end)
{
    for (struct external_map **place = &range->maps; *place != NULL;) {
        struct external_map *map = *place;
        if (map->gpu != gpu || map->end <= base || map->base >= end) {
            place = &map->next;
        } else if (map->base < base && map->end > end) {
            struct external_map *rest = malloc (sizeof (*rest));
            if (rest == NULL)
                return STATUS_NO_MEMORY;
            *rest = *map;
            rest->base = end;
            rest->duplicate->references++;
            map->end = base;
            map->next = rest;
            return STATUS_OK;
        } else if (map->base < base) {
            map->end = base;
            place = &map->next;
        } else if (map->end > end) {
            map->base = end;
            place = &map->next;
        } else {
            *place = map->next;
            map_destroy (manager, map);
        }
    }
    return STATUS_OK;
}

static void range_destroy (struct manager *manager, struct external_range *range)
{
    for (struct external_map *map = range->maps, *next; map != NULL; map = next) {
        next = map->next;
        map_destroy (manager, map);
    }
    free (range);
}

enum status external_create (struct request *request)
{
    struct manager_file *file = request->file;
    uint64_t base = get64 (request->head, 0), end = base + get64 (request->head, 8);
    struct external_range *range;

    if (!is_range (base, end - base))
        return STATUS_INVALID_ADDRESS;
    for (range = file->ranges; range != NULL; range = range->next) {
        if (base < range->end && end > range->base)
            return STATUS_UVM_ADDRESS_IN_USE;
    }
    range = malloc (sizeof (*range));
    if (range == NULL)
        return STATUS_NO_MEMORY;
    *range = (struct external_range) { .next = file->ranges, .base = base, .end = end };
    file->ranges = range;
    return STATUS_OK;
}

/* The memory named by hClient and hMemory. The descriptor in the call is ignored: the share policy is evaluated for the
 * calling process. */
static enum status source_of (struct request *request, size_t handles_at, struct object **source)
{
    struct client *client = client_find (request->manager, get32 (request->head, handles_at));

    if (client == NULL)
        return STATUS_INVALID_CLIENT;
    *source = object_find (client, get32 (request->head, handles_at + 4));
    if (*source == NULL || (*source)->memory.piece == NULL)
        return STATUS_INVALID_OBJECT_HANDLE;
    return may_duplicate (*source, NULL, request->caller->process (request->caller->context)) ? STATUS_OK
                                                                                              : STATUS_INSUFFICIENT_PERMISSIONS;
}

static enum status map_one (struct request *request, struct external_range *range, struct object *source, int gpu)
{
    uint64_t base = get64 (request->head, 0), length = get64 (request->head, 8), offset = get64 (request->head, 16);
    struct external_map *map = malloc (sizeof (*map));
    struct duplicate *duplicate = malloc (sizeof (*duplicate));
    enum status status = map != NULL && duplicate != NULL ? STATUS_OK : STATUS_NO_MEMORY;

    if (status == STATUS_OK)
        status = unmap (request->manager, range, gpu, base, base + length);
    if (status == STATUS_OK && (offset > source->memory.piece->bytes || length > source->memory.piece->bytes - offset))
        status = STATUS_INVALID_OFFSET;
    if (status != STATUS_OK) {
        free (map);
        free (duplicate);
        return status;
    }
    *duplicate = (struct duplicate) { .references = 1, .gpu = gpu };
    /* 8 bytes for each page: 4 KiB of system memory, 64 KiB of video memory. */
    if (request->manager->counts_overhead)
        duplicate->tables = (length / (source->memory.piece->video ? 65536 : PAGE) * 8 + PAGE - 1) / PAGE * PAGE;
    request->manager->used[gpu] += duplicate->tables;
    piece_hold (&duplicate->holder, &source->memory);
    *map = (struct external_map) { range->maps, base, base + length, gpu, request->caller->process (request->caller->context),
                                   duplicate };
    range->maps = map;
    return STATUS_OK;
}

/* base, length, offset, attributes a GPU, their number, descriptor, client, memory. */
enum status external_map (struct request *request)
{
    uint32_t most = version_size (VERSION_UVM_GPUS, request->manager->release);
    size_t count_at = 24 + ATTRIBUTES_SIZE * (size_t) most;
    uint64_t base = get64 (request->head, 0), length = get64 (request->head, 8), count = get64 (request->head, count_at);
    struct external_range *range = is_range (base, length) ? find (request->file, base, length) : NULL;
    struct object *source;
    enum status status;

    if (!is_range (base, length))
        return STATUS_INVALID_ADDRESS;
    if (count == 0 || count > most)
        return STATUS_INVALID_ARGUMENT;
    if (range == NULL)
        return STATUS_INVALID_ADDRESS;
    uint32_t done = 0;
    status = STATUS_OK;
    for (uint64_t i = 0; status == STATUS_OK && i < count; i++) {
        int gpu = gpu_by_uuid (request->manager, request->head + 24 + ATTRIBUTES_SIZE * i);
        if (gpu < 0 || (request->file->uvm_spaces >> gpu & 1) == 0)
            status = STATUS_INVALID_DEVICE;
        if (status == STATUS_OK)
            status = source_of (request, count_at + 12, &source);
        if (status == STATUS_OK)
            status = map_one (request, range, source, gpu);
        if (status == STATUS_OK)
            done |= UINT32_C (1) << gpu;
    }
    for (int gpu = 0; status != STATUS_OK && gpu < MANAGER_MAX_GPUS; gpu++) {
        if (done >> gpu & 1)
            unmap (request->manager, range, gpu, base, base + length);
    }
    return status;
}

/* base, length, the GPU's UUID. */
enum status external_unmap (struct request *request)
{
    uint64_t base = get64 (request->head, 0), length = get64 (request->head, 8);
    struct external_range *range = is_range (base, length) ? find (request->file, base, length) : NULL;
    int gpu = gpu_by_uuid (request->manager, request->head + 16);

    if (range == NULL)
        return STATUS_INVALID_ADDRESS;
    if (gpu < 0 || (request->file->uvm_gpus >> gpu & 1) == 0)
        return STATUS_INVALID_DEVICE;
    return unmap (request->manager, range, gpu, base, base + length);
}

/* A range as a whole: parts of one cannot be freed. length: 0 where the release has none in the call. */
enum status external_free (struct request *request, uint64_t length)
{
    uint64_t base = get64 (request->head, 0);

    for (struct external_range **place = &request->file->ranges; *place != NULL; place = &(*place)->next) {
        struct external_range *range = *place;
        if (range->base != base || (length != 0 && range->end - base != length))
            continue;
        *place = range->next;
        range_destroy (request->manager, range);
        return STATUS_OK;
    }
    return STATUS_INVALID_ADDRESS;
}

void external_forget (struct manager_file *file, int gpu)
{
    for (struct external_range *range = file->ranges, *next; range != NULL; range = next) {
        next = range->next;
        if (gpu < 0)
            range_destroy (file->manager, range);
        else
            unmap (file->manager, range, gpu, 0, UINT64_MAX);
    }
    if (gpu < 0)
        file->ranges = NULL;
}

void external_each (const struct manager_file *file,
                    void (*each) (void *context, const struct holder *holder, uint64_t bytes, uint32_t process), void *context)
{
    for (const struct external_range *range = file->ranges; range != NULL; range = range->next) {
        for (const struct external_map *map = range->maps; map != NULL; map = map->next)
            each (context, &map->duplicate->holder, map->end - map->base, map->process);
    }
}
