/* Processes on a GPU. Version 1 of the structure has no MIG ids; 2 and 3 are the same. Runs in the program's process,
 * on the calling thread. */
#include "nvml_live.h"

#include <stddef.h>

#define NO_INSTANCE 0xffffffffu

/* Copies the processes. A call with room for 0 is a query of their number. */
static nvmlReturn_t processes (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *first, nvmlProcessInfo_t *later)
{
    struct nvml_live_process found[NVML_LIVE_PROCESSES];
    unsigned int there = 0, room = *count;

    /* Without a manager nothing runs. */
    if (device->mig != NULL || !nvml_live_processes (device->gpu, found, &there))
        there = 0;
    *count = there;
    if (there > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < there; i++) {
        if (first != NULL)
            first[i] = (nvmlProcessInfo_v1_t) { .pid = found[i].pid, .usedGpuMemory = found[i].bytes };
        if (later != NULL)
            later[i] = (nvmlProcessInfo_t) {
                .pid = found[i].pid, .usedGpuMemory = found[i].bytes, .gpuInstanceId = NO_INSTANCE, .computeInstanceId = NO_INSTANCE
            };
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    ENTER_DEVICE (device, count != NULL && (infos != NULL || *count == 0));
    return processes (device, count, infos, NULL);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2 (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    ENTER_DEVICE (device, count != NULL && (infos != NULL || *count == 0));
    return processes (device, count, NULL, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3 (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    ENTER_DEVICE (device, count != NULL && (infos != NULL || *count == 0));
    return processes (device, count, NULL, infos);
}

/* A simulated GPU has no graphics processes. */
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    (void) infos;
    ENTER_DEVICE (device, count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2 (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void) infos;
    ENTER_DEVICE (device, count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3 (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void) infos;
    ENTER_DEVICE (device, count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}
