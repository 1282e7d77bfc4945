/*
 * GPU addresses of memory: libcuda maps each piece through UVM (an external range, and the memory mapped into it), not
 * through the resource manager's mappings. UVM holds a duplicate of the memory meanwhile, so a range must be freed
 * before the memory in it, or the memory stays allocated. Runs in the program's process, on the calling thread, under
 * the library's lock.
 */
#include "libcuda.h"
#include "versions.h"

#include <string.h>
#include <sys/ioctl.h>

enum {
    UVM_REGISTER_VASPACE = 25,
    UVM_MAP_EXTERNAL = 33,
    UVM_FREE = 34,
    UVM_READ_DUPLICATION_OFF = 45,
    UVM_VALIDATE = 72,
    UVM_CREATE_EXTERNAL = 73
};
/* ctrl503c.h */
enum { REGISTER_MEMORY = 0x503c0104, UNREGISTER_MEMORY = 0x503c0105 };
#define ATTRIBUTES_SIZE 36u /* of one GPU in MAP_EXTERNAL */

/* Calls whose struct is a range and a status. From 590 on FREE has no length. */
static uint32_t range_call (unsigned int number, uint64_t address, uint64_t length)
{
    uint64_t call[3] = { address, length, 0 };
    size_t status_at = number == UVM_FREE && cuda.rm.version >= 590 ? 1 : 2;

    call[status_at] = 0;
    return ioctl (cuda.uvm, number, call) < 0 ? RM_STATUS_SYSTEM : (uint32_t) call[status_at];
}

static uint32_t map_call (const struct cuda_device *device, uint64_t address, uint64_t length, uint32_t object)
{
    uint32_t gpus = version_size (VERSION_UVM_GPUS, cuda.rm.version);
    size_t count_at = 24 + ATTRIBUTES_SIZE * (size_t) gpus;
    uint8_t call[24 + ATTRIBUTES_SIZE * 256 + 24] = { 0 };
    uint64_t range[3] = { address, length, 0 }, count = 1;
    uint32_t source[4] = { (uint32_t) cuda.rm.control, cuda.rm.client, object, 0 };

    memcpy (call, range, sizeof (range));
    memcpy (call + 24, device->uuid, sizeof (device->uuid));
    memcpy (call + count_at, &count, sizeof (count));
    memcpy (call + count_at + 8, source, sizeof (source));
    if (ioctl (cuda.uvm, UVM_MAP_EXTERNAL, call) < 0)
        return RM_STATUS_SYSTEM;
    memcpy (source, call + count_at + 8, sizeof (source));
    return source[3];
}

void cuda_register_space (const struct cuda_device *device)
{
    struct {
        uint8_t uuid[16];
        int32_t control;
        uint32_t client, space, status;
    } call = { .control = cuda.rm.control, .client = cuda.rm.client, .space = device->vaspace };

    memcpy (call.uuid, device->uuid, sizeof (call.uuid));
    ioctl (cuda.uvm, UVM_REGISTER_VASPACE, &call);
}

CUresult cuda_external_map (const struct cuda_device *device, uint64_t address, uint64_t length, uint32_t object)
{
    if (cuda.uvm < 0)
        return CUDA_SUCCESS;
    uint32_t status = range_call (UVM_CREATE_EXTERNAL, address, length);
    if (status == RM_STATUS_OK) {
        status = map_call (device, address, length, object);
        if (status != RM_STATUS_OK)
            range_call (UVM_FREE, address, length);
    }
    return cuda_status (status);
}

void cuda_external_unmap (uint64_t address, uint64_t length)
{
    if (cuda.uvm >= 0)
        range_call (UVM_FREE, address, length);
}

/* NV503C_CTRL_REGISTER_VIDMEM_PARAMS. Observed: cuMemAlloc issues it when its memory is mapped, cuMemFree reverts it
 * before anything else. Assumed: the same for pools and for memory of other processes. */
CUresult cuda_register_memory (const struct cuda_device *device, const struct cuda_memory *memory, uint64_t address)
{
    struct {
        uint32_t memory, pad;
        uint64_t address, size, offset;
    } call = { .memory = memory->object, .address = address, .size = memory->size };

    return cuda_status (rm_control (&cuda.rm, device->third_party, REGISTER_MEMORY, &call, sizeof (call)));
}

CUresult cuda_unregister_memory (const struct cuda_device *device, const struct cuda_memory *memory)
{
    uint32_t object = memory->object;

    return cuda_status (rm_control (&cuda.rm, device->third_party, UNREGISTER_MEMORY, &object, sizeof (object)));
}

CUresult cuda_memory_place (const struct cuda_device *device, struct cuda_memory *memory, uint64_t address, uint64_t length)
{
    CUresult result = cuda_external_map (device, address, length, memory->object);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuda_register_memory (device, memory, address);
    if (result != CUDA_SUCCESS)
        cuda_external_unmap (address, length);
    if (result == CUDA_SUCCESS) {
        memory->address = address;
        memory->length = length;
    }
    return result;
}

void cuda_managed_mapped (uint64_t address, uint64_t length)
{
    range_call (UVM_VALIDATE, address, length);
    range_call (UVM_READ_DUPLICATION_OFF, address, length);
}
