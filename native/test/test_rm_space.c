/* A guard's tenant computes in address spaces of its own (rm/space.c). */
#include "rm/nv_params.h"
#include "rm_fake.h"
#include "tap.h"

#define VERSION "580.159.04"
#define FILE_A 1
#define FILE_B 2
#define NEIGHBOUR 0xc1e00001u /* another container's client */
#define RACED 0x5f000001u
#define COMPUTE 1

static struct fake *fake;
static uint32_t client, other; /* of the tenant */

static void open_bed (void)
{
    fake = fake_open (VERSION, RM_POSTURE_GUARD);
    client = fake_client (fake, FILE_A);
    other = fake_client (fake, FILE_B);
    (void) fake_device (fake, FILE_B, other, 0); /* a client is known once it is used */
}

static enum rm_verdict decided (uint32_t parent, uint32_t class, void *params, uint32_t size, uint32_t *handle)
{
    *handle = 0;
    (void) fake_alloc (fake, FILE_A, client, parent, handle, class, params, size);
    return fake->decision;
}

/* A device with a handle of its caller's; its subdevice makes its GPU known. */
static enum rm_verdict device (NV0080_ALLOC_PARAMETERS params, uint32_t handle)
{
    enum rm_verdict decision;

    (void) fake_alloc (fake, FILE_A, client, client, &handle, NV01_DEVICE_0, &params, sizeof (params));
    decision = fake->decision;
    if (decision == RM_PERFORM || decision == RM_CONTINUE)
        (void) fake_subdevice (fake, FILE_A, client, handle);
    return decision;
}

static void devices (void)
{
    open_bed ();
    tap_ok (device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client, .vaMode = 2 }, 0x10) == RM_CONTINUE,
            "CUDA's device is made by its process");
    tap_ok (device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x11) == RM_PERFORM,
            "one with an address space of its own by the guard");
    tap_ok (device ((NV0080_ALLOC_PARAMETERS) { 0 }, 0x12) == RM_CONTINUE &&
                device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = other }, 0x13) == RM_CONTINUE,
            "one with another of the tenant's, or all programs', by its process");
    tap_ok (device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = NEIGHBOUR }, 0x14) == RM_REFUSED &&
                device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = NEIGHBOUR, .vaMode = 2 }, 0x14) == RM_REFUSED &&
                fake->notes[RM_FORBIDDEN_CLASS] == 2,
            "with another container's: refused");
    tap_ok (device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client, .hTargetClient = client }, 0x14) == RM_REFUSED &&
                device ((NV0080_ALLOC_PARAMETERS) { .hTargetDevice = 0x10 }, 0x14) == RM_REFUSED,
            "a target is named by no program");
    tap_ok (fake_close (fake), "nothing is left");
}

/* Bits: what may be made below this device, or in a group of it, without a handle of an address space, and with one. */
enum { RANGE = 1, MEMORY = 2, CONTEXT = 4, BARE = 8, INSIDE = 16, HEAP = 32, HANDLE = 64 };

static unsigned made_in (uint32_t parent, uint32_t space, uint32_t share)
{
    NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS range = { .hVASpace = space };
    struct fake_memory_params memory = { .common = { .size = MIB, .hVASpace = space } };
    NV_CTXSHARE_ALLOCATION_PARAMETERS context = { .hVASpace = space };
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS group = { .engineType = COMPUTE };
    uint8_t channel[FAKE_CHANNEL_PARAMS] = { 0 }, place[56] = { NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE };
    NV_CHANNEL_ALLOC_PARAMS *of_channel = (void *) channel;
    NVOS32_PARAMETERS heap = {
        .hRoot = client, .hObjectParent = parent, .function = NVOS32_FUNCTION_ALLOC_SIZE, .hVASpace = space
    };
    uint32_t handle, in;
    unsigned made = 0;

    made |= decided (parent, 0x70, &range, sizeof (range), &handle) == RM_PERFORM ? RANGE : 0;
    made |= decided (parent, NV50_MEMORY_VIRTUAL, &memory, sizeof (memory), &handle) == RM_PERFORM ? MEMORY : 0;
    made |= decided (parent, FERMI_VASPACE_A, place, sizeof (place), &handle) == RM_PERFORM ? HANDLE : 0;
    heap.data.AllocSize.flags = NVOS32_ALLOC_FLAGS_VIRTUAL;
    fake_call (fake, RM_NODE_CONTROL, FILE_A, HEAP_REQUEST, &heap, NULL, 0, NULL, 0);
    made |= fake->decision == RM_PERFORM ? HEAP : 0;
    of_channel->hVASpace = space;
    of_channel->engineType = COMPUTE;
    made |= decided (parent, HOPPER_CHANNEL_GPFIFO_A, channel, sizeof (channel), &handle) == RM_PERFORM ? BARE : 0;
    of_channel->hVASpace = 0;
    of_channel->hContextShare = share;
    tap_ok (decided (parent, KEPLER_CHANNEL_GROUP_A, &group, sizeof (group), &in) == RM_PERFORM, "a group needs none");
    made |= decided (in, FERMI_CONTEXT_SHARE_A, &context, sizeof (context), &handle) == RM_PERFORM ? CONTEXT : 0;
    made |= decided (in, HOPPER_CHANNEL_GPFIFO_A, channel, sizeof (channel), &handle) == RM_PERFORM ? INSIDE : 0;
    return made;
}

