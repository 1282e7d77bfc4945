/* Queries of MIG: its mode, and the devices of a GPU. Runs in the program's process, on the calling thread. */
#include "nvml_state.h"

#include <stddef.h>

nvmlReturn_t nvmlDeviceGetMigMode (nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_DEVICE (device, current != NULL && pending != NULL);
    if (device->mig != NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->gpu->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = device->gpu->mig_enabled ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount (nvmlDevice_t device, unsigned int *count)
{
    ENTER_DEVICE (device, count != NULL);
    if (device->mig != NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* As an H200 with MIG disabled. */
    *count = device->gpu->mig_enabled ? MACHINE_MAX_MIGS : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex (nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    ENTER_DEVICE (device, mig != NULL);
    if (device->mig != NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->gpu->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= device->mig_count)
        return NVML_ERROR_NOT_FOUND;
    *mig = device->first_mig + index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle (nvmlDevice_t device, nvmlDevice_t *parent)
{
    ENTER_DEVICE (device, parent != NULL);
    if (device->mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *parent = device->parent;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle (nvmlDevice_t device, unsigned int *is_mig)
{
    ENTER_DEVICE (device, is_mig != NULL);
    *is_mig = device->mig != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId (nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE (device, id != NULL);
    if (device->mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = device->mig->gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId (nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE (device, id != NULL);
    if (device->mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = device->mig->ci;
    return NVML_SUCCESS;
}

static nvmlReturn_t attributes_of (nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    if (device->mig == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t) { .gpuInstanceSliceCount = device->mig->gi_slices,
                                             .computeInstanceSliceCount = device->mig->ci_slices,
                                             .memorySizeMB = device->mig->memory >> 20 };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes (nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_DEVICE (device, attributes != NULL);
    return attributes_of (device, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2 (nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_DEVICE (device, attributes != NULL);
    return attributes_of (device, attributes);
}
