/* Prints "structure.member offset size" for every structure of nvml.h, and the structure's size as member "*". */
#include "nvml.h"

#include <stddef.h>
#include <stdio.h>

#define WHOLE(type) printf ("%s.* 0 %zu\n", #type, sizeof (type));
#define MEMBER(type, name) printf ("%s.%s %zu %zu\n", #type, #name, offsetof (type, name), sizeof (((type *) 0)->name));

int main (void)
{
    WHOLE (nvmlPciInfo_t)
    MEMBER (nvmlPciInfo_t, busIdLegacy)
    MEMBER (nvmlPciInfo_t, domain)
    MEMBER (nvmlPciInfo_t, bus)
    MEMBER (nvmlPciInfo_t, device)
    MEMBER (nvmlPciInfo_t, pciDeviceId)
    MEMBER (nvmlPciInfo_t, pciSubSystemId)
    MEMBER (nvmlPciInfo_t, busId)
    WHOLE (nvmlPciInfo_v2_t)
    MEMBER (nvmlPciInfo_v2_t, busId)
    MEMBER (nvmlPciInfo_v2_t, domain)
    MEMBER (nvmlPciInfo_v2_t, pciSubSystemId)
    WHOLE (nvmlMemory_t)
    MEMBER (nvmlMemory_t, total)
    MEMBER (nvmlMemory_t, free)
    MEMBER (nvmlMemory_t, used)
    WHOLE (nvmlUtilization_t)
    MEMBER (nvmlUtilization_t, gpu)
    MEMBER (nvmlUtilization_t, memory)
    WHOLE (nvmlMemory_v2_t)
    MEMBER (nvmlMemory_v2_t, version)
    MEMBER (nvmlMemory_v2_t, reserved)
    MEMBER (nvmlMemory_v2_t, used)
    WHOLE (nvmlDeviceAttributes_t)
    MEMBER (nvmlDeviceAttributes_t, sharedOfaCount)
    MEMBER (nvmlDeviceAttributes_t, gpuInstanceSliceCount)
    MEMBER (nvmlDeviceAttributes_t, computeInstanceSliceCount)
    MEMBER (nvmlDeviceAttributes_t, memorySizeMB)
    WHOLE (nvmlGpuInstanceInfo_t)
    MEMBER (nvmlGpuInstanceInfo_t, profileId)
    MEMBER (nvmlGpuInstanceInfo_t, placement)
    WHOLE (nvmlComputeInstanceInfo_t)
    MEMBER (nvmlComputeInstanceInfo_t, gpuInstance)
    MEMBER (nvmlComputeInstanceInfo_t, placement)
    WHOLE (nvmlGpuInstanceProfileInfo_t)
    MEMBER (nvmlGpuInstanceProfileInfo_t, sliceCount)
    MEMBER (nvmlGpuInstanceProfileInfo_t, memorySizeMB)
    WHOLE (nvmlComputeInstanceProfileInfo_t)
    MEMBER (nvmlComputeInstanceProfileInfo_t, sliceCount)
    MEMBER (nvmlComputeInstanceProfileInfo_t, sharedOfaCount)
    return 0;
}
