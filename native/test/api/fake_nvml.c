/* libnvidia-ml for tests: two GPUs of 16 GiB, 1 GiB of which are in use. A device's handle is its number and 1. */
#include "shim/api/abi.h"

#include <stdio.h>

#define GIB (1ull << 30)
#define PROTOTYPE(result, name, parameters)                                                                                        \
    __attribute__ ((visibility ("default"))) result name parameters;                                                               \
    result name parameters

PROTOTYPE (nvmlReturn_t, nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned int length))
{
    unsigned int byte = 0x10 + (unsigned int) (uintptr_t) device - 1, half = byte << 8 | byte;
    snprintf (uuid, length, "GPU-%04x%04x-%04x-%04x-%04x-%04x%04x%04x", half, half, half, half, half, half, half, half);
    return NVML_SUCCESS;
}
PROTOTYPE (nvmlReturn_t, nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory))
{
    if (device == NULL || memory == NULL)
        return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    *memory = (nvmlMemory_t) { 16 * GIB, 15 * GIB, GIB };
    return NVML_SUCCESS;
}
PROTOTYPE (nvmlReturn_t, nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *memory))
{
    if (device == NULL || memory == NULL)
        return 2;
    *memory = (nvmlMemory_v2_t) { memory->version, 16 * GIB, 512 << 20, 15 * GIB, GIB / 2 };
    return NVML_SUCCESS;
}