static void defaults (void)
{
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS named = { .engineType = COMPUTE };
    uint8_t channel[FAKE_CHANNEL_PARAMS] = { 0 };
    uint32_t group, handle = 0, space;

    open_bed ();
    fake->limit[0] = 1000 * MIB;
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x11);
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client, .vaMode = 2 }, 0x10);
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = other }, 0x13);
    tap_ok (made_in (0x11, 0, 0) == (RANGE | MEMORY | CONTEXT | BARE | INSIDE | HEAP | HANDLE), "the guard's device has its own");
    tap_ok (made_in (0x10, 0, 0) == 0 && made_in (0x13, 0, 0) == 0, "what a program can have made as another one has none");
    space = fake_space (fake, FILE_A, client, 0x10);
    named.hVASpace = space;
    tap_ok (made_in (0x10, space, 0) == (RANGE | MEMORY | CONTEXT | BARE | HEAP), "there each object names it");
    tap_ok (decided (0x10, KEPLER_CHANNEL_GROUP_A, &named, sizeof (named), &group) == RM_PERFORM &&
                decided (group, HOPPER_CHANNEL_GPFIFO_A, channel, sizeof (channel), &handle) == RM_PERFORM,
            "or the channel's group");
    group = fake_group (fake, FILE_A, client, 0x10, COMPUTE);
    tap_ok (fake_channel_in (fake, FILE_A, client, group, fake_share (fake, FILE_A, client, 0x10, group)) != 0,
            "or its context share: CUDA's");
    /* a duplicate of a group, below another device, is in the address space that it was */
    group = 0;
    tap_ok (decided (0x13, KEPLER_CHANNEL_GROUP_A, &(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS) { .engineType = COMPUTE },
                     sizeof (named), &group) == RM_PERFORM,
            "a group of the other device");
    handle = 0;
    tap_ok (fake_dup (fake, FILE_A, client, 0x11, &handle, client, group) == 0 &&
                decided (handle, HOPPER_CHANNEL_GPFIFO_A, channel, sizeof (channel), &group) == RM_REFUSED,
            "has none below the guard's either");
    tap_ok (fake_close (fake), "nothing is left");
}

/* Handles of address spaces that are there: the GPU's own, all programs', the one of NVLink. */
static void spaces (void)
{
    bool all = true;
    uint32_t handle;

    open_bed ();
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x11);
    for (uint32_t index = 0; index < 260; index++) {
        uint8_t params[56] = { 0 };
        bool is_made;

        set32 (params, 0, index);
        is_made = decided (0x11, FERMI_VASPACE_A, params, sizeof (params), &handle) == RM_PERFORM;
        all &= is_made == (index == 0 || index == 3);
    }
    tap_ok (all, "an address space is a new one, or the guard's device's");
    for (unsigned bit = 0; bit < 32; bit++) {
        uint8_t params[56] = { 0 };

        set32 (params, 4, 1u << bit);
        all &= (decided (0x11, FERMI_VASPACE_A, params, sizeof (params), &handle) == RM_PERFORM) == (bit != 9);
    }
    tap_ok (all, "and none that is taken for the GPU's for NVLink");
    tap_ok (fake_close (fake), "nothing is left");
}

/* Attack: a device's ALLOC, which another thread turns into this one. */
static void race (uint32_t parent, uint32_t handle, uint32_t class, void *params)
{
    NV0080_ALLOC_PARAMETERS device = { 0 };
    NVOS64_PARAMETERS seen = { .hRoot = client,
                               .hObjectParent = client,
                               .hObjectNew = 0x5f00ffff,
                               .hClass = NV01_DEVICE_0,
                               .pAllocParms = (NvP64) (uintptr_t) &device };
    NVOS64_PARAMETERS made = {
        .hRoot = client, .hObjectParent = parent, .hObjectNew = handle, .hClass = class, .pAllocParms = (NvP64) (uintptr_t) params
    };

    fake_race (fake, FILE_A, &seen, &device, sizeof (device), &made, params);
    tap_ok (fake_find (fake, client, handle) != NULL, "a raced call made it");
}

