/*
 * Copies and fills. They take no simulated time and wait for earlier work. Copies and fills of up to 1 MiB change the
 * contents of device memory, whose address space is made accessible meanwhile. Larger ones only check their arguments.
 * Runs in the program's process, on the calling thread, under the library's lock.
 */
#include "libcuda.h"
#include "libcuda_api.h"

#include <string.h>
#include <sys/mman.h>

#define PAGE ((uint64_t) 4096)
#define KEPT MEBIBYTE

static bool is_device (const struct cuda_entry *entry)
{
    return entry != NULL && entry->kind != KIND_HOST && entry->kind != KIND_REGISTERED && entry->kind != KIND_MANAGED;
}

static bool inside (const struct cuda_entry *entry, uint64_t address, uint64_t size)
{
    return entry != NULL && size <= entry->start + entry->size - address;
}

static void *opened (const struct cuda_entry *entry, uint64_t address, size_t size, bool open)
{
    uint64_t first = address & ~(PAGE - 1);

    if (is_device (entry))
        mprotect ((void *) (uintptr_t) first, address + size - first, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    return (void *) (uintptr_t) address;
}

/* Addresses in no register are the program's own memory. */
static CUresult copy (uint64_t to, uint64_t from, size_t size, bool to_device, bool from_device)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    struct cuda_entry *target = cuda_find_address (to), *source = cuda_find_address (from);
    if (size == 0)
        return CUDA_LEAVE (CUDA_SUCCESS);
    if ((to_device && !inside (target, to, size)) || (from_device && !inside (source, from, size)) || to == 0 || from == 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    CUresult result = cuda_wait (context, context->submitted, true);
    if (result != CUDA_SUCCESS)
        return CUDA_LEAVE (result);
    if (size > KEPT)
        return CUDA_LEAVE (CUDA_SUCCESS);
    void *place = opened (target, to, size, true);
    memmove (place, opened (source, from, size, true), size);
    opened (source, from, size, false);
    opened (target, to, size, false);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemcpy (CUdeviceptr to, CUdeviceptr from, size_t size) { return copy (to, from, size, false, false); }
CUDA_ALIAS (cuMemcpy_ptds, cuMemcpy);

CUresult cuMemcpyHtoD_v2 (CUdeviceptr to, const void *from, size_t size) { return copy (to, (uintptr_t) from, size, true, false); }
CUDA_ALIAS (cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2);

CUresult cuMemcpyDtoH_v2 (void *to, CUdeviceptr from, size_t size) { return copy ((uintptr_t) to, from, size, false, true); }
CUDA_ALIAS (cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2);

CUresult cuMemcpyDtoD_v2 (CUdeviceptr to, CUdeviceptr from, size_t size) { return copy (to, from, size, true, true); }
CUDA_ALIAS (cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2);

CUresult cuMemcpyAsync (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void) stream;
    return copy (to, from, size, false, false);
}
CUDA_ALIAS (cuMemcpyAsync_ptsz, cuMemcpyAsync);

CUresult cuMemcpyHtoDAsync_v2 (CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    (void) stream;
    return copy (to, (uintptr_t) from, size, true, false);
}
CUDA_ALIAS (cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2);

CUresult cuMemcpyDtoHAsync_v2 (void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void) stream;
    return copy ((uintptr_t) to, from, size, false, true);
}
CUDA_ALIAS (cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2);

CUresult cuMemcpyDtoDAsync_v2 (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void) stream;
    return copy (to, from, size, true, true);
}
CUDA_ALIAS (cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2);

/* `count` elements of `width` bytes. */
static CUresult fill (CUdeviceptr pointer, uint32_t value, size_t width, size_t count)
{
    CUcontext context;
    size_t size = count * width;

    CUDA_ENTER_CONTEXT (context);
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (count == 0)
        return CUDA_LEAVE (CUDA_SUCCESS);
    if (!inside (entry, pointer, size) || size / width != count || pointer % width != 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    CUresult result = cuda_wait (context, context->submitted, true);
    if (result == CUDA_SUCCESS && entry->kind == KIND_MANAGED)
        cuda_managed_move (entry, pointer, size, false);
    if (result != CUDA_SUCCESS || size > KEPT || entry->kind == KIND_MANAGED)
        return CUDA_LEAVE (result);
    uint8_t *bytes = opened (entry, pointer, size, true);
    for (size_t i = 0; i < size; i += width)
        memcpy (bytes + i, &value, width);
    opened (entry, pointer, size, false);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

#define FILL(bits, type)                                                                                                           \
    CUresult cuMemsetD##bits##_v2 (CUdeviceptr pointer, type value, size_t count)                                                  \
    {                                                                                                                              \
        return fill (pointer, value, sizeof (type), count);                                                                        \
    }                                                                                                                              \
    CUresult cuMemsetD##bits##Async (CUdeviceptr pointer, type value, size_t count, CUstream stream)                               \
    {                                                                                                                              \
        (void) stream;                                                                                                             \
        return fill (pointer, value, sizeof (type), count);                                                                        \
    }                                                                                                                              \
    CUDA_ALIAS (cuMemsetD##bits##_v2_ptds, cuMemsetD##bits##_v2);                                                                  \
    CUDA_ALIAS (cuMemsetD##bits##Async_ptsz, cuMemsetD##bits##Async)
FILL (8, unsigned char);
FILL (16, unsigned short);
FILL (32, unsigned int);
