/* Virtual memory management (cuMemCreate, cuMemMap ...), and export of memory by descriptor. Runs in the program's
 * process, on the calling thread, under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"
#include "versions.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTROL_EXPORT = 0x3d0b, CONTROL_EXPORT_INFO = 0x3d08, CONTROL_IMPORT = 0x3d0c, CLASS_SYSTEM_MEMORY = 0x3e };
#define MAGIC 0x6d69736du

/* Exists as long as a handle or a mapping of it. */
struct physical {
    struct cuda_entry entry;
    struct cuda_device *device;
    struct cuda_memory memory;
    CUmemAllocationProp properties;
    unsigned int handles, mappings;
};

struct mapping {
    struct cuda_entry entry;
    struct physical *physical;
};

struct export_parameters {
    int32_t fd;
    uint32_t device;
    uint16_t maximum;
    uint8_t metadata[64];
    uint16_t pad;
    uint32_t objects[512];
    uint16_t count, index;
};
/* The third word exists from 545 on; before, all that follows is 4 bytes earlier. */
struct export_information {
    int32_t fd;
    uint32_t instance, mig;
    uint16_t maximum;
    uint8_t metadata[64];
    uint16_t pad;
};
struct import_parameters {
    int32_t fd;
    uint32_t parent, objects[128];
    uint8_t types[128];
    uint16_t count, index;
};
_Static_assert (sizeof (struct export_parameters) == 2128 && sizeof (struct import_parameters) == 652 &&
                    sizeof (struct export_information) == 80,
                "the driver's sizes");

/* Free for the exporter: the data that an importer needs. */
struct metadata {
    uint32_t magic, pad;
    uint64_t size;
};

static struct physical *find (CUmemGenericAllocationHandle handle)
{
    return cuda_find ((const void *) (uintptr_t) handle, KIND_PHYSICAL);
}

static void drop_if_unused (struct physical *physical)
{
    if (physical->handles > 0 || physical->mappings > 0)
        return;
    cuda_memory_free (physical->device, &physical->memory);
    free (physical);
}

static bool register_physical (struct physical *physical, CUmemGenericAllocationHandle *handle)
{
    physical->handles = 1;
    if (!cuda_add_handle (&physical->entry, KIND_PHYSICAL, NULL))
        return false;
    *handle = (uintptr_t) physical;
    return true;
}