static uint32_t map (uint32_t number, uint32_t device_handle, uint32_t range, uint32_t memory)
{
    NVOS46_PARAMETERS head = { .hClient = client, .hDevice = device_handle, .hDma = range, .hMemory = memory, .length = MIB };
    NVOS47_PARAMETERS undo = { .hClient = client, .hDevice = device_handle, .hDma = range, .hMemory = memory };
    bool is_map = number == NV_ESC_RM_MAP_MEMORY_DMA;
    uint32_t request = is_map ? NV_REQUEST (NV_ESC_RM_MAP_MEMORY_DMA, sizeof (head))
                              : NV_REQUEST (NV_ESC_RM_UNMAP_MEMORY_DMA, sizeof (undo));

    fake_call (fake, RM_NODE_CONTROL, FILE_A, request, is_map ? (void *) &head : &undo, NULL, 0, NULL, 0);
    return is_map ? head.status : undo.status;
}

/* Attack: what a raced call made may be another tenant's address space, or in one. */
static void raced (void)
{
    uint8_t global[56] = { 1 }, none[56] = { 0 }, enabled[4] = { 1 };
    NV_CTXSHARE_ALLOCATION_PARAMETERS of_share = { 0 };
    NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS range = { 0 };
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS of_group = { .engineType = COMPUTE };
    uint32_t group, space, share, handle, copy = 0;

    open_bed ();
    fake->limit[0] = 1000 * MIB;
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x11);
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client, .vaMode = 2 }, 0x10);
    race (0x10, RACED, FERMI_VASPACE_A, global);
    tap_ok (made_in (0x10, RACED, 0) == 0 && made_in (0x11, RACED, 0) == (INSIDE | HANDLE),
            "no object names an address space that the guard did not make");
    tap_ok (fake_dup (fake, FILE_A, client, 0x10, &copy, client, RACED) == 0 && made_in (0x10, copy, 0) == 0,
            "nor a duplicate of it");
    tap_ok (made_in (0x10, RACED, 0) == 0, "also when the ledger has it");
    of_group.hVASpace = RACED;
    tap_ok (decided (0x11, KEPLER_CHANNEL_GROUP_A, &of_group, sizeof (of_group), &handle) == RM_REFUSED, "nor does a group");
    group = fake_group (fake, FILE_A, client, 0x10, COMPUTE);
    of_share.hVASpace = RACED;
    race (group, RACED + 1, FERMI_CONTEXT_SHARE_A, &of_share);
    tap_ok (fake_channel_in (fake, FILE_A, client, group, RACED + 1) == 0 && fake->decision == RM_REFUSED,
            "nor a channel such a context share");
    /* the driver frees a context share with its address space: its handle is used again */
    space = fake_space (fake, FILE_A, client, 0x10);
    of_share.hVASpace = space;
    tap_ok (decided (group, FERMI_CONTEXT_SHARE_A, &of_share, sizeof (of_share), &share) == RM_PERFORM &&
                fake_free (fake, FILE_A, client, space) == 0 && fake_find (fake, client, share) == NULL,
            "a context share goes with its address space");
    of_share.hVASpace = RACED;
    race (group, share, FERMI_CONTEXT_SHARE_A, &of_share);
    tap_ok (fake_channel_in (fake, FILE_A, client, group, share) == 0 && fake->decision == RM_REFUSED,
            "what has its handle then is not the tenant's own");
    /* the same of a group */
    of_group.hVASpace = fake_space (fake, FILE_A, client, 0x10);
    (void) decided (0x10, KEPLER_CHANNEL_GROUP_A, &of_group, sizeof (of_group), &group);
    tap_ok (fake_channel (fake, FILE_A, client, group) != 0 && fake_free (fake, FILE_A, client, of_group.hVASpace) == 0 &&
                fake_channel (fake, FILE_A, client, group) == 0 && fake->decision == RM_REFUSED,
            "nor is a group after the FREE of its address space");
    /* also where another one of the tenant's own has the handle of the one that they named */
    space = fake_space (fake, FILE_A, client, 0x10);
    range.hVASpace = of_share.hVASpace = space;
    group = fake_group (fake, FILE_A, client, 0x10, COMPUTE);
    (void) decided (group, FERMI_CONTEXT_SHARE_A, &of_share, sizeof (of_share), &share);
    (void) decided (0x10, 0x70, &range, sizeof (range), &handle);
    fake_free (fake, FILE_A, client, space);
    (void) fake_alloc (fake, FILE_A, client, 0x10, &space, FERMI_VASPACE_A, &none, sizeof (none));
    range.hVASpace = of_share.hVASpace = RACED;
    race (group, share, FERMI_CONTEXT_SHARE_A, &of_share);
    race (0x10, handle, 0x70, &range);
    tap_ok (fake_channel_in (fake, FILE_A, client, group, share) == 0 &&
                map (NV_ESC_RM_MAP_MEMORY_DMA, 0x10, handle, handle) == NV_ERR_INVALID_STATE && fake->mappings == 0,
            "nor is what is said to be in one that has its handle");
    /* a context share goes with its group, which goes with the one that it names */
    space = of_group.hVASpace = fake_space (fake, FILE_A, client, 0x10);
    of_share.hVASpace = fake_space (fake, FILE_A, client, 0x10);
    (void) decided (0x10, KEPLER_CHANNEL_GROUP_A, &of_group, sizeof (of_group), &group);
    (void) decided (group, FERMI_CONTEXT_SHARE_A, &of_share, sizeof (of_share), &share);
    fake_free (fake, FILE_A, client, space);
    group = fake_group (fake, FILE_A, client, 0x10, COMPUTE);
    of_share.hVASpace = RACED;
    race (group, share, FERMI_CONTEXT_SHARE_A, &of_share);
    tap_ok (fake_channel_in (fake, FILE_A, client, group, share) == 0, "nor is a context share after the FREE of its group");
    /* below the handle of a range that went with its address space: what the ledger takes for the range is a group by then */
    space = range.hVASpace = fake_space (fake, FILE_A, client, 0x11);
    (void) decided (0x11, 0x70, &range, sizeof (range), &handle);
    fake_free (fake, FILE_A, client, space);
    of_group.hVASpace = RACED;
    race (0x10, handle, KEPLER_CHANNEL_GROUP_A, &of_group);
    tap_ok (fake_channel (fake, FILE_A, client, handle) == 0 && fake->decision == RM_REFUSED,
            "a channel is made in groups and devices only");
    (void) fake_control (fake, FILE_A, client, handle, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &enabled, sizeof (enabled));
    tap_ok (fake->decision == RM_REFUSED, "and nothing else is started");
    tap_ok (fake_close (fake), "nothing is left");
}

