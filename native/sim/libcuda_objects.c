/* Memory objects of the resource manager, their handles, and address space for them. Runs in the program's process, on
 * the calling thread, under the library's lock. */
#include "libcuda.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { CLASS_VIDEO_MEMORY = 0x40, CLASS_DESCRIBED_MEMORY = 0x71, ESCAPE_ALLOCATE_MEMORY = 0x27 };
#define FLAGS_VIDEO_MEMORY 0x1c101u
#define FLAGS_DESCRIBED 0x40001010u
#define PAGE ((uint64_t) 4096)

/* NVOS02 followed by the descriptor. */
struct described_call {
    uint32_t root, parent, object, class_number, flags, pad;
    uint64_t memory, limit;
    uint32_t status, pad2;
    int32_t fd;
    uint32_t pad3;
};
_Static_assert (sizeof (struct described_call) == 56, "the driver's size");

CUresult cuda_status (uint32_t status)
{
    switch (status) {
    case RM_STATUS_OK:
        return CUDA_SUCCESS;
    case RM_STATUS_NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case RM_STATUS_NOT_SUPPORTED:
        return CUDA_ERROR_NOT_SUPPORTED;
    case 0x1b: /* insufficient permissions */
        return CUDA_ERROR_NOT_PERMITTED;
    case RM_STATUS_SYSTEM:
        return CUDA_ERROR_OPERATING_SYSTEM;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

/* Handles are reused once their object is freed, as in the real library. */
uint32_t cuda_new_handle (void)
{
    if (cuda.spare_count > 0)
        return cuda.spare_handles[--cuda.spare_count];
    return cuda.next_handle++;
}

void cuda_give_handle (uint32_t handle)
{
    if (cuda.spare_count == cuda.spare_room) {
        size_t room = cuda.spare_room == 0 ? 64 : cuda.spare_room * 2;
        uint32_t *larger = realloc (cuda.spare_handles, room * sizeof (*larger));
        if (larger == NULL)
            return; /* no memory: the handle is not reused */
        cuda.spare_handles = larger;
        cuda.spare_room = room;
    }
    cuda.spare_handles[cuda.spare_count++] = handle;
}

CUresult cuda_memory_allocate (struct cuda_device *device, uint64_t size, uint32_t attributes, struct cuda_memory *memory)
{
    struct rm_memory_parameters parameters = {
        .owner = cuda.rm.client, .flags = FLAGS_VIDEO_MEMORY, .attributes = attributes, .size = size, .alignment = CUDA_BLOCK
    };

    if (!cuda.manager)
        return CUDA_ERROR_NOT_SUPPORTED;
    *memory = (struct cuda_memory) { .object = cuda_new_handle () };
    uint32_t status = rm_allocate_object (&cuda.rm, device->device, memory->object, CLASS_VIDEO_MEMORY, &parameters);
    if (status != RM_STATUS_OK) {
        cuda_give_handle (memory->object);
        memory->object = 0;
        return cuda_status (status);
    }
    memory->size = parameters.size;
    return CUDA_SUCCESS;
}

CUresult cuda_memory_describe (struct cuda_device *device, void *address, uint64_t size, struct cuda_memory *memory)
{
    struct described_call call = { .root = cuda.rm.client,
                                   .parent = device->device,
                                   .class_number = CLASS_DESCRIBED_MEMORY,
                                   .flags = FLAGS_DESCRIBED,
                                   .memory = (uintptr_t) address,
                                   .limit = size - 1,
                                   .fd = -1 };

    if (!cuda.manager)
        return CUDA_ERROR_NOT_SUPPORTED;
    *memory = (struct cuda_memory) { .object = cuda_new_handle (), .size = size };
    call.object = memory->object;
    uint32_t status = rm_call (device->node, ESCAPE_ALLOCATE_MEMORY, &call, sizeof (call));
    if (status == RM_STATUS_OK)
        status = call.status;
    if (status != RM_STATUS_OK) {
        cuda_give_handle (memory->object);
        memory->object = 0;
    }
    return cuda_status (status);
}

CUresult cuda_memory_free (struct cuda_device *device, struct cuda_memory *memory)
{
    CUresult result = CUDA_SUCCESS;

    if (memory->object == 0)
        return result;
    if (memory->length != 0) {
        result = cuda_unregister_memory (device, memory);
        cuda_external_unmap (memory->address, memory->length);
    }
    rm_free_object (&cuda.rm, device->device, memory->object);
    cuda_give_handle (memory->object);
    memory->object = 0;
    memory->length = 0;
    return result;
}

uint64_t cuda_round (uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }

uint64_t cuda_reserve (uint64_t size, uint64_t alignment)
{
    uint64_t room = size + alignment - PAGE;
    void *place = room < size ? MAP_FAILED : mmap (NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (place == MAP_FAILED)
        return 0;
    uint64_t start = (uintptr_t) place, address = cuda_round (start, alignment);
    if (address > start)
        munmap (place, address - start);
    if (address + size < start + room)
        munmap ((void *) (uintptr_t) (address + size), start + room - address - size); /* NOLINT */
    return address;
}

void cuda_unreserve (uint64_t address, uint64_t size) { munmap ((void *) (uintptr_t) address, size); }
