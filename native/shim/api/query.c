/*
 * Wrappers of memory queries. They change results only where this library enforces the quota; where rm supports the
 * driver, libnvc-shim.so changes the ioctls below. The driver is called first, with the program's arguments, and
 * validates them. Runs as array.c.
 */
#include "share.h"

#include <limits.h>

static unsigned int narrow (uint64_t bytes) { return bytes > UINT_MAX ? UINT_MAX : (unsigned int) bytes; }

/* The container's numbers for the current device; false: the driver's result stays. */
static bool current_numbers (struct share_numbers *numbers)
{
    size_t free = 0, total = 0;
    struct share share = share_of_current ();
    return share.counted && NEXT (cuMemGetInfo_v2) (&free, &total) == CUDA_SUCCESS && share_numbers (&share, total, free, numbers);
}

static bool device_numbers (CUdevice device, struct share_numbers *numbers)
{
    size_t total = 0;
    struct share share = share_of_device (device);
    return share.counted && NEXT (cuDeviceTotalMem_v2) (&total, device) == CUDA_SUCCESS &&
           share_numbers (&share, total, total, numbers);
}

CUresult cuMemGetInfo_v2 (size_t *free, size_t *total)
{
    struct share_numbers numbers;
    CUresult result = NEXT (cuMemGetInfo_v2) (free, total);
    if (result != CUDA_SUCCESS || (free == NULL && total == NULL) || !current_numbers (&numbers))
        return result;
    if (free != NULL)
        *free = numbers.free;
    if (total != NULL)
        *total = numbers.total;
    return result;
}

CUresult cuMemGetInfo (unsigned int *free, unsigned int *total)
{
    struct share_numbers numbers;
    CUresult result = NEXT (cuMemGetInfo) (free, total);
    if (result != CUDA_SUCCESS || (free == NULL && total == NULL) || !current_numbers (&numbers))
        return result;
    if (free != NULL)
        *free = narrow (numbers.free);
    if (total != NULL)
        *total = narrow (numbers.total);
    return result;
}

CUresult cuDeviceTotalMem_v2 (size_t *bytes, CUdevice device)
{
    struct share_numbers numbers;
    CUresult result = NEXT (cuDeviceTotalMem_v2) (bytes, device);
    if (result == CUDA_SUCCESS && bytes != NULL && device_numbers (device, &numbers))
        *bytes = numbers.total;
    return result;
}

CUresult cuDeviceTotalMem (unsigned int *bytes, CUdevice device)
{
    struct share_numbers numbers;
    CUresult result = NEXT (cuDeviceTotalMem) (bytes, device);
    if (result == CUDA_SUCCESS && bytes != NULL && device_numbers (device, &numbers))
        *bytes = narrow (numbers.total);
    return result;
}

/* The 16 bytes in "GPU-3e4af3d0-..." and "MIG-3e4af3d0-...". */
static bool parse_uuid (const char *text, uint8_t uuid[16])
{
    unsigned int digits = 0;
    for (text += 4; *text != '\0' && digits < 32; text++) {
        char low = (char) (*text | 0x20);
        int digit = *text >= '0' && *text <= '9' ? *text - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (digit < 0 && *text != '-')
            return false;
        if (digit >= 0) {
            uuid[digits / 2] = (uint8_t) (digits % 2 == 0 ? digit << 4 : uuid[digits / 2] | digit);
            digits++;
        }
    }
    return digits == 32 && *text == '\0';
}

static bool nvml_numbers (nvmlDevice_t device, uint64_t total, uint64_t free, struct share_numbers *numbers)
{
    char text[96] = "";
    uint8_t uuid[16] = { 0 };
    if (!share_is_active () || NEXT (nvmlDeviceGetUUID) (device, text, sizeof (text)) != NVML_SUCCESS)
        return false;
    if (text[3] != '-' || !parse_uuid (text, uuid))
        return false;
    struct share share = share_of_uuid (uuid);
    return share.counted && share_numbers (&share, total, free, numbers);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo (nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct share_numbers numbers;
    nvmlReturn_t result = NEXT (nvmlDeviceGetMemoryInfo) (device, memory);
    if (result == NVML_SUCCESS && memory != NULL && nvml_numbers (device, memory->total, memory->free, &numbers)) {
        memory->total = numbers.total;
        memory->free = numbers.free;
        memory->used = numbers.total - numbers.free;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2 (nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct share_numbers numbers;
    nvmlReturn_t result = NEXT (nvmlDeviceGetMemoryInfo_v2) (device, memory);
    if (result == NVML_SUCCESS && memory != NULL && nvml_numbers (device, memory->total, memory->free, &numbers)) {
        memory->total = numbers.total;
        memory->reserved = 0; /* the driver's own reservation is not part of a share */
        memory->free = numbers.free;
        memory->used = numbers.total - numbers.free;
    }
    return result;
}
