/* The instances behind MIG devices, by handles of their own: what nvidia-ctk and go-nvlib read a MIG device's profile
 * from. Profiles are those of an A100 or H100 (NVIDIA's MIG user guide), found by their slices. Runs in the program's
 * process, on the calling thread. */
#include "nvml_state.h"

#include <stddef.h>
#include <unistd.h>

/* Slices of a GPU instance, its number in NVML's list of profiles, and the driver's. The same list has the profiles of
 * compute instances, whose two numbers are one. */
static const struct profile {
    unsigned int slices;
    unsigned int number;
    unsigned int id;
} PROFILES[] = { { 1, 0, 19 }, { 2, 1, 14 }, { 3, 2, 9 }, { 4, 3, 5 }, { 7, 4, 0 } };

#define PROFILE_COUNT (sizeof PROFILES / sizeof PROFILES[0])
/* NVML_GPU_INSTANCE_PROFILE_COUNT and NVML_COMPUTE_INSTANCE_PROFILE_COUNT. */
#define GPU_INSTANCE_PROFILES 0x12u
#define COMPUTE_INSTANCE_PROFILES 0x8u

static const struct profile *by_slices (unsigned int slices)
{
    for (size_t i = 0; i < PROFILE_COUNT; i++)
        if (PROFILES[i].slices == slices)
            return &PROFILES[i];
    return NULL;
}

static const struct profile *by_number (unsigned int number)
{
    for (size_t i = 0; i < PROFILE_COUNT; i++)
        if (PROFILES[i].number == number)
            return &PROFILES[i];
    return NULL;
}

/* A GPU instance's handle is that of its first MIG device, a compute instance's that of its own. */
static nvmlDevice_t first_of (nvmlDevice_t device, unsigned int gi)
{
    for (unsigned int i = 0; i < device->mig_count; i++)
        if (device->first_mig[i].mig->gi == gi)
            return device->first_mig + i;
    return NULL;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById (nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    ENTER_DEVICE (device, instance != NULL);
    if (!device->gpu->mig_enabled || device->mig != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid () != 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlDevice_t found = first_of (device, id);
    if (found == NULL)
        return NVML_ERROR_NOT_FOUND;
    *instance = (nvmlGpuInstance_t) found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo (nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    nvmlDevice_t device = (nvmlDevice_t) instance;
    ENTER_DEVICE (device, info != NULL);
    if (device->mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct profile *profile = by_slices (device->mig->gi_slices);
    if (profile == NULL)
        return NVML_ERROR_UNKNOWN;
    *info = (nvmlGpuInstanceInfo_t) { .device = device->parent,
                                      .id = device->mig->gi,
                                      .profileId = profile->id,
                                      .placement = { .start = 0, .size = device->mig->gi_slices } };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById (nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *compute)
{
    nvmlDevice_t device = (nvmlDevice_t) instance;
    ENTER_DEVICE (device, compute != NULL);
    if (device->mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct nvmlDevice_st *gpu = device->parent;
    for (unsigned int i = 0; i < gpu->mig_count; i++) {
        nvmlDevice_t found = gpu->first_mig + i;
        if (found->mig->gi == device->mig->gi && found->mig->ci == id) {
            *compute = (nvmlComputeInstance_t) found;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t compute_info (nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    nvmlDevice_t device = (nvmlDevice_t) compute;
    RETURN_IF_FAILED (nvml_check_handle (device));
    if (info == NULL || device->mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct profile *profile = by_slices (device->mig->ci_slices);
    if (profile == NULL)
        return NVML_ERROR_UNKNOWN;
    *info = (nvmlComputeInstanceInfo_t) { .device = device->parent,
                                          .gpuInstance = (nvmlGpuInstance_t) first_of (device->parent, device->mig->gi),
                                          .id = device->mig->ci,
                                          .profileId = profile->number,
                                          .placement = { .start = 0, .size = device->mig->ci_slices } };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo (nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    ENTER ();
    return compute_info (compute, info);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2 (nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    ENTER ();
    return compute_info (compute, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo (nvmlDevice_t device, unsigned int number, nvmlGpuInstanceProfileInfo_t *info)
{
    ENTER_DEVICE (device, info != NULL && number < GPU_INSTANCE_PROFILES);
    const struct profile *profile = by_number (number);
    if (!device->gpu->mig_enabled || device->mig != NULL || profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    /* An eighth of the memory a slice, and all of it for the whole GPU. */
    unsigned long long memory = device->gpu->memory >> 20;
    *info = (nvmlGpuInstanceProfileInfo_t) { .id = profile->id,
                                             .sliceCount = profile->slices,
                                             .instanceCount = 7 / profile->slices,
                                             .memorySizeMB = profile->slices == 7 ? memory : memory * profile->slices / 8 };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo (nvmlGpuInstance_t instance, unsigned int number, unsigned int engine,
                                                           nvmlComputeInstanceProfileInfo_t *info)
{
    nvmlDevice_t device = (nvmlDevice_t) instance;
    ENTER_DEVICE (device, info != NULL && number < COMPUTE_INSTANCE_PROFILES && engine == 0);
    const struct profile *profile = by_number (number);
    if (device->mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (profile == NULL || profile->slices > device->mig->gi_slices)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t) { .id = profile->number,
                                                 .sliceCount = profile->slices,
                                                 .instanceCount = device->mig->gi_slices / profile->slices };
    return NVML_SUCCESS;
}