static uint32_t other_space; /* that another thread frees between the look and the driver's call */

static void meanwhile (struct fake *at)
{
    uint32_t gone = other_space;

    other_space = 0;
    if (gone != 0)
        fake_free (at, FILE_A, client, gone);
}

static uint32_t asked; /* in which a range is asked for while the driver frees it */

static void ask_meanwhile (struct fake *at)
{
    NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS range = { .hVASpace = asked };
    uint32_t handle = 0;

    if (asked != 0)
        fake_alloc (at, FILE_A, client, 0x10, &handle, 0x70, &range, sizeof (range));
    tap_ok (asked == 0 || at->decision == RM_REFUSED, "an address space that is being freed is named by nothing");
    asked = 0;
}

static void freed (void)
{
    NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS range = { 0 };
    uint32_t handle = 0;

    open_bed ();
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client, .vaMode = 2 }, 0x10);
    range.hVASpace = other_space = fake_space (fake, FILE_A, client, 0x10);
    fake->meanwhile = meanwhile;
    tap_ok (fake_alloc (fake, FILE_A, client, 0x10, &handle, 0x70, &range, sizeof (range)) == NV_ERR_INVALID_STATE &&
                !rm_has_object (fake->rm, client, handle) && fake_find (fake, client, handle) == NULL,
            "a range in what another thread freed meanwhile is taken back");
    asked = fake_space (fake, FILE_A, client, 0x10);
    fake->meanwhile = ask_meanwhile;
    tap_ok (fake_free (fake, FILE_A, client, asked) == 0 && asked == 0, "and it is freed");
    tap_ok (fake_close (fake), "nothing is left");
}

