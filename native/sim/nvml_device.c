/* Queries of one GPU. Some are valid for a MIG device too, as in the real library. Runs in the program's process, on
 * the calling thread. */
#include "nvml_live.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static nvmlReturn_t count_devices (unsigned int *count)
{
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = nvml_state.gpu_count;
    return NVML_SUCCESS;
}

static nvmlReturn_t by_index (unsigned int index, nvmlDevice_t *device)
{
    if (device == NULL || index >= nvml_state.gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &nvml_state.gpus[index];
    return NVML_SUCCESS;
}

/* "00000000:00:06.0"; with `width` 4 "0000:00:06.0". */
static void bus_id (char *target, size_t size, const struct machine_gpu *gpu, int width)
{
    snprintf (target, size, "%0*X:%02X:%02X.0", width, gpu->domain, gpu->bus, gpu->device);
}

static nvmlReturn_t by_bus_id (const char *text, nvmlDevice_t *device)
{
    char name[48];

    if (text == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < nvml_state.gpu_count; i++) {
        for (int width = 4; width <= 8; width += 4) {
            bus_id (name, sizeof (name), nvml_state.gpus[i].gpu, width);
            if (strcasecmp (name, text) == 0) {
                *device = &nvml_state.gpus[i];
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetCount (unsigned int *count)
{
    ENTER ();
    return count_devices (count);
}

nvmlReturn_t nvmlDeviceGetCount_v2 (unsigned int *count)
{
    ENTER ();
    return count_devices (count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex (unsigned int index, nvmlDevice_t *device)
{
    ENTER ();
    return by_index (index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2 (unsigned int index, nvmlDevice_t *device)
{
    ENTER ();
    return by_index (index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID (const char *uuid, nvmlDevice_t *device)
{
    ENTER ();
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < nvml_state.gpu_count; i++) {
        if (strcmp (uuid, nvml_state.gpus[i].gpu->uuid) == 0) {
            *device = &nvml_state.gpus[i];
            return NVML_SUCCESS;
        }
    }
    for (unsigned int i = 0; i < nvml_state.mig_count; i++) {
        if (strcmp (uuid, nvml_state.migs[i].mig->uuid) == 0) {
            *device = &nvml_state.migs[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId (const char *bus_id, nvmlDevice_t *device)
{
    ENTER ();
    return by_bus_id (bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2 (const char *bus_id, nvmlDevice_t *device)
{
    ENTER ();
    return by_bus_id (bus_id, device);
}

/* The three structures are equal up to here. */
static void fill_pci (nvmlPciInfo_v1_t *pci, const struct machine_gpu *gpu)
{
    char name[48];

    memset (pci, 0, sizeof (*pci));
    bus_id (name, sizeof (name), gpu, 4);
    memcpy (pci->busId, name, strnlen (name, sizeof (pci->busId) - 1));
    pci->domain = gpu->domain;
    pci->bus = gpu->bus;
    pci->device = gpu->device;
    pci->pciDeviceId = gpu->pci_id;
}

nvmlReturn_t nvmlDeviceGetPciInfo (nvmlDevice_t device, nvmlPciInfo_v1_t *pci)
{
    ENTER_DEVICE (device, pci != NULL);
    fill_pci (pci, device->gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2 (nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_v1_t common;

    ENTER_DEVICE (device, pci != NULL);
    fill_pci (&common, device->gpu);
    /* The real library does not change the reserved words. */
    memcpy (pci, &common, sizeof (common));
    pci->pciSubSystemId = device->gpu->pci_subsystem;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3 (nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_v1_t common;

    ENTER_DEVICE (device, pci != NULL);
    fill_pci (&common, device->gpu);
    memset (pci, 0, sizeof (*pci));
    memcpy (pci, &common, sizeof (common));
    pci->pciSubSystemId = device->gpu->pci_subsystem;
    bus_id (pci->busId, sizeof (pci->busId), device->gpu, 8);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID (nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER_DEVICE (device, uuid != NULL);
    return nvml_copy (uuid, length, device->mig != NULL ? device->mig->uuid : device->gpu->uuid);
}

nvmlReturn_t nvmlDeviceGetName (nvmlDevice_t device, char *name, unsigned int length)
{
    char text[sizeof (device->gpu->model) + sizeof (device->mig->profile) + 8];

    ENTER_DEVICE (device, name != NULL);
    if (device->mig == NULL)
        return nvml_copy (name, length, device->gpu->model);
    snprintf (text, sizeof (text), "%s MIG %s", device->gpu->model, device->mig->profile);
    return nvml_copy (name, length, text);
}

nvmlReturn_t nvmlDeviceGetBrand (nvmlDevice_t device, nvmlBrandType_t *brand)
{
    ENTER_DEVICE (device, brand != NULL);
    *brand = device->gpu->brand;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex (nvmlDevice_t device, unsigned int *index)
{
    ENTER_DEVICE (device, index != NULL);
    *index = device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber (nvmlDevice_t device, unsigned int *minor)
{
    ENTER_DEVICE (device, minor != NULL);
    if (device->mig != NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *minor = device->gpu->minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability (nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE (device, major != NULL && minor != NULL);
    *major = (int) device->gpu->arch_major;
    *minor = (int) device->gpu->arch_minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo (nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE (device, memory != NULL);
    /* Version 1 counts the driver's own reservation as used. */
    struct nvml_live live;
    *memory = (nvmlMemory_t) { .total = device->gpu->memory, .used = device->gpu->memory_reserved };
    if (device->mig != NULL)
        *memory = (nvmlMemory_t) { .total = device->mig->memory };
    else if (nvml_live_memory (device->gpu, &live))
        *memory = (nvmlMemory_t) { .total = live.total, .used = live.total - live.free };
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2 (nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    const unsigned int version = (unsigned int) sizeof (*memory) | 2u << 24;

    ENTER_DEVICE (device, memory != NULL);
    if (memory->version != version)
        return NVML_ERROR_FUNCTION_NOT_FOUND; /* the real library's result for an unknown version */
    *memory = (nvmlMemory_v2_t) { .version = version, .total = device->gpu->memory, .reserved = device->gpu->memory_reserved };
    struct nvml_live live;
    if (device->mig != NULL)
        *memory = (nvmlMemory_v2_t) { .version = version, .total = device->mig->memory };
    else if (nvml_live_memory (device->gpu, &live))
        *memory = (nvmlMemory_v2_t) {
            .version = version, .total = live.total, .reserved = live.total - live.heap, .used = live.heap - live.free
        };
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}
