/* Queries of a device. Runs in the program's process, on the calling thread, under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

CUresult cuDeviceGetCount (int *count)
{
    CUDA_ENTER ();
    if (count == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *count = cuda.device_count;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuDeviceGet (CUdevice *device, int ordinal)
{
    CUDA_ENTER ();
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (cuda_device (ordinal) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

/* The start of a query of one device: CUDA_ENTER, and `valid` for the other arguments. */
static CUresult enter_device (CUdevice ordinal, bool valid, struct cuda_device **device)
{
    CUDA_ENTER ();
    *device = cuda_device (ordinal);
    if (!valid)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    return *device != NULL ? CUDA_SUCCESS : CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
}

#define ENTER_ASKING(ordinal, valid)                                                                                               \
    struct cuda_device *device;                                                                                                    \
    CUresult entered = enter_device (ordinal, valid, &device);                                                                     \
    if (entered != CUDA_SUCCESS)                                                                                                   \
    return entered

CUresult cuDeviceGetName (char *name, int length, CUdevice ordinal)
{
    ENTER_ASKING (ordinal, name != NULL && length >= 1);
    snprintf (name, (size_t) length, "%s", device->gpu->model);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid (CUuuid *uuid, CUdevice ordinal)
{
    ENTER_ASKING (ordinal, uuid != NULL);
    memcpy (uuid->bytes, device->uuid, sizeof (uuid->bytes));
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuDeviceGetUuid_v2, cuDeviceGetUuid);

CUresult cuDeviceTotalMem_v2 (size_t *bytes, CUdevice ordinal)
{
    struct rm_fb_info info = { .count = 1, .entries = { { .index = 0x9 } } };

    ENTER_ASKING (ordinal, bytes != NULL);
    *bytes = device->gpu->memory - device->gpu->memory_reserved;
    /* The manager's number first: a share may lower it. */
    if (cuda.manager && rm_ask_memory (&cuda.rm, device->subdevice, &info) == RM_STATUS_OK)
        *bytes = (size_t) info.entries[0].kibibytes << 10;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuDeviceComputeCapability (int *major, int *minor, CUdevice ordinal)
{
    ENTER_ASKING (ordinal, major != NULL && minor != NULL);
    *major = (int) device->gpu->arch_major;
    *minor = (int) device->gpu->arch_minor;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId (char *text, int length, CUdevice ordinal)
{
    ENTER_ASKING (ordinal, text != NULL && length >= 13);
    snprintf (text, (size_t) length, "%04X:%02X:%02X.0", device->gpu->domain, device->gpu->bus, device->gpu->device);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuDeviceGetByPCIBusId (CUdevice *found, const char *text)
{
    unsigned int domain = 0, bus, slot, function = 0;

    CUDA_ENTER ();
    if (found == NULL || text == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (sscanf (text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf (text, "%x:%x.%x", &bus, &slot, &function) < 2)
            return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    }
    for (int i = 0; i < cuda.device_count; i++) {
        const struct machine_gpu *gpu = cuda.devices[i].gpu;
        if (gpu->domain == domain && gpu->bus == bus && gpu->device == slot && function == 0) {
            *found = i;
            return CUDA_LEAVE (CUDA_SUCCESS);
        }
    }
    return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
}

/* Numbers of one H200 (580.159.04) where a program's path depends on them; every other attribute that exists is 0. */
#define LAST_ATTRIBUTE 146
static int attribute_value (const struct machine_gpu *gpu, int attribute)
{
    static const struct {
        int attribute, value;
    } values[] = {
        { 1, 1024 },  { 2, 1024 },  { 3, 1024 }, { 4, 64 },          { 5, 2147483647 }, { 6, 65535 },    { 7, 65535 },
        { 8, 49152 }, { 9, 65536 }, { 10, 32 },  { 11, 2147483647 }, { 12, 65536 },     { 13, 1980000 }, { 14, 512 },
        { 15, 1 },    { 16, 132 },  { 19, 1 },   { 31, 1 },          { 36, 2619000 },   { 37, 6016 },    { 38, 62914560 },
        { 39, 2048 }, { 40, 3 },    { 41, 1 },   { 78, 1 },          { 81, 233472 },    { 82, 65536 },   { 83, 1 },
        { 88, 1 },    { 89, 1 },    { 90, 1 },   { 91, 1 },          { 95, 1 },         { 97, 232448 },  { 99, 1 },
        { 102, 1 },   { 103, 1 },   { 106, 32 }, { 111, 1024 },      { 115, 1 },        { 119, 9 },
    };

    switch (attribute) {
    case 33:
        return (int) gpu->bus;
    case 34:
        return (int) gpu->device;
    case 50:
        return (int) gpu->domain;
    case 75:
        return (int) gpu->arch_major;
    case 76:
        return (int) gpu->arch_minor;
    default:
        break;
    }
    for (size_t i = 0; i < sizeof (values) / sizeof (*values); i++) {
        if (values[i].attribute == attribute)
            return values[i].value;
    }
    return 0;
}

CUresult cuDeviceGetAttribute (int *value, int attribute, CUdevice ordinal)
{
    ENTER_ASKING (ordinal, value != NULL && attribute >= 1 && attribute <= LAST_ATTRIBUTE);
    *value = attribute_value (device->gpu, attribute);
    return CUDA_LEAVE (CUDA_SUCCESS);
}