/* Attack: the driver takes a range that names no address space for one of the call's device. */
static void mappings (void)
{
    static const uint32_t numbers[] = { NV_ESC_RM_MAP_MEMORY_DMA, NV_ESC_RM_UNMAP_MEMORY_DMA };
    NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS of_range = { 0 };
    uint32_t subdevice, range, named, memory = 0, space;
    uint64_t bytes = MIB;

    open_bed ();
    fake->limit[0] = 1000 * MIB;
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x11);
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x12);
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = other }, 0x13);
    subdevice = fake_subdevice (fake, FILE_A, client, 0x11);
    (void) decided (0x11, 0x70, &of_range, sizeof (of_range), &range);
    space = of_range.hVASpace = fake_space (fake, FILE_A, client, 0x11);
    (void) decided (0x11, 0x70, &of_range, sizeof (of_range), &named);
    fake_memory (fake, FILE_A, client, 0x11, &memory, &bytes);
    of_range.hVASpace = 0;
    race (0x13, RACED, 0x70, &of_range);
    for (unsigned i = 0; i < 2; i++) {
        uint32_t number = numbers[i], no_memory = i == 0 ? NV_ERR_OBJECT_NOT_FOUND : 0;

        fake->mappings = 0;
        tap_ok (map (number, 0x11, range, memory) == 0 && map (number, subdevice, range, memory) == 0 && fake->mappings == 2,
                "by the range's own device, or a subdevice of it");
        tap_ok (map (number, 0x13, range, memory) == NV_ERR_INVALID_STATE && map (number, 0x12, range, memory) != 0 &&
                    fake->mappings == 2 && fake->decision == RM_REFUSED,
                "by no other device");
        tap_ok (map (number, 0x13, named, memory) == 0 && fake->mappings == 3, "but for a range that names its address space");
        tap_ok (map (number, 0x13, RACED, memory) != 0 && map (number, 0x11, memory, memory) != 0 &&
                    map (number, range, range, memory) != 0 && fake->mappings == 3,
                "not into what the guard did not make, nor into what is no range, nor by what is no device");
        tap_ok (map (number, 0x11, RACED + 7, memory) == NV_ERR_OBJECT_NOT_FOUND &&
                    map (number, RACED + 7, range, memory) == NV_ERR_OBJECT_NOT_FOUND &&
                    map (number, 0x11, range, RACED + 7) == no_memory,
                "nor of what is not there");
    }
    fake_free (fake, FILE_A, client, space);
    tap_ok (map (NV_ESC_RM_MAP_MEMORY_DMA, 0x11, named, memory) != 0 && fake->decision == RM_REFUSED,
            "nor into a range after the FREE of its address space");
    other_space = range;
    fake->mappings = 0;
    fake->meanwhile = meanwhile;
    tap_ok (map (NV_ESC_RM_MAP_MEMORY_DMA, 0x11, range, memory) == NV_ERR_INVALID_STATE && fake->mappings == 1,
            "a mapping into what another thread freed meanwhile is undone");
    tap_ok (fake_close (fake), "nothing is left");
    fake = fake_open (VERSION, RM_POSTURE_SHIM);
    client = fake_client (fake, FILE_A);
    tap_ok (map (NV_ESC_RM_MAP_MEMORY_DMA, 1, 2, 3) == 0 && fake->decision == RM_PASS, "the preloaded library lets all pass");
    tap_ok (fake_close (fake), "nothing is left");
}

static void events (void)
{
    NV0005_ALLOC_PARAMETERS params = { .hClass = NV01_EVENT_OS_EVENT };
    uint32_t handle, subdevice;
    bool own;

    open_bed ();
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x11);
    subdevice = fake_subdevice (fake, FILE_A, client, 0x11);
    own = decided (subdevice, NV01_EVENT_OS_EVENT, &params, sizeof (params), &handle) == RM_PERFORM;
    params.hParentClient = client;
    own &= decided (subdevice, NV01_EVENT_OS_EVENT, &params, sizeof (params), &handle) == RM_PERFORM;
    params.hParentClient = other;
    own &= decided (subdevice, NV01_EVENT_OS_EVENT, &params, sizeof (params), &handle) == RM_PERFORM;
    tap_ok (own, "an event is about an object of the tenant's");
    params.hParentClient = NEIGHBOUR;
    tap_ok (decided (subdevice, NV01_EVENT_OS_EVENT, &params, sizeof (params), &handle) == RM_REFUSED, "about no other");
    params.hParentClient = client;
    tap_ok (decided (subdevice, NV01_EVENT, &params, sizeof (params), &handle) == RM_PERFORM, "its params may have the class");
    params.hClass = 0x78;
    tap_ok (decided (subdevice, NV01_EVENT, &params, sizeof (params), &handle) == RM_REFUSED, "a kernel's callback they may not");
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    devices ();
    defaults ();
    spaces ();
    raced ();
    freed ();
    mappings ();
    events ();
    return tap_done ();
}
