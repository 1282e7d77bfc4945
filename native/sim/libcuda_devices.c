/* The GPUs that the process sees, their order, and their objects in the resource manager. Runs in the program's
 * process, on the calling thread, under the library's lock. */
#include "libcuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED: UVM writes its page tables. */
#define EXTERNALLY_OWNED 0x40u

enum {
    CLASS_VASPACE = 0x90f1,
    CLASS_THIRD_PARTY = 0x503c,
    REGISTER_SPACE = 0x503c0102,
    ESCAPE_REGISTER_FD = 0xc9,
    UVM_REGISTER_GPU = 0x25
};

struct uvm_register_gpu {
    uint8_t uuid[16];
    uint8_t numa_enabled, pad[3];
    int32_t numa_node, control;
    uint32_t client, partition, status;
};
_Static_assert (sizeof (struct uvm_register_gpu) == 40, "the driver's size");

static uint64_t bus_number (const struct machine_gpu *gpu)
{
    return (uint64_t) gpu->domain << 16 | (uint64_t) gpu->bus << 8 | gpu->device;
}

/* Whether `one` precedes `other`. CUDA_DEVICE_ORDER: by PCI address, or (the default) the fastest first, which here
 * means the newest architecture, then the largest memory; ties by PCI address. */
static bool before (const struct machine_gpu *one, const struct machine_gpu *other, bool by_bus)
{
    uint32_t mine = one->arch_major * 100 + one->arch_minor, its = other->arch_major * 100 + other->arch_minor;

    if (!by_bus && mine != its)
        return mine > its;
    if (!by_bus && one->memory != other->memory)
        return one->memory > other->memory;
    return bus_number (one) < bus_number (other);
}

static int ordered (const struct machine_gpu *gpus[])
{
    const char *order = getenv ("CUDA_DEVICE_ORDER");
    bool by_bus = order != NULL && strcmp (order, "PCI_BUS_ID") == 0;
    int count = 0;

    for (unsigned int i = 0; i < cuda.nvml.gpu_count; i++) {
        const struct machine_gpu *gpu = cuda.nvml.gpus[i].gpu;
        int place = count++;
        for (; place > 0 && before (gpu, gpus[place - 1], by_bus); place--)
            gpus[place] = gpus[place - 1];
        gpus[place] = gpu;
    }
    return count;
}

/* One entry of CUDA_VISIBLE_DEVICES, as driver 580 reads it: a number followed by anything, or the start of a UUID
 * (letters of either case, a whole one followed by anything). -1: no GPU of this machine. */
static int by_number (const char *entry, int count)
{
    char *end;
    long index = strtol (entry, &end, 10);

    return end != entry && index >= 0 && index < count ? (int) index : -1;
}

static int by_uuid (const char *entry, size_t length, const struct machine_gpu *gpus[], int count)
{
    int found = -1;

    if (length <= 4)
        return -1;
    for (int i = 0; i < count; i++) {
        size_t whole = strlen (gpus[i]->uuid);
        if (strncmp (entry, "GPU-", 4) != 0 || strncasecmp (entry, gpus[i]->uuid, length < whole ? length : whole) != 0)
            continue;
        if (found >= 0)
            return -1; /* ambiguous */
        found = i;
    }
    return found;
}

static CUresult add_device (const struct machine_gpu *gpu)
{
    struct cuda_device *device = &cuda.devices[cuda.device_count];

    for (int i = 0; i < cuda.device_count; i++) {
        if (cuda.devices[i].gpu == gpu)
            return CUDA_ERROR_INVALID_DEVICE; /* named twice: the result of driver 580 */
    }
    *device = (struct cuda_device) { .gpu = gpu, .ordinal = cuda.device_count, .node = -1 };
    rm_parse_uuid (gpu->uuid, device->uuid);
    cuda.device_count++;
    return CUDA_SUCCESS;
}

CUresult cuda_choose_devices (void)
{
    const struct machine_gpu *gpus[MACHINE_MAX_GPUS];
    int count = ordered (gpus);
    const char *visible = getenv ("CUDA_VISIBLE_DEVICES");
    bool uuids = visible != NULL && strncmp (visible, "GPU-", 4) == 0;
    CUresult result = CUDA_SUCCESS;

    cuda.device_count = 0;
    for (int i = 0; visible == NULL && i < count; i++)
        add_device (gpus[i]);
    /* The first entry that is no GPU of this machine, or of the other kind, ends the list. */
    while (visible != NULL && result == CUDA_SUCCESS) {
        size_t length = strcspn (visible, ",");
        int index = uuids ? by_uuid (visible, length, gpus, count) : by_number (visible, count);
        if (index < 0)
            break;
        result = add_device (gpus[index]);
        if (visible[length] == '\0')
            break;
        visible += length + 1;
    }
    if (result != CUDA_SUCCESS)
        return result;
    return cuda.device_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

struct cuda_device *cuda_device (CUdevice device)
{
    return device >= 0 && device < cuda.device_count ? &cuda.devices[device] : NULL;
}

/* The object with which memory is registered for access by other devices, and its address space. */
static uint32_t add_third_party (struct cuda_device *device)
{
    uint32_t flags = 0; /* by BAR1 */
    struct {
        uint32_t space, pad;
        uint64_t token;
    } call = { .space = device->vaspace };
    uint32_t status;

    device->third_party = cuda_new_handle ();
    status = rm_allocate_object (&cuda.rm, device->subdevice, device->third_party, CLASS_THIRD_PARTY, &flags);
    if (status == RM_STATUS_OK)
        status = rm_control (&cuda.rm, device->third_party, REGISTER_SPACE, &call, sizeof (call));
    return status;
}

CUresult cuda_attach_device (struct cuda_device *device)
{
    uint32_t vaspace[14] = { 0, EXTERNALLY_OWNED };
    int control = cuda.rm.control;

    device->node = rm_open_node (device->gpu->node);
    if (device->node < 0)
        return CUDA_ERROR_NO_DEVICE;
    device->device = cuda_new_handle ();
    device->subdevice = cuda_new_handle ();
    device->vaspace = cuda_new_handle ();
    rm_call (device->node, ESCAPE_REGISTER_FD, &control, sizeof (control));
    device->attached = true;
    if (!rm_attach_gpu (&cuda.rm, device->uuid, device->device, device->subdevice))
        return CUDA_ERROR_NO_DEVICE;
    rm_allocate_object (&cuda.rm, device->device, device->vaspace, CLASS_VASPACE, vaspace);
    if (add_third_party (device) != RM_STATUS_OK)
        return CUDA_ERROR_UNKNOWN;
    if (cuda.uvm >= 0) {
        struct uvm_register_gpu call = { .numa_node = -1, .control = control, .client = cuda.rm.client };
        memcpy (call.uuid, device->uuid, sizeof (call.uuid));
        ioctl (cuda.uvm, UVM_REGISTER_GPU, &call);
        cuda_register_space (device);
    }
    return CUDA_SUCCESS;
}