static CUresult allocate_physical (struct physical *physical, size_t size)
{
    struct rm_memory_parameters parameters = { .owner = cuda.rm.client, .flags = 0xc001, .attributes = 0x3a000000, .size = size };

    if (physical->properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return cuda_memory_allocate (physical->device, size, ATTRIBUTES_VIRTUAL, &physical->memory);
    physical->memory = (struct cuda_memory) { .object = cuda_new_handle (), .size = size };
    uint32_t status = rm_allocate_object (&cuda.rm, physical->device->device, physical->memory.object, CLASS_SYSTEM_MEMORY,
                                          &parameters);
    if (status != RM_STATUS_OK)
        cuda_give_handle (physical->memory.object);
    return cuda_status (status);
}

CUresult cuMemCreate (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                      unsigned long long flags)
{
    CUDA_ENTER ();
    if (handle == NULL || properties == NULL || flags != 0 || size == 0 || size % CUDA_BLOCK != 0 ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    bool host = properties->location.type == CU_MEM_LOCATION_TYPE_HOST;
    struct cuda_device *device = cuda_device (host ? 0 : properties->location.id);
    if (device == NULL || (!host && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE))
        return CUDA_LEAVE (device == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
    if (!cuda.manager)
        return CUDA_LEAVE (CUDA_ERROR_NOT_SUPPORTED);
    struct physical *physical = calloc (1, sizeof (*physical));
    if (physical == NULL)
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    physical->device = device;
    physical->properties = *properties;
    CUresult result = allocate_physical (physical, size);
    if (result != CUDA_SUCCESS) {
        free (physical);
    } else if (!register_physical (physical, handle)) {
        physical->handles = 0;
        drop_if_unused (physical);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_LEAVE (result);
}

CUresult cuMemRelease (CUmemGenericAllocationHandle handle)
{
    CUDA_ENTER ();
    struct physical *physical = find (handle);
    if (physical == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (--physical->handles == 0)
        cuda_remove (&physical->entry);
    drop_if_unused (physical);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle (CUmemGenericAllocationHandle *handle, void *address)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address ((uintptr_t) address);
    if (handle == NULL || entry == NULL || entry->kind != KIND_MAPPED)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct physical *physical = ((struct mapping *) entry)->physical;
    if (physical->handles++ == 0 && !cuda_add_handle (&physical->entry, KIND_PHYSICAL, NULL)) {
        physical->handles = 0;
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    }
    *handle = (uintptr_t) physical;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle (CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    CUDA_ENTER ();
    struct physical *physical = find (handle);
    if (properties == NULL || physical == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *properties = physical->properties;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity (size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    CUDA_ENTER ();
    if (granularity == NULL || properties == NULL || option < 0 || option > 1)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *granularity = CUDA_BLOCK;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemAddressReserve (CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    (void) hint;
    CUDA_ENTER ();
    if (address == NULL || flags != 0 || size == 0 || size % CUDA_BLOCK != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct cuda_entry *entry = calloc (1, sizeof (*entry));
    uint64_t place = entry != NULL ? cuda_reserve (size, alignment > CUDA_BLOCK ? alignment : CUDA_BLOCK) : 0;
    if (place == 0 || !cuda_add (entry, KIND_RESERVED, NULL, place, size)) {
        if (place != 0)
            cuda_unreserve (place, size);
        free (entry);
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    }
    *address = place;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemAddressFree (CUdeviceptr address, size_t size)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_reserved (address, 1);
    if (entry == NULL || entry->start != address || entry->size != size || cuda_find_overlap (address, size) != NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    cuda_remove (entry);
    cuda_unreserve (address, size);
    free (entry);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemMap (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUDA_ENTER ();
    struct physical *physical = find (handle);
    if (physical == NULL || flags != 0 || offset != 0 || size == 0 || size > physical->memory.size || address % CUDA_BLOCK != 0 ||
        size % CUDA_BLOCK != 0 || cuda_find_reserved (address, size) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct mapping *mapping = calloc (1, sizeof (*mapping));
    if (mapping == NULL)
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    if (!cuda_add (&mapping->entry, KIND_MAPPED, NULL, address, size)) {
        free (mapping);
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE); /* something is mapped there */
    }
    CUresult result = cuda_external_map (physical->device, address, size, physical->memory.object);
    if (result != CUDA_SUCCESS) {
        cuda_remove (&mapping->entry);
        free (mapping);
        return CUDA_LEAVE (result);
    }
    mapping->physical = physical;
    physical->mappings++;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

/* Every mapping that begins in the range; the range's ends must be ends of mappings. */
CUresult cuMemUnmap (CUdeviceptr address, size_t size)
{
    struct cuda_entry *entry;

    CUDA_ENTER ();
    entry = cuda_find_address (address);
    if (entry == NULL || entry->kind != KIND_MAPPED || entry->start != address || size == 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    while ((entry = cuda_find_overlap (address, size)) != NULL) {
        if (entry->kind != KIND_MAPPED || entry->start < address || entry->start + entry->size > address + size)
            return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
        struct mapping *mapping = (struct mapping *) entry;
        cuda_external_unmap (entry->start, entry->size);
        cuda_remove (entry);
        mapping->physical->mappings--;
        drop_if_unused (mapping->physical);
        free (mapping);
    }
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuMemSetAccess (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address (address);
    bool good = access != NULL && count > 0 && size > 0 && entry != NULL && entry->kind == KIND_MAPPED;
    return CUDA_LEAVE (good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult export_to (struct physical *physical, int fd)
{
    struct export_parameters call = { .fd = fd, .device = physical->device->device, .maximum = 1, .count = 1 };
    const struct metadata metadata = { .magic = MAGIC, .size = physical->memory.size };
    uint32_t gpus[32] = { 0 };

    memcpy (call.metadata, &metadata, sizeof (metadata));
    call.objects[0] = physical->memory.object;
    rm_call (fd, 0xd4, gpus, sizeof (gpus));
    return cuda_status (rm_control (&cuda.rm, cuda.rm.client, CONTROL_EXPORT, &call, sizeof (call)));
}

CUresult cuMemExportToShareableHandle (void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    CUDA_ENTER ();
    struct physical *physical = find (handle);
    if (shareable == NULL || physical == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (physical->properties.requestedHandleTypes & type) == 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    int fd = rm_open_node ("/dev/nvidiactl");
    if (fd < 0)
        return CUDA_LEAVE (CUDA_ERROR_OPERATING_SYSTEM);
    CUresult result = export_to (physical, fd);
    if (result == CUDA_SUCCESS)
        *(int *) shareable = fd;
    else
        close (fd);
    return CUDA_LEAVE (result);
}

static CUresult import_from (struct physical *physical, int fd)
{
    struct export_information information = { .fd = fd };
    struct import_parameters call = { .fd = fd, .parent = physical->device->device, .count = 1 };
    struct metadata metadata;
    uint32_t size = version_size (VERSION_EXPORT_INFO, cuda.rm.version);
    uint32_t status = rm_control (&cuda.rm, cuda.rm.client, CONTROL_EXPORT_INFO, &information, size);

    memcpy (&metadata, (const uint8_t *) &information + size - 66, sizeof (metadata));
    if (status != RM_STATUS_OK || metadata.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    physical->memory = (struct cuda_memory) { .object = cuda_new_handle (), .size = metadata.size };
    call.objects[0] = physical->memory.object;
    status = rm_control (&cuda.rm, cuda.rm.client, CONTROL_IMPORT, &call, sizeof (call));
    if (status != RM_STATUS_OK)
        cuda_give_handle (physical->memory.object);
    return cuda_status (status);
}

/* Assumes the current context's device: the memory may be on another, which the import does not report. */
CUresult cuMemImportFromShareableHandle (CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct physical *physical = calloc (1, sizeof (*physical));
    if (physical == NULL)
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    physical->device = context->device;
    physical->properties = (CUmemAllocationProp) { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                   .requestedHandleTypes = type,
                                                   .location = { CU_MEM_LOCATION_TYPE_DEVICE, context->device->ordinal } };
    CUresult result = import_from (physical, (int) (intptr_t) shareable);
    if (result == CUDA_SUCCESS && !register_physical (physical, handle)) {
        physical->handles = 0;
        drop_if_unused (physical);
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    }
    if (result != CUDA_SUCCESS)
        free (physical);
    return CUDA_LEAVE (result);
}
