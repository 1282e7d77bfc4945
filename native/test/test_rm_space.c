/* A guard's tenant computes in address spaces of its own (rm/space.c). */
#include "rm/nv_params.h"
#include "rm_fake.h"
#include "tap.h"

#define VERSION "580.159.04"
#define FILE_A 1
#define FILE_B 2
#define NEIGHBOUR 0xc1e00001u /* another container's client */
#define SPACE 0x5c000009u
#define SHARE 0x5c000016u
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
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS named = { .hVASpace = SPACE, .engineType = COMPUTE };
    uint8_t channel[FAKE_CHANNEL_PARAMS] = { 0 };
    uint32_t group, handle = 0;

    open_bed ();
    fake->limit[0] = 1000 * MIB;
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client }, 0x11);
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = client, .vaMode = 2 }, 0x10);
    (void) device ((NV0080_ALLOC_PARAMETERS) { .hClientShare = other }, 0x13);
    tap_ok (made_in (0x11, 0, 0) == (RANGE | MEMORY | CONTEXT | BARE | INSIDE | HEAP | HANDLE), "the guard's device has its own");
    tap_ok (made_in (0x10, 0, 0) == 0 && made_in (0x13, 0, 0) == 0, "what a program can have made as another one has none");
    tap_ok (made_in (0x10, SPACE, SHARE) == (RANGE | MEMORY | CONTEXT | BARE | INSIDE | HEAP), "there each object names it");
    tap_ok (decided (0x10, KEPLER_CHANNEL_GROUP_A, &named, sizeof (named), &group) == RM_PERFORM &&
                decided (group, HOPPER_CHANNEL_GPFIFO_A, channel, sizeof (channel), &handle) == RM_PERFORM,
            "or the channel's group");
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
    events ();
    return tap_done ();
}
