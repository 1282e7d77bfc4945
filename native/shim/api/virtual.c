/*
 * Wrappers of virtual memory management (cuMemCreate). Physical memory exists until its last handle is released and its
 * last mapping removed. It is charged to the device that its properties name, whichever is current, and never
 * converted. Runs as array.c.
 */
#include "share.h"

#include "rm/rm.h"

/* Removes one reference of a handle or mapping. */
static void drop (struct api *api, uint64_t physical)
{
    struct ledger_entry *memory = ledger_find (&api->ledger, LEDGER_PHYSICAL, physical);
    if (memory == NULL || --memory->references > 0)
        return;
    if (api->attached)
        region_refund (&api->region, memory->gpu, memory->bytes);
    ledger_remove (&api->ledger, memory);
}

CUresult cuMemCreate (CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                      unsigned long long flags)
{
    struct share share = { .gpu = RM_NO_GPU };
    uint64_t signals;
    struct api *api;
    if (properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        share = share_of_device (properties->location.id);
    if (handle == NULL || bytes == 0)
        return NEXT (cuMemCreate) (handle, bytes, properties, flags);
    if (!share_take (&share, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = NEXT (cuMemCreate) (handle, bytes, properties, flags);
    if (result != CUDA_SUCCESS) {
        share_give (&share, bytes);
    } else if (share.counted && (api = share_lock (&signals)) != NULL) {
        uint64_t physical = ++api->ledger.last;
        ledger_add (
            &api->ledger,
            &(struct ledger_entry) { .kind = LEDGER_PHYSICAL, .key = physical, .bytes = bytes, .gpu = share.gpu, .references = 1 });
        ledger_add (&api->ledger, &(struct ledger_entry) {
                                      .kind = LEDGER_HANDLE, .key = *handle, .link = physical, .gpu = RM_NO_GPU, .references = 1 });
        share_unlock (api, signals);
    }
    return result;
}

CUresult cuMemRelease (CUmemGenericAllocationHandle handle)
{
    struct ledger_entry entry;
    uint64_t signals;
    struct api *api;
    bool known = share_is_active () && share_forget (LEDGER_HANDLE, handle, &entry);
    CUresult result = NEXT (cuMemRelease) (handle);
    if (!known || (api = share_lock (&signals)) == NULL)
        return result;
    if (result != CUDA_SUCCESS || --entry.references > 0)
        ledger_add (&api->ledger, &entry);
    else
        drop (api, entry.link);
    share_unlock (api, signals);
    return result;
}

CUresult cuMemMap (CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    uint64_t signals;
    CUresult result = NEXT (cuMemMap) (pointer, bytes, offset, handle, flags);
    struct api *api = result == CUDA_SUCCESS && share_is_active () ? share_lock (&signals) : NULL;
    if (api == NULL)
        return result;
    struct ledger_entry *known = ledger_find (&api->ledger, LEDGER_HANDLE, handle), *memory;
    if (known != NULL && (memory = ledger_find (&api->ledger, LEDGER_PHYSICAL, known->link)) != NULL) {
        struct ledger_entry mapping = {
            .kind = LEDGER_MAPPING, .key = pointer, .bytes = bytes, .link = known->link, .gpu = RM_NO_GPU
        };
        memory->references++;
        ledger_add (&api->ledger, &mapping);
    }
    share_unlock (api, signals);
    return result;
}

CUresult cuMemUnmap (CUdeviceptr pointer, size_t bytes)
{
    uint64_t signals;
    struct ledger_entry *mapping;
    bool active = share_is_active ();
    CUresult result = NEXT (cuMemUnmap) (pointer, bytes);
    struct api *api = result == CUDA_SUCCESS && active ? share_lock (&signals) : NULL;
    if (api == NULL)
        return result;
    /* One call may remove several adjacent mappings. */
    while ((mapping = ledger_within (&api->ledger, LEDGER_MAPPING, pointer, bytes)) != NULL) {
        uint64_t physical = mapping->link;
        ledger_remove (&api->ledger, mapping);
        drop (api, physical);
    }
    share_unlock (api, signals);
    return result;
}

CUresult cuMemRetainAllocationHandle (CUmemGenericAllocationHandle *handle, void *address)
{
    uint64_t signals;
    CUresult result = NEXT (cuMemRetainAllocationHandle) (handle, address);
    struct api *api = result == CUDA_SUCCESS && handle != NULL && share_is_active () ? share_lock (&signals) : NULL;
    if (api == NULL)
        return result;
    struct ledger_entry *known = ledger_find (&api->ledger, LEDGER_HANDLE, *handle), *memory;
    struct ledger_entry *mapping = ledger_find (&api->ledger, LEDGER_MAPPING, (uintptr_t) address);
    if (known != NULL) {
        known->references++;
    } else if (mapping != NULL && (memory = ledger_find (&api->ledger, LEDGER_PHYSICAL, mapping->link)) != NULL) {
        struct ledger_entry again = {
            .kind = LEDGER_HANDLE, .key = *handle, .link = mapping->link, .gpu = RM_NO_GPU, .references = 1
        };
        memory->references++;
        ledger_add (&api->ledger, &again);
    }
    share_unlock (api, signals);
    return result;
}
