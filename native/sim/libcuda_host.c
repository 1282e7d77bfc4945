/* Pinned host memory: allocated by the driver, or the program's. Runs in the program's process, on the calling thread,
 * under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096u

struct pinned {
    struct cuda_entry entry;
    struct cuda_memory memory;
    uint64_t length; /* of the library's mapping; 0: the program's memory */
    unsigned int flags;
};

static CUresult pin (CUcontext context, void *start, size_t size, uint64_t length, unsigned int flags)
{
    struct pinned *pinned = calloc (1, sizeof (*pinned));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (pinned == NULL)
        return result;
    pinned->length = length;
    pinned->flags = flags;
    if (!cuda_add (&pinned->entry, length != 0 ? KIND_HOST : KIND_REGISTERED, context, (uintptr_t) start, size)) {
        free (pinned);
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    result = cuda_memory_describe (context->device, start, cuda_round (size, PAGE), &pinned->memory);
    if (result != CUDA_SUCCESS) {
        cuda_remove (&pinned->entry);
        free (pinned);
    }
    return result;
}

void cuda_pinned_release (struct cuda_entry *entry)
{
    struct pinned *pinned = (struct pinned *) entry;

    cuda_remove (entry);
    cuda_memory_free (entry->context->device, &pinned->memory);
    if (pinned->length != 0)
        cuda_unreserve (entry->start, pinned->length);
    free (pinned);
}

CUresult cuMemHostAlloc (void **pointer, size_t size, unsigned int flags)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    uint64_t length = cuda_round (size, PAGE);
    if (pointer == NULL || size == 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    void *place = length < size ? MAP_FAILED : mmap (NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = pin (context, place, size, length, flags);
    if (result == CUDA_SUCCESS)
        *pointer = place;
    else
        munmap (place, length);
    return CUDA_LEAVE (result);
}

CUresult cuMemAllocHost_v2 (void **pointer, size_t size) { return cuMemHostAlloc (pointer, size, 0); }

static CUresult unpin (const void *pointer, enum cuda_kind kind, CUresult otherwise)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address ((uintptr_t) pointer);
    if (entry == NULL || entry->kind != kind || entry->start != (uintptr_t) pointer)
        return CUDA_LEAVE (otherwise);
    cuda_pinned_release (entry);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemFreeHost (void *pointer) { return unpin (pointer, KIND_HOST, CUDA_ERROR_INVALID_VALUE); }

CUresult cuMemHostRegister_v2 (void *pointer, size_t size, unsigned int flags)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (pointer == NULL || size == 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (pin (context, pointer, size, 0, flags));
}
CUDA_ALIAS (cuMemHostRegister, cuMemHostRegister_v2);

CUresult cuMemHostUnregister (void *pointer) { return unpin (pointer, KIND_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED); }

CUresult cuMemHostGetDevicePointer_v2 (CUdeviceptr *device, void *pointer, unsigned int flags)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address ((uintptr_t) pointer);
    if (device == NULL || flags != 0 || entry == NULL || (entry->kind != KIND_HOST && entry->kind != KIND_REGISTERED))
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *device = (uintptr_t) pointer;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags (unsigned int *flags, void *pointer)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address ((uintptr_t) pointer);
    if (flags == NULL || entry == NULL || entry->kind != KIND_HOST)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *flags = ((struct pinned *) entry)->flags;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
