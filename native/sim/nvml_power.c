/* How busy a GPU is, its power and energy: as much more than at rest as it is busy. Runs in the program's process, on the calling thread. */
#include "nvml_live.h"

#include <stddef.h>

/* At rest a GPU draws a tenth of its limit. */
#define AT_REST 10u

/* Of GPUs of a compute capability of 7 (V100), 8 (A100), 9 (H100), and newer ones. */
static unsigned int limit_of (const struct machine_gpu *gpu)
{
    static const unsigned int limits[] = { 300000, 400000, 700000, 1000000 };
    unsigned int generation = gpu->arch_major > 7 ? gpu->arch_major - 7 : 0;

    return limits[generation < 3 ? generation : 3];
}

/* Without a manager nothing runs. */
static unsigned int utilization_of (const struct machine_gpu *gpu)
{
    unsigned int percent;

    return nvml_live_utilization (gpu, &percent) ? percent : 0;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates (nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER_DEVICE (device, utilization != NULL);
    if (device->mig != NULL || device->gpu->mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    *utilization = (nvmlUtilization_t) { .gpu = utilization_of (device->gpu) };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage (nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER_DEVICE (device, milliwatts != NULL);
    if (device->mig != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned int limit = limit_of (device->gpu), rest = limit / AT_REST;
    *milliwatts = rest + (limit - rest) / 100 * utilization_of (device->gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit (nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER_DEVICE (device, milliwatts != NULL);
    if (device->mig != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *milliwatts = limit_of (device->gpu);
    return NVML_SUCCESS;
}

/* Volta and newer; without a manager nothing computes. */
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption (nvmlDevice_t device, unsigned long long *energy)
{
    uint64_t now, busy;

    ENTER_DEVICE (device, energy != NULL);
    if (device->mig != NULL || device->gpu->arch_major < 7 || !nvml_live_busy (device->gpu, &now, &busy))
        return NVML_ERROR_NOT_SUPPORTED;
    uint64_t limit = limit_of (device->gpu), rest = limit / AT_REST;
    *energy = rest * (now / 1000000) / 1000 + (limit - rest) * (busy / 1000000) / 1000; /* milliwatts by milliseconds */
    return NVML_SUCCESS;
}
