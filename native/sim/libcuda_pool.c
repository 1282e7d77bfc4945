/* Pools: an address space of chunks of 32 MiB, each an object of the resource manager while it is used or reserved.
 * Runs in the program's process, on the calling thread, under the library's lock. */
#include "libcuda_pool.h"

#include <stdlib.h>

#define UNIT 512u

CUresult cuda_pool_create (struct cuda_device *device, CUmemoryPool *pool)
{
    struct CUmemPoolHandle_st *made = calloc (1, sizeof (*made));

    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = device;
    for (int i = 1; i <= 3; i++)
        made->reuse[i] = 1;
    if (!cuda_add_handle (&made->entry, KIND_POOL, NULL)) {
        free (made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pool = made;
    return CUDA_SUCCESS;
}

void cuda_pool_destroy (CUmemoryPool pool)
{
    while (pool->places != NULL) {
        struct pooled *place = pool->places;
        cuda_pool_unback (place);
        place->holders = 0;
        cuda_pool_unplace (place);
    }
    cuda_pool_trim (pool, 0);
    if (pool->address != 0)
        cuda_unreserve (pool->address, pool->chunk_count * POOL_CHUNK);
    free (pool->chunks);
    cuda_remove (&pool->entry);
    free (pool);
}

/* Twice the GPU's memory, so that fragments do not matter. */
static CUresult reserve (CUmemoryPool pool)
{
    size_t count = (size_t) (pool->device->gpu->memory * 2 / POOL_CHUNK) + 1;

    if (pool->address != 0)
        return CUDA_SUCCESS;
    pool->chunks = calloc (count, sizeof (*pool->chunks));
    if (pool->chunks != NULL)
        pool->address = cuda_reserve (count * POOL_CHUNK, POOL_CHUNK);
    if (pool->address == 0) {
        free (pool->chunks);
        pool->chunks = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->chunk_count = count;
    return CUDA_SUCCESS;
}

CUresult cuda_pool_place (CUmemoryPool pool, CUcontext context, size_t size, struct pooled **result)
{
    CUresult reserved = reserve (pool);
    uint64_t length = cuda_round (size, UNIT), end = pool->address + pool->chunk_count * POOL_CHUNK;
    uint64_t address = pool->address;
    struct pooled **link = &pool->places;

    if (reserved != CUDA_SUCCESS)
        return reserved;
    for (; *link != NULL && (*link)->entry.start - address < length; link = &(*link)->next)
        address = (*link)->entry.start + (*link)->length;
    if (length < size || length > end - address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct pooled *place = calloc (1, sizeof (*place));
    if (place == NULL || !cuda_add (&place->entry, KIND_POOLED, context, address, size)) {
        free (place);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    place->pool = pool;
    place->length = length;
    place->next = *link;
    *link = place;
    *result = place;
    return CUDA_SUCCESS;
}

void cuda_pool_unplace (struct pooled *place)
{
    struct pooled **link = &place->pool->places;

    if (place->backed || place->holders > 0)
        return;
    while (*link != place)
        link = &(*link)->next;
    *link = place->next;
    cuda_remove (&place->entry);
    free (place);
}

static size_t first_chunk (const struct pooled *place)
{
    return (size_t) ((place->entry.start - place->pool->address) / POOL_CHUNK);
}

static size_t last_chunk (const struct pooled *place)
{
    return (size_t) ((place->entry.start + place->length - 1 - place->pool->address) / POOL_CHUNK);
}

static CUresult use_chunk (CUmemoryPool pool, struct pool_chunk *chunk)
{
    CUresult result = CUDA_SUCCESS;

    if (chunk->memory.object == 0) {
        if (pool->maximum != 0 && pool->reserved + POOL_CHUNK > pool->maximum)
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = cuda_memory_allocate (pool->device, POOL_CHUNK, ATTRIBUTES_VIRTUAL, &chunk->memory);
        if (result == CUDA_SUCCESS) {
            uint64_t address = pool->address + (uint64_t) (chunk - pool->chunks) * POOL_CHUNK;
            result = cuda_memory_place (pool->device, &chunk->memory, address, POOL_CHUNK);
            if (result != CUDA_SUCCESS)
                cuda_memory_free (pool->device, &chunk->memory);
        }
        if (result == CUDA_SUCCESS)
            pool->reserved += POOL_CHUNK;
    }
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    if (result == CUDA_SUCCESS)
        chunk->users++;
    return result;
}

CUresult cuda_pool_back (struct pooled *place)
{
    CUmemoryPool pool = place->pool;
    size_t first = first_chunk (place), last = last_chunk (place), i;
    uint64_t before = pool->reserved;
    CUresult result = CUDA_SUCCESS;

    for (i = first; i <= last && result == CUDA_SUCCESS; i++)
        result = use_chunk (pool, &pool->chunks[i]);
    if (result != CUDA_SUCCESS) {
        for (i--; i > first; i--)
            pool->chunks[i - 1].users--;
        cuda_pool_trim (pool, before);
        return result;
    }
    place->backed = true;
    pool->used += place->length;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

void cuda_pool_unback (struct pooled *place)
{
    CUmemoryPool pool = place->pool;

    if (!place->backed)
        return;
    for (size_t i = first_chunk (place); i <= last_chunk (place); i++)
        pool->chunks[i].users--;
    place->backed = false;
    pool->used -= place->length;
}

void cuda_pool_trim (CUmemoryPool pool, uint64_t keep)
{
    /* From the top, since allocations search from the bottom. */
    for (size_t i = pool->chunk_count; i > 0 && pool->reserved > keep; i--) {
        struct pool_chunk *chunk = &pool->chunks[i - 1];
        if (chunk->users > 0 || chunk->memory.object == 0)
            continue;
        cuda_memory_free (pool->device, &chunk->memory);
        pool->reserved -= POOL_CHUNK;
    }
}

CUresult cuda_pool_free (CUdeviceptr pointer)
{
    struct cuda_entry *entry = cuda_find_address (pointer);

    if (entry == NULL || entry->kind != KIND_POOLED || entry->start != pointer || !((struct pooled *) entry)->backed)
        return CUDA_ERROR_INVALID_VALUE;
    cuda_pool_unback ((struct pooled *) entry);
    cuda_pool_unplace ((struct pooled *) entry);
    return CUDA_SUCCESS;
}
