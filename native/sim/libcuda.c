/*
 * The simulated CUDA driver library, first part: it can be found, loaded and asked what is there. It runs nothing, and
 * cuInit says on stderr that it is simulated.
 */
#include "nvml_state.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Numbers of the public CUDA driver API. */
typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;
typedef int CUdevice;

NVML_API CUresult cuInit (unsigned int flags);
NVML_API CUresult cuDriverGetVersion (int *version);
NVML_API CUresult cuDeviceGetCount (int *count);
NVML_API CUresult cuDeviceGet (CUdevice *device, int ordinal);
NVML_API CUresult cuDeviceGetName (char *name, int length, CUdevice device);

static struct nvml_state state;
static bool initialized;

static CUresult cuda_error (nvmlReturn_t result)
{
    if (result == NVML_ERROR_NO_PERMISSION)
        return CUDA_ERROR_NOT_PERMITTED;
    return result == NVML_ERROR_DRIVER_NOT_LOADED ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_UNKNOWN;
}

CUresult cuInit (unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (initialized)
        return CUDA_SUCCESS;
    switch (machine_load (&state.machine, state.problem, sizeof (state.problem))) {
    case MACHINE_FOUND:
        break;
    case MACHINE_NONE:
        return CUDA_ERROR_NO_DEVICE;
    case MACHINE_BAD:
        return CUDA_ERROR_UNKNOWN;
    }
    nvmlReturn_t result = nvml_find_devices (&state);
    if (result != NVML_SUCCESS)
        return cuda_error (result);
    if (state.gpu_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    fprintf (stderr, "libcuda: SIMULATED machine %s, nothing will run on a GPU\n", state.machine.name);
    initialized = true;
    return CUDA_SUCCESS;
}

/* Answers before cuInit too, as the real one does. */
CUresult cuDriverGetVersion (int *version)
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!initialized && machine_load (&state.machine, state.problem, sizeof (state.problem)) != MACHINE_FOUND)
        return CUDA_ERROR_UNKNOWN;
    *version = (int) state.machine.cuda;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount (int *count)
{
    if (!initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int) state.gpu_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet (CUdevice *device, int ordinal)
{
    if (!initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (ordinal < 0 || (unsigned int) ordinal >= state.gpu_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName (char *name, int length, CUdevice device)
{
    if (!initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (name == NULL || length < 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || (unsigned int) device >= state.gpu_count)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf (name, (size_t) length, "%s", state.gpus[device].gpu->model);
    return CUDA_SUCCESS;
}
