/* What programs were seen to make on an H100 (580.159.04): devices, address spaces, ranges, groups, context shares, channels, duplicates and mappings, each
 * kind once for what it names. A guard refuses none of it (rm/space.c). */
#include "rm/nv_params.h"
#include "rm_fake.h"
#include "tap.h"

#define FILE_A 1
#define FILE_B 2 /* the MPS server's, of another tenant */
#define CLIENTS 8
#define COUNT(rows) (sizeof (rows) / sizeof ((rows)[0]))

enum act { CLIENT, ALLOC, DUP, LEND, MAP, UNMAP };

/* above: the parent, or the device of a mapping. handle: the new one, or the range. what: the class; the source's client; the memory. named: the
 * address space, the context share, or the client (from 1 on) that a device names; the source. other: vaMode, index, engine, hVASpace. */
struct step {
    uint8_t act, client;
    uint32_t above, handle, what, named, other;
};

static const struct step vulkan[] = {
    { CLIENT, 0, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { CLIENT, 1, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 0, 0x0, 0xfade0001, 0x80, 0x1, 0x0 },
    { ALLOC, 0, 0xfade0001, 0xfade0002, 0x2080, 0x0, 0x0 },
    { ALLOC, 0, 0xfade0001, 0xfade0003, 0x90f1, 0x2, 0x0 },
    { ALLOC, 0, 0xfade0001, 0xfade0004, 0x70, 0xfade0003, 0x0 },
    { CLIENT, 2, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 2, 0x0, 0xbfef0300, 0x80, 0x1, 0x0 },
    { ALLOC, 2, 0xbfef0300, 0xbfef0301, 0x2080, 0x0, 0x0 },
    { DUP, 2, 0xbfef0300, 0xbfef0001, 0x0, 0xfade0003, 0x0 },
    { ALLOC, 2, 0xbfef0300, 0xbeef0202, 0x70, 0xbfef0001, 0x0 },
    { CLIENT, 3, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { CLIENT, 4, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 3, 0x0, 0xbeef0003, 0x80, 0x4, 0x0 },
    { ALLOC, 3, 0xbeef0003, 0xbeef0004, 0x2080, 0x0, 0x0 },
    { DUP, 3, 0xbeef0003, 0xbeef0300, 0x0, 0xfade0003, 0x0 },
    { ALLOC, 3, 0xbeef0003, 0xbeef0202, 0x70, 0xbeef0300, 0x0 },
    { ALLOC, 3, 0xbeef0003, 0xcef80000, 0xa06c, 0xbeef0300, 0x1 },
    { ALLOC, 3, 0xbeef0003, 0xcef80001, 0xa06c, 0xbeef0300, 0x1 },
    { MAP, 3, 0xbeef0003, 0xcaf00003, 0x1, 0x0, 0x0 },
    { ALLOC, 3, 0xcef80000, 0xcef00000, 0x9067, 0xbeef0300, 0x0 },
    { ALLOC, 3, 0xcef80000, 0xbeef0100, 0xc56f, 0xcef00000, 0x0 },
    { ALLOC, 3, 0xbeef0003, 0xbeef0101, 0xc56f, 0x0, 0xbeef0300 },
    { ALLOC, 3, 0xbeef0003, 0xcef80002, 0xa06c, 0xbeef0300, 0x1 },
    { ALLOC, 3, 0xcef80002, 0xcef00080, 0x9067, 0xbeef0300, 0x0 },
    { ALLOC, 3, 0xcef80002, 0xbeee0100, 0xc56f, 0xcef00080, 0x0 },
    { MAP, 3, 0xbeef0003, 0xbeef0202, 0xbeee90c0, 0x0, 0x0 },
    { UNMAP, 3, 0xbeef0003, 0x47, 0x0, 0x0, 0x0 },
    { MAP, 3, 0xbeef0003, 0x47, 0x48, 0x0, 0x0 },
    { ALLOC, 3, 0xbeef0003, 0xcef80003, 0xa06c, 0xbeef0300, 0x1 },
    { ALLOC, 3, 0xcef80003, 0xcef000c0, 0x9067, 0xbeef0300, 0x0 },
    { ALLOC, 3, 0xcef80003, 0xbeec0100, 0xc56f, 0xcef000c0, 0x0 },
    { ALLOC, 3, 0xcef80003, 0xcef000c1, 0x9067, 0xbeef0300, 0x0 },
    { ALLOC, 3, 0xcef80003, 0xbeec0104, 0xc56f, 0xcef000c1, 0x0 },
    { UNMAP, 3, 0xbeef0003, 0xcaf00058, 0x0, 0x0, 0x0 },
};
static const struct step decode[] = {
    { CLIENT, 0, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { CLIENT, 1, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 1, 0x0, 0x5c000002, 0x80, 0x2, 0x2 },
    { ALLOC, 1, 0x5c000002, 0x5c000003, 0x2080, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c000009, 0x90f1, 0x48, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00000a, 0x90f1, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00000c, 0x50a0, 0x5c00000a, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c000015, 0xa06c, 0x0, 0x1 },
    { ALLOC, 1, 0x5c000015, 0x5c000016, 0x9067, 0x5c000009, 0x0 },
    { ALLOC, 1, 0x5c000015, 0x5c00001c, 0xc86f, 0x5c000016, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00003e, 0xa06c, 0x5c000009, 0xb },
    { ALLOC, 1, 0x5c00003e, 0x5c000040, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00004c, 0xa06c, 0x5c000009, 0xc },
    { ALLOC, 1, 0x5c00004c, 0x5c00004e, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00005a, 0xa06c, 0x5c000009, 0xd },
    { ALLOC, 1, 0x5c00005a, 0x5c00005c, 0xc86f, 0x0, 0x0 },
    { CLIENT, 2, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 2, 0x0, 0x80000000, 0x80, 0x3, 0x0 },
    { ALLOC, 2, 0x80000000, 0x80000001, 0x2080, 0x0, 0x0 },
    { ALLOC, 2, 0x80000000, 0x80000003, 0x70, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x80000003, 0x8000000c, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x80000003, 0x8000000d, 0x0, 0x0 },
    { ALLOC, 2, 0x80000000, 0x80000011, 0x50a0, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x80000011, 0x80000010, 0x0, 0x0 },
    { ALLOC, 2, 0x80000000, 0x80000013, 0xc86f, 0x0, 0x0 },
    { MAP, 2, 0x80000001, 0x80000003, 0x80000014, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x80000036, 0x80000035, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x8000005b, 0x8000005a, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x80000080, 0x8000007f, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x800000a5, 0x800000a4, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x800000ca, 0x800000c9, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x800000ef, 0x800000ee, 0x0, 0x0 },
    { MAP, 2, 0x80000000, 0x80000003, 0x80000121, 0x0, 0x0 },
};
static const struct step cuda[] = {
    { CLIENT, 0, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { CLIENT, 1, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 1, 0x0, 0x5c000002, 0x80, 0x2, 0x2 },
    { ALLOC, 1, 0x5c000002, 0x5c000003, 0x2080, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c000009, 0x90f1, 0x48, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00000a, 0x90f1, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00000c, 0x50a0, 0x5c00000a, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c000015, 0xa06c, 0x0, 0x1 },
    { ALLOC, 1, 0x5c000015, 0x5c000016, 0x9067, 0x5c000009, 0x0 },
    { ALLOC, 1, 0x5c000015, 0x5c00001c, 0xc86f, 0x5c000016, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00003e, 0xa06c, 0x5c000009, 0xb },
    { ALLOC, 1, 0x5c00003e, 0x5c000040, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00004c, 0xa06c, 0x5c000009, 0xc },
    { ALLOC, 1, 0x5c00004c, 0x5c00004e, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00005a, 0xa06c, 0x5c000009, 0xd },
    { ALLOC, 1, 0x5c00005a, 0x5c00005c, 0xc86f, 0x0, 0x0 },
};
static const struct step torch[] = {
    { CLIENT, 0, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { CLIENT, 1, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 1, 0x0, 0x5c000002, 0x80, 0x2, 0x2 },
    { ALLOC, 1, 0x5c000002, 0x5c000003, 0x2080, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c000009, 0x90f1, 0x48, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00000a, 0x90f1, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00000c, 0x50a0, 0x5c00000a, 0x0 },
    { CLIENT, 2, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 2, 0x0, 0xa55a0020, 0x80, 0x0, 0x0 },
    { ALLOC, 2, 0xa55a0020, 0xa55a0030, 0x2080, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c000015, 0xa06c, 0x0, 0x1 },
    { ALLOC, 1, 0x5c000015, 0x5c000016, 0x9067, 0x5c000009, 0x0 },
    { ALLOC, 1, 0x5c000015, 0x5c00001c, 0xc86f, 0x5c000016, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00003e, 0xa06c, 0x5c000009, 0xb },
    { ALLOC, 1, 0x5c00003e, 0x5c000040, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00004c, 0xa06c, 0x5c000009, 0xc },
    { ALLOC, 1, 0x5c00004c, 0x5c00004e, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000002, 0x5c00005a, 0xa06c, 0x5c000009, 0xd },
    { ALLOC, 1, 0x5c00005a, 0x5c00005c, 0xc86f, 0x0, 0x0 },
};
static const struct step mps_client[] = {
    { CLIENT, 0, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { CLIENT, 1, 0x0, 0x0, 0x0, 0x0, 0x0 },
    { ALLOC, 1, 0x0, 0x5c000003, 0x80, 0x2, 0x2 },
    { ALLOC, 1, 0x5c000003, 0x5c000004, 0x2080, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000003, 0x5c00000a, 0x90f1, 0x48, 0x0 },
    { ALLOC, 1, 0x5c000003, 0x5c00000b, 0x90f1, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000003, 0x5c00000d, 0x50a0, 0x5c00000b, 0x0 },
    { LEND, 1, 0x5c000003, 0x5c00000f, 0x0, 0x5c000015, 0x0 },
    { ALLOC, 1, 0x5c00000f, 0x5c000017, 0x9067, 0x5c00000a, 0x0 },
    { ALLOC, 1, 0x5c00000f, 0x5c00001d, 0xc86f, 0x5c000017, 0x0 },
    { ALLOC, 1, 0x5c000003, 0x5c000027, 0xa06c, 0x5c00000a, 0xb },
    { ALLOC, 1, 0x5c000027, 0x5c000029, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000003, 0x5c000035, 0xa06c, 0x5c00000a, 0xc },
    { ALLOC, 1, 0x5c000035, 0x5c000037, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000003, 0x5c000043, 0xa06c, 0x5c00000a, 0xd },
    { ALLOC, 1, 0x5c000043, 0x5c000045, 0xc86f, 0x0, 0x0 },
    { ALLOC, 1, 0x5c000003, 0x5c000051, 0xa06c, 0x5c00000a, 0xb },
    { ALLOC, 1, 0x5c000051, 0x5c000053, 0xc86f, 0x0, 0x0 },
};

static struct fake *fake;
static uint32_t clients[CLIENTS], space;

static uint32_t allocate (const struct step *step)
{
    union {
        NV0080_ALLOC_PARAMETERS device;
        NV_VASPACE_ALLOCATION_PARAMETERS space;
        NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS range;
        struct fake_memory_params memory;
        NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS group;
        NV_CTXSHARE_ALLOCATION_PARAMETERS share;
        NV_CHANNEL_ALLOC_PARAMS channel;
        uint8_t all[FAKE_CHANNEL_PARAMS];
    } params = { .all = { 0 } };
    uint32_t client = clients[step->client], handle = step->handle;

    switch (step->what) {
    case NV01_DEVICE_0:
        params.device.hClientShare = step->named != 0 ? clients[step->named - 1] : 0;
        params.device.vaMode = step->other;
        break;
    case FERMI_VASPACE_A:
        params.space.flags = step->named;
        params.space.index = step->other;
        break;
    case 0x70:
        params.range.hVASpace = step->named;
        break;
    case NV50_MEMORY_VIRTUAL:
        params.memory.common.hVASpace = step->named;
        break;
    case KEPLER_CHANNEL_GROUP_A:
        params.group.hVASpace = step->named;
        params.group.engineType = step->other;
        break;
    case FERMI_CONTEXT_SHARE_A:
        params.share.hVASpace = step->named;
        break;
    case NV20_SUBDEVICE_0:
        break;
    default:
        params.channel.hContextShare = step->named;
        params.channel.hVASpace = step->other;
        params.channel.engineType = 0xb; /* a copy engine, where it has no group */
    }
    return fake_alloc (fake, FILE_A, client, step->above != 0 ? step->above : client, &handle, step->what, &params,
                       sizeof (params));
}

/* Memory and ranges that other calls made: ALLOC_MEMORY and VID_HEAP_CONTROL. */
static void prepare (const struct step *step)
{
    NVOS32_PARAMETERS heap = { .hRoot = clients[step->client],
                               .hObjectParent = step->above,
                               .function = NVOS32_FUNCTION_ALLOC_SIZE,
                               .hVASpace = step->handle % 2 != 0 ? space : 0 };
    uint32_t memory = step->what;

    heap.data.AllocSize.flags = NVOS32_ALLOC_FLAGS_VIRTUAL;
    heap.data.AllocSize.hMemory = step->handle;
    if (fake_find (fake, clients[step->client], step->handle) == NULL)
        fake_call (fake, RM_NODE_CONTROL, FILE_A, HEAP_REQUEST, &heap, NULL, 0, NULL, 0);
    /* continued: the ledger does not have it */
    if (memory != 0)
        fake_make (fake, FILE_A, clients[step->client], step->above, &memory, NV01_MEMORY_SYSTEM, NULL, NULL);
}

static uint32_t map (const struct step *step)
{
    NVOS46_PARAMETERS head = {
        .hClient = clients[step->client], .hDevice = step->above, .hDma = step->handle, .hMemory = step->what, .length = MIB
    };
    NVOS47_PARAMETERS undo = {
        .hClient = clients[step->client], .hDevice = step->above, .hDma = step->handle, .hMemory = step->what
    };

    prepare (step);
    if (step->act == MAP)
        fake_call (fake, RM_NODE_CONTROL, FILE_A, NV_REQUEST (NV_ESC_RM_MAP_MEMORY_DMA, sizeof (head)), &head, NULL, 0, NULL, 0);
    else
        fake_call (fake, RM_NODE_CONTROL, FILE_A, NV_REQUEST (NV_ESC_RM_UNMAP_MEMORY_DMA, sizeof (undo)), &undo, NULL, 0, NULL, 0);
    return step->act == MAP ? head.status : undo.status;
}

/* A group of the MPS server's, which no guard sees. */
static uint32_t borrow (const struct step *step)
{
    NVOS64_PARAMETERS client = { .hClass = NV01_ROOT_CLIENT };
    uint32_t device = 1, group = step->named, handle = step->handle;
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS params = { .engineType = 1 };

    fake_driver (fake, FILE_B, ALLOC_REQUEST, &client, NULL, NULL);
    fake_make (fake, FILE_B, client.hObjectNew, client.hObjectNew, &device, NV01_DEVICE_0, NULL, NULL);
    fake_make (fake, FILE_B, client.hObjectNew, device, &group, KEPLER_CHANNEL_GROUP_A, &params, NULL);
    return fake_dup (fake, FILE_A, clients[step->client], step->above, &handle, client.hObjectNew, group);
}

static uint32_t play (const struct step *step)
{
    uint32_t handle = step->handle;

    switch (step->act) {
    case CLIENT:
        clients[step->client] = fake_client (fake, FILE_A);
        return clients[step->client] == 0;
    case ALLOC:
        return allocate (step);
    case DUP:
        space = step->handle;
        return fake_dup (fake, FILE_A, clients[step->client], step->above, &handle, clients[step->what], step->named);
    case LEND:
        return borrow (step);
    default:
        return map (step);
    }
}

static void program (const struct step *steps, size_t count, const char *what)
{
    unsigned refused = 0;

    space = 0;
    fake = fake_open ("580.159.04", RM_POSTURE_GUARD);
    fake->limit[0] = 1000 * MIB;
    for (size_t i = 0; i < count; i++) {
        uint32_t status = play (&steps[i]);

        if (status == 0 && fake->decision != RM_REFUSED && fake->decision != RM_UNKNOWN)
            continue;
        refused++;
        printf ("# step %u: %#x\n", (unsigned) i, (unsigned) status);
    }
    tap_ok (refused == 0, what);
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    program (vulkan, COUNT (vulkan), "Vulkan's compute");
    program (decode, COUNT (decode), "NVDEC beside CUDA");
    program (cuda, COUNT (cuda), "CUDA, OpenCL and the MPS server");
    program (torch, COUNT (torch), "PyTorch");
    program (mps_client, COUNT (mps_client), "a client of MPS");
    return tap_done ();
}
