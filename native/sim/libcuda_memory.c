/* Device memory: an object of the resource manager and inaccessible address space; free memory. Runs in the program's
 * process, on the calling thread, under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdlib.h>

enum { FB_HEAP_SIZE = 0x9, FB_TAX = 0x10, FB_HEAP_FREE = 0x16 };

struct allocation {
    struct cuda_entry entry;
    struct cuda_memory memory;
    uint64_t reserved;
};

static CUresult allocate_large (CUcontext context, CUdeviceptr *pointer, size_t size)
{
    struct allocation *allocation = calloc (1, sizeof (*allocation));
    uint64_t reserved = cuda_round (size, CUDA_BLOCK), address = 0;
    CUresult result = allocation != NULL && reserved >= size ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    if (result == CUDA_SUCCESS)
        result = cuda_memory_allocate (context->device, reserved, ATTRIBUTES_BLOCK, &allocation->memory);
    if (result == CUDA_SUCCESS) {
        address = cuda_reserve (reserved, CUDA_BLOCK);
        result = address != 0 ? cuda_memory_place (context->device, &allocation->memory, address, reserved)
                              : CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS && !cuda_add (&allocation->entry, KIND_MEMORY, context, address, size))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result != CUDA_SUCCESS) {
            cuda_memory_free (context->device, &allocation->memory);
            if (address != 0)
                cuda_unreserve (address, reserved);
        }
    }
    if (result != CUDA_SUCCESS) {
        free (allocation);
        return result;
    }
    allocation->reserved = reserved;
    *pointer = address;
    return CUDA_SUCCESS;
}

CUresult cuda_allocate (CUcontext context, CUdeviceptr *pointer, size_t size)
{
    return size < MEBIBYTE ? cuda_small_allocate (context, pointer, size) : allocate_large (context, pointer, size);
}

CUresult cuda_memory_release (struct cuda_entry *entry)
{
    struct allocation *allocation = (struct allocation *) entry;

    cuda_remove (entry);
    CUresult result = cuda_memory_free (entry->context->device, &allocation->memory);
    cuda_unreserve (entry->start, allocation->reserved);
    free (allocation);
    return result;
}

CUresult cuda_memory_evict (struct cuda_entry *entry)
{
    struct allocation *allocation = (struct allocation *) entry;

    return cuda_memory_free (entry->context->device, &allocation->memory);
}

CUresult cuda_memory_return (struct cuda_entry *entry)
{
    struct allocation *allocation = (struct allocation *) entry;
    struct cuda_device *device = entry->context->device;
    CUresult result = CUDA_SUCCESS;

    if (allocation->memory.object != 0)
        return result;
    result = cuda_memory_allocate (device, allocation->reserved, ATTRIBUTES_BLOCK, &allocation->memory);
    if (result == CUDA_SUCCESS)
        result = cuda_memory_place (device, &allocation->memory, entry->start, allocation->reserved);
    return result;
}

bool cuda_memory_behind (struct cuda_entry *entry, struct cuda_memory *memory, uint64_t *offset)
{
    if (entry->kind == KIND_SMALL)
        return cuda_small_behind (entry, memory, offset);
    *offset = 0;
    if (entry->kind == KIND_MEMORY)
        *memory = ((struct allocation *) entry)->memory;
    return entry->kind == KIND_MEMORY;
}

CUresult cuMemAlloc_v2 (CUdeviceptr *pointer, size_t size)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (pointer == NULL || size == 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (cuda_allocate (context, pointer, size));
}

CUresult cuMemAllocPitch_v2 (CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CUcontext context;
    size_t bytes;

    CUDA_ENTER_CONTEXT (context);
    if (pointer == NULL || pitch == NULL || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    size_t row = cuda_round (width, 512);
    if (row < width || __builtin_mul_overflow (row, height, &bytes))
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = cuda_allocate (context, pointer, bytes);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return CUDA_LEAVE (result);
}

/* Frees by the allocation's address, in whatever context. */
CUresult cuMemFree_v2 (CUdeviceptr pointer)
{
    CUDA_ENTER ();
    if (pointer == 0)
        return CUDA_LEAVE (CUDA_SUCCESS);
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (entry == NULL || entry->start != pointer ||
        (entry->kind != KIND_MEMORY && entry->kind != KIND_SMALL && entry->kind != KIND_MANAGED && entry->kind != KIND_POOLED))
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    /* The real library waits for all work before it frees memory. */
    CUcontext context = entry->context;
    CUresult result = context != NULL ? cuda_wait (context, context->submitted, true) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS || cuda_find_address (pointer) != entry)
        return CUDA_LEAVE (result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (cuda_release (entry));
}

/* NULL for either result is no error: observed with driver 580. */
CUresult cuMemGetInfo_v2 (size_t *available, size_t *total)
{
    struct rm_fb_info info = { .count = 3,
                               .entries = { { .index = FB_HEAP_FREE }, { .index = FB_HEAP_SIZE }, { .index = FB_TAX } } };
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    uint32_t status = rm_ask_memory (&cuda.rm, context->device->subdevice, &info);
    if (status != RM_STATUS_OK)
        return CUDA_LEAVE (cuda_status (status));
    if (available != NULL)
        *available = (size_t) info.entries[0].kibibytes << 10;
    if (total != NULL)
        *total = (size_t) info.entries[1].kibibytes << 10;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2 (CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (entry == NULL || entry->kind == KIND_REGISTERED || entry->kind == KIND_RESERVED)
        return CUDA_LEAVE (CUDA_ERROR_NOT_FOUND);
    if (base != NULL)
        *base = entry->start;
    if (size != NULL)
        *size = entry->size;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

enum {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_MEMORY_TYPE = 2,
    ATTRIBUTE_DEVICE_POINTER = 3,
    ATTRIBUTE_HOST_POINTER = 4,
    ATTRIBUTE_IS_MANAGED = 8,
    ATTRIBUTE_DEVICE_ORDINAL = 9
};
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2 };

CUresult cuPointerGetAttribute (void *data, int attribute, CUdeviceptr pointer)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (data == NULL || entry == NULL || entry->context == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    bool host = entry->kind == KIND_HOST || entry->kind == KIND_REGISTERED;
    switch (attribute) {
    case ATTRIBUTE_CONTEXT:
        *(CUcontext *) data = entry->context;
        break;
    case ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *) data = host ? MEMORY_HOST : MEMORY_DEVICE;
        break;
    case ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *) data = pointer;
        break;
    case ATTRIBUTE_HOST_POINTER:
        if (!host && entry->kind != KIND_MANAGED)
            return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
        *(CUdeviceptr *) data = pointer;
        break;
    case ATTRIBUTE_IS_MANAGED:
        *(unsigned int *) data = entry->kind == KIND_MANAGED;
        break;
    case ATTRIBUTE_DEVICE_ORDINAL:
        *(int *) data = entry->context->device->ordinal;
        break;
    default:
        return CUDA_LEAVE (CUDA_ERROR_NOT_SUPPORTED);
    }
    return CUDA_LEAVE (CUDA_SUCCESS);
}
