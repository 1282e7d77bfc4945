/* The asynchronous allocator. Work is done in the order of submission, so memory that a stream frees can be reused at
 * once; a pool's reserve above its threshold is freed at the next synchronization. Runs in the program's process, on
 * the calling thread, under the library's lock. */
#include "libcuda_api.h"
#include "libcuda_pool.h"

#include <stddef.h>

static CUresult default_pool (struct cuda_device *device, CUmemoryPool *pool)
{
    CUresult result = CUDA_SUCCESS;

    if (!cuda.manager)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (device->default_pool == NULL)
        result = cuda_pool_create (device, &device->default_pool);
    if (result == CUDA_SUCCESS && device->current_pool == NULL)
        device->current_pool = device->default_pool;
    *pool = device->default_pool;
    return result;
}

void cuda_trim_pools (struct cuda_device *device)
{
    struct CUmemPoolHandle_st *pools[] = { device->default_pool, device->current_pool };

    for (int i = 0; i < 2; i++) {
        if (pools[i] != NULL && pools[i]->reserved > pools[i]->threshold)
            cuda_pool_trim (pools[i], pools[i]->threshold);
    }
}

static CUresult allocate (CUcontext context, CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream handle)
{
    CUstream stream = cuda_stream (context, handle);
    struct pooled *place;
    CUmemoryPool ignored;

    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (pointer == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != NULL)
        return cuda_capture_allocation (stream, size, pointer);
    CUresult result = default_pool (context->device, &ignored);
    if (pool == NULL)
        pool = context->device->current_pool;
    if (result == CUDA_SUCCESS)
        result = cuda_pool_place (pool, context, size, &place);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda_pool_back (place);
    if (result == CUDA_SUCCESS)
        *pointer = place->entry.start;
    else
        cuda_pool_unplace (place);
    return result;
}

CUresult cuMemAllocAsync (CUdeviceptr *pointer, size_t size, CUstream stream)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    return CUDA_LEAVE (allocate (context, pointer, size, NULL, stream));
}
CUDA_ALIAS (cuMemAllocAsync_ptsz, cuMemAllocAsync);

CUresult cuMemAllocFromPoolAsync (CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (cuda_find (pool, KIND_POOL) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (allocate (context, pointer, size, pool, stream));
}
CUDA_ALIAS (cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync);

CUresult cuMemFreeAsync (CUdeviceptr pointer, CUstream handle)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    CUstream stream = cuda_stream (context, handle);
    if (stream == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture != NULL)
        return CUDA_LEAVE (cuda_capture_free (stream, pointer));
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (entry != NULL && entry->start == pointer && (entry->kind == KIND_MEMORY || entry->kind == KIND_SMALL)) {
        cuda_release (entry);
        return CUDA_LEAVE (CUDA_SUCCESS);
    }
    return CUDA_LEAVE (cuda_pool_free (pointer));
}
CUDA_ALIAS (cuMemFreeAsync_ptsz, cuMemFreeAsync);

CUresult cuDeviceGetDefaultMemPool (CUmemoryPool *pool, CUdevice ordinal)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (pool == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (device == NULL ? CUDA_ERROR_INVALID_DEVICE : default_pool (device, pool));
}

CUresult cuDeviceGetMemPool (CUmemoryPool *pool, CUdevice ordinal)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (pool == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    CUresult result = default_pool (device, pool);
    if (result == CUDA_SUCCESS)
        *pool = device->current_pool;
    return CUDA_LEAVE (result);
}

CUresult cuDeviceSetMemPool (CUdevice ordinal, CUmemoryPool pool)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    if (cuda_find (pool, KIND_POOL) == NULL || pool->device != device)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    device->current_pool = pool;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemPoolCreate (CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUDA_ENTER ();
    if (pool == NULL || properties == NULL || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct cuda_device *device = cuda_device (properties->location.id);
    if (device == NULL || !cuda.manager)
        return CUDA_LEAVE (device == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_SUPPORTED);
    CUresult result = cuda_pool_create (device, pool);
    if (result == CUDA_SUCCESS)
        (*pool)->maximum = properties->maxSize;
    return CUDA_LEAVE (result);
}

CUresult cuMemPoolDestroy (CUmemoryPool pool)
{
    CUDA_ENTER ();
    if (cuda_find (pool, KIND_POOL) == NULL || pool == pool->device->default_pool)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (pool->device->current_pool == pool)
        pool->device->current_pool = pool->device->default_pool;
    cuda_pool_destroy (pool);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo (CUmemoryPool pool, size_t keep)
{
    CUDA_ENTER ();
    if (cuda_find (pool, KIND_POOL) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    cuda_pool_trim (pool, keep);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

/* Attributes 1 to 3 are int, the others 64 bits. */
CUresult cuMemPoolGetAttribute (CUmemoryPool pool, int attribute, void *value)
{
    CUDA_ENTER ();
    if (value == NULL || cuda_find (pool, KIND_POOL) == NULL || attribute < 1 || attribute > 8)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    const uint64_t numbers[] = { pool->threshold, pool->reserved, pool->reserved_high, pool->used, pool->used_high };
    if (attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        *(int *) value = (int) pool->reuse[attribute];
    else
        *(uint64_t *) value = numbers[attribute - CU_MEMPOOL_ATTR_RELEASE_THRESHOLD];
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute (CUmemoryPool pool, int attribute, void *value)
{
    CUDA_ENTER ();
    if (value == NULL || cuda_find (pool, KIND_POOL) == NULL || attribute < 1 || attribute > 8)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->reuse[attribute] = *(const int *) value != 0;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(const uint64_t *) value;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && *(const uint64_t *) value == 0)
        pool->reserved_high = pool->reserved; /* can only be reset */
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && *(const uint64_t *) value == 0)
        pool->used_high = pool->used;
    else
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemPoolSetAccess (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    CUDA_ENTER ();
    bool good = cuda_find (pool, KIND_POOL) != NULL && (access != NULL || count == 0);
    return CUDA_LEAVE (good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
