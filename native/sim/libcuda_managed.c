/*
 * Managed memory: a shared mapping of the UVM node over reserved address space, as long as the allocation. It is
 * resident on a GPU (and counted there) after a memset or a prefetch; on a full GPU the rest stays on the host, as the
 * real driver evicts pages. The program's own accesses migrate nothing here. Runs in the program's process, on the
 * calling thread, under the library's lock.
 */
#include "device.h"
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define PAGE 4096u

struct managed {
    struct cuda_entry entry;
    uint64_t reserved, length;
    uint64_t resident; /* bytes on the device */
};

static void *place_of (const struct managed *managed) { return (void *) (uintptr_t) managed->entry.start; }

static CUresult map (CUcontext context, CUdeviceptr *pointer, size_t size, struct managed *managed)
{
    managed->length = size < CUDA_BLOCK ? CUDA_BLOCK : cuda_round (size, PAGE);
    managed->reserved = cuda_round (size, CUDA_BLOCK);
    uint64_t address = managed->length < size ? 0 : cuda_reserve (managed->reserved, CUDA_BLOCK);
    if (address == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* The offset in the node is the address: UVM's rule. */
    void *place = mmap ((void *) (uintptr_t) address, managed->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, cuda.uvm,
                        (off_t) address);
    if (place != MAP_FAILED && cuda_add (&managed->entry, KIND_MANAGED, context, address, size)) {
        cuda_managed_mapped (address, managed->length);
        *pointer = address;
        return CUDA_SUCCESS;
    }
    cuda_unreserve (address, managed->reserved);
    /* As the real library, whatever mmap's errno (580.159.04). */
    return place == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocManaged (CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (pointer == NULL || size == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (cuda.uvm < 0)
        return CUDA_LEAVE (CUDA_ERROR_NOT_SUPPORTED);
    struct managed *managed = calloc (1, sizeof (*managed));
    CUresult result = managed != NULL ? map (context, pointer, size, managed) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS)
        free (managed);
    return CUDA_LEAVE (result);
}

/* Migrates until `bytes` are resident on the device. */
static void set_resident (struct managed *managed, uint64_t bytes)
{
    struct sim_resident call = { .bytes = (int64_t) (bytes - managed->resident) };

    if (call.bytes == 0)
        return;
    memcpy (call.uuid, managed->entry.context->device->uuid, sizeof (call.uuid));
    if (ioctl (cuda.uvm, SIM_RESIDENT, &call) == 0 && call.status == RM_STATUS_OK)
        managed->resident = bytes;
}

void cuda_managed_release (struct cuda_entry *entry)
{
    struct managed *managed = (struct managed *) entry;

    set_resident (managed, 0);
    cuda_remove (entry);
    mmap (place_of (managed), managed->length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    cuda_unreserve (entry->start, managed->reserved);
    free (managed);
}

/* Migrates [address, address + size) to the device (`host`: to the host). */
void cuda_managed_move (struct cuda_entry *entry, uint64_t address, uint64_t size, bool host)
{
    struct managed *managed = (struct managed *) entry;
    uint64_t whole = cuda_round (entry->size, CUDA_BLOCK);
    uint64_t end = cuda_round (address + size - entry->start, CUDA_BLOCK);

    /* Stored as one number: the resident bytes count as the start of the allocation. */
    if (host)
        set_resident (managed, address == entry->start && end >= managed->resident ? 0 : managed->resident);
    else if (end > managed->resident)
        set_resident (managed, end < whole ? end : whole);
}

static CUresult prefetch (CUdeviceptr pointer, size_t size, bool host, int device)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (entry == NULL || entry->kind != KIND_MANAGED || size == 0 || size > entry->start + entry->size - pointer)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (!host && cuda_device (device) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    cuda_managed_move (entry, pointer, size, host);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemPrefetchAsync (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream)
{
    (void) stream;
    return prefetch (pointer, size, device == -1, device);
}
CUDA_ALIAS (cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync);

CUresult cuMemPrefetchAsync_v2 (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream)
{
    (void) stream;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return prefetch (pointer, size, location.type != CU_MEM_LOCATION_TYPE_DEVICE, location.id);
}
CUDA_ALIAS (cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_v2);
