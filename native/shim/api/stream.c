/*
 * Wrappers of stream-ordered allocation. Converted memory is available at once, which is indistinguishable from stream
 * order. Its free cannot be stream-ordered (the driver returns CUDA_ERROR_NOT_SUPPORTED for managed memory), so it
 * synchronizes with the stream first: earlier work in it may still use the memory. Runs as array.c.
 */
#include "managed.h"

#include "rm/rm.h"

/* The flavours differ in the meaning of stream NULL; each uses its own functions. */
struct flavour {
    enum row allocate, allocate_from_pool, free, is_capturing, synchronize;
};
static const struct flavour LEGACY = { ROW_cuMemAllocAsync, ROW_cuMemAllocFromPoolAsync, ROW_cuMemFreeAsync,
                                       ROW_cuStreamIsCapturing, ROW_cuStreamSynchronize };
static const struct flavour PER_THREAD = { ROW_cuMemAllocAsync_ptsz, ROW_cuMemAllocFromPoolAsync_ptsz, ROW_cuMemFreeAsync_ptsz,
                                           ROW_cuStreamIsCapturing_ptsz, ROW_cuStreamSynchronize_ptsz };

/* Whether the memory will belong to a graph, which is not handled here; true also when that is unknown. */
static bool is_capturing (const struct flavour *flavour, CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = ((type_cuStreamIsCapturing) next_function (flavour->is_capturing)) (stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult allocate (const struct flavour *flavour, CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    type_cuMemAllocAsync real = (type_cuMemAllocAsync) next_function (flavour->allocate);
    struct share share = share_of_stream (stream);
    CUresult result;
    if (pointer == NULL || bytes == 0)
        return real (pointer, bytes, stream);
    bool capturing = (share.counted || share.oversubscribed) && is_capturing (flavour, stream);
    if (capturing) /* a graph's memory is allocated when it runs */
        return real (pointer, bytes, stream);
    if (!share_take (&share, share_charge (bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool converted = managed_allocate (&share, pointer, bytes, &result);
    if (!converted)
        result = real (pointer, bytes, stream);
    share_keep (&share, result == CUDA_SUCCESS, LEDGER_POINTER, *pointer, share_charge (bytes), converted);
    return result;
}

static CUresult free_in_order (const struct flavour *flavour, CUdeviceptr pointer, CUstream stream)
{
    type_cuMemFreeAsync real = (type_cuMemFreeAsync) next_function (flavour->free);
    struct ledger_entry entry;
    if (!share_is_active () || pointer == 0)
        return real (pointer, stream);
    if (share_is_converted (pointer)) {
        if (is_capturing (flavour, stream)) /* not memory of the graph: the driver returns the error */
            return real (pointer, stream);
        CUresult result = ((type_cuStreamSynchronize) next_function (flavour->synchronize)) (stream);
        return result == CUDA_SUCCESS ? cuMemFree_v2 (pointer) : result;
    }
    bool known = share_forget (LEDGER_POINTER, pointer, &entry);
    CUresult result = real (pointer, stream);
    if (known)
        share_freed (&entry, result == CUDA_SUCCESS);
    return result;
}

/* A pool of managed memory makes mappings. */
static CUresult draw (type_cuMemAllocFromPoolAsync real, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    refused_forget ();
    return refused_result (real (pointer, bytes, pool, stream));
}

/* The device of a pool is only known from memory allocated from it. Pools are never converted: a program may export
 * them, trim them and query their usage. */
static CUresult allocate_from_pool (const struct flavour *flavour, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                    CUstream stream)
{
    type_cuMemAllocFromPoolAsync real = (type_cuMemAllocFromPoolAsync) next_function (flavour->allocate_from_pool);
    struct share share = share_of_stream (stream);
    uint64_t charge = share_charge (bytes);
    int device = -1;
    if (pointer == NULL || bytes == 0 || (!share.counted && !share.blocked) || is_capturing (flavour, stream))
        return draw (real, pointer, bytes, pool, stream);
    if (!share_take (&share, charge))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = draw (real, pointer, bytes, pool, stream);
    if (result == CUDA_SUCCESS &&
        NEXT (cuPointerGetAttribute) (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, *pointer) == CUDA_SUCCESS && device >= 0 &&
        device != share.device) {
        share_give (&share, charge);
        share = share_of_device (device);
        if (!share_take (&share, charge)) {
            ((type_cuMemFreeAsync) next_function (flavour->free)) (*pointer, stream);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    share_keep (&share, result == CUDA_SUCCESS, LEDGER_POINTER, *pointer, charge, false);
    return result;
}

CUresult cuMemAllocAsync (CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate (&LEGACY, pointer, bytes, stream);
}

CUresult cuMemAllocAsync_ptsz (CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate (&PER_THREAD, pointer, bytes, stream);
}

CUresult cuMemFreeAsync (CUdeviceptr pointer, CUstream stream) { return free_in_order (&LEGACY, pointer, stream); }

CUresult cuMemFreeAsync_ptsz (CUdeviceptr pointer, CUstream stream) { return free_in_order (&PER_THREAD, pointer, stream); }

CUresult cuMemAllocFromPoolAsync (CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from_pool (&LEGACY, pointer, bytes, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz (CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from_pool (&PER_THREAD, pointer, bytes, pool, stream);
}
