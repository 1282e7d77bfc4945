/* What hostile clients do so that the ledger has something else than the driver. Of a continued call the guard sees neither what the
 * kernel read nor what came of it. */
#include "rm/state.h"
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

#define VERSION "580.159.04"
#define FILE_A 1
#define FILE_B 2
#define HANDLE 0xd0d00000u
#define COMPUTE 1u
#define COPY 11u
#define CONTEXT SCHEDULE_CONTEXT_BYTES

struct bed {
    struct fake *fake;
    uint32_t client, device, subdevice;
};

static struct bed open_bed (void)
{
    struct bed bed = { .fake = fake_open (VERSION, RM_POSTURE_GUARD) };

    bed.fake->limit[0] = 100 * MIB;
    bed.client = fake_client (bed.fake, FILE_A);
    bed.device = fake_device (bed.fake, FILE_A, bed.client, 0);
    bed.subdevice = fake_subdevice (bed.fake, FILE_A, bed.client, bed.device);
    return bed;
}

/* An ALLOC of a device under `handle`, and what the kernel makes of it: a class below a parent, under another handle. */
static void race (struct bed *bed, uint32_t handle, uint32_t class, uint32_t parent, uint32_t other, uint64_t bytes)
{
    NV0080_ALLOC_PARAMETERS device = { 0 };
    union {
        struct fake_memory_params memory;
        NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS group;
        uint8_t room[FAKE_CHANNEL_PARAMS];
    } params = { .room = { 0 } };
    NVOS64_PARAMETERS seen = {
        .hRoot = bed->client,
        .hObjectParent = bed->client,
        .hObjectNew = handle,
        .hClass = NV01_DEVICE_0,
        .pAllocParms = (NvP64) (uintptr_t) &device,
    };
    NVOS64_PARAMETERS made = {
        .hRoot = bed->client,
        .hObjectParent = parent,
        .hObjectNew = other,
        .hClass = class,
        .pAllocParms = (NvP64) (uintptr_t) &params,
    };

    if (class == NV01_MEMORY_LOCAL_USER)
        params.memory.common.size = bytes;
    else if (class == KEPLER_CHANNEL_GROUP_A)
        params.group.engineType = COMPUTE;
    fake_race (bed->fake, FILE_A, &seen, &device, sizeof (device), &made, &params);
}

static uint32_t phantom (struct bed *bed, uint32_t handle)
{
    NV0080_ALLOC_PARAMETERS params = { 0 };

    return fake_alloc (bed->fake, FILE_A, bed->client, bed->client, &handle, NV01_DEVICE_0, &params, sizeof (params));
}

static unsigned frozen (const struct fake *fake)
{
    unsigned count = 0;

    for (unsigned i = 0; i < fake->object_count; i++)
        count += fake->objects[i].live && fake->objects[i].frozen;
    return count;
}

/* M1, C1: the driver refuses a handle that is taken, and keeps what is there. */
static void phantoms (void)
{
    struct bed bed = open_bed ();
    uint32_t memory = 0, group, channel;
    uint64_t bytes = 8 * MIB, charged;
    struct rm_piece piece;

    fake_memory (bed.fake, FILE_A, bed.client, bed.device, &memory, &bytes);
    tap_ok (phantom (&bed, memory) == NV_ERR_INSERT_DUPLICATE_NAME && bed.fake->decision == RM_REFUSED,
            "M1: an ALLOC of a device under the handle of a piece is refused, not continued");
    tap_ok (rm_pieces (bed.fake->rm, bed.client, memory, &piece, 1) == 1 && fake_charged (bed.fake, 0) == 8 * MIB,
            "and the piece is still charged, and looked at when it is freed");
    group = fake_group (bed.fake, FILE_A, bed.client, bed.device, COMPUTE);
    channel = fake_channel (bed.fake, FILE_A, bed.client, group);
    charged = fake_charged (bed.fake, 0);
    tap_ok (phantom (&bed, bed.device) == NV_ERR_INSERT_DUPLICATE_NAME && rm_groups (bed.fake->rm, 0) == 1 &&
                rm_channels (bed.fake->rm, NULL, 0) == 1 && fake_charged (bed.fake, 0) == charged,
            "C1: under the device's own handle too: its groups and channels stay in the ledger");
    rm_freeze (bed.fake->rm, 0, true);
    tap_ok (channel != 0 && frozen (bed.fake) == 1, "and are stopped");
    rm_freeze (bed.fake->rm, 0, false);
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* C2, C3 */
static void raced (void)
{
    struct bed bed = open_bed ();
    uint32_t group = HANDLE + 1, device = HANDLE + 2, subdevice, channel, handle = 0;
    NV0080_ALLOC_PARAMETERS params = { 0 };
    uint8_t info[16] = { 0 };

    race (&bed, HANDLE, KEPLER_CHANNEL_GROUP_A, bed.device, group, 0);
    channel = fake_channel_in (bed.fake, FILE_A, bed.client, group, fake_share (bed.fake, FILE_A, bed.client, bed.device, group));
    tap_ok (channel != 0 && rm_groups (bed.fake->rm, 0) == 1,
            "C2: a channel group that no call was said to make is one of the tenant's");
    rm_freeze (bed.fake->rm, 0, true);
    tap_ok (frozen (bed.fake) == 1, "and its channels are stopped");
    rm_freeze (bed.fake->rm, 0, false);
    tap_ok (fake_charged (bed.fake, 0) == CONTEXT, "and its context is charged");
    fake_find (bed.fake, bed.client, group)->slice = 500;
    rm_set_timeslice (bed.fake->rm, 0, 800);
    tap_ok (fake_find (bed.fake, bed.client, group)->slice == 500, "a shorter timeslice, of another supervisor's, stays");
    rm_set_timeslice (bed.fake->rm, 0, 300);
    tap_ok (fake_find (bed.fake, bed.client, group)->slice == 300, "a longer one does not");

    race (&bed, HANDLE, NV01_DEVICE_0, bed.client, device, 0);
    tap_ok (fake_subdevice (bed.fake, FILE_A, bed.client, HANDLE) == 0 && bed.fake->decision == RM_REFUSED,
            "C3: a device that is not there has no subdevice");
    tap_ok (!rm_has_object (bed.fake->rm, bed.client, HANDLE), "and is in no record");
    subdevice = fake_subdevice (bed.fake, FILE_A, bed.client, device);
    tap_ok (subdevice != 0, "the one that is there has");
    group = fake_group (bed.fake, FILE_A, bed.client, device, COMPUTE);
    channel = fake_channel_in (bed.fake, FILE_A, bed.client, group, fake_share (bed.fake, FILE_A, bed.client, device, group));
    tap_ok (channel != 0 && rm_groups (bed.fake->rm, 0) == 2, "and its groups count, on the GPU that the driver reports");
    tap_ok (fake_alloc (bed.fake, FILE_A, bed.client, bed.client, &device, NV01_DEVICE_0, &params, sizeof (params)) ==
                NV_ERR_INSERT_DUPLICATE_NAME,
            "its handle is taken then");

    race (&bed, HANDLE, HOPPER_CHANNEL_GPFIFO_A, bed.device, HANDLE + 3, 0);
    fake_control (bed.fake, FILE_A, bed.client, HANDLE + 3, NVA06F_CTRL_CMD_GPFIFO_SCHEDULE, &handle, 3);
    tap_ok (rm_groups (bed.fake->rm, 0) == 3 && rm_channels (bed.fake->rm, NULL, 0) == 3,
            "a raced channel is in the ledger before it is let through to compute");
    channel = fake_channel (bed.fake, FILE_A, bed.client, fake_group (bed.fake, FILE_A, bed.client, bed.device, COPY));
    race (&bed, HANDLE, HOPPER_COMPUTE_A, channel, HANDLE + 4, 0);
    fake_control (bed.fake, FILE_A, bed.client, HANDLE + 4, 0x906f0101, info, sizeof (info));
    tap_ok (rm_channels (bed.fake->rm, NULL, 0) == 4,
            "so is a channel of a copy engine on which an object that computes was raced");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* M2 */
static void raced_memory (void)
{
    struct bed bed = open_bed ();
    struct rm_piece piece = { 0 };
    NVOS00_PARAMETERS head = { .hRoot = bed.client, .hObjectOld = HANDLE + 1 };
    struct rm_call call = { .node = RM_NODE_CONTROL, .file = FILE_A, .request = FREE_REQUEST, .head = &head, .head_size = 16 };
    uint64_t bytes = 0;

    race (&bed, HANDLE, NV01_MEMORY_LOCAL_USER, bed.device, HANDLE + 1, 32 * MIB);
    tap_ok (rm_begin (bed.fake->rm, &call) == RM_PERFORM && rm_pieces (bed.fake->rm, bed.client, HANDLE + 1, &piece, 1) == 1 &&
                piece.bytes == 32 * MIB,
            "M2: memory that no record had is looked at like any other when it is freed");
    tap_ok (fake_charged (bed.fake, 0) == 32 * MIB, "and charged until then");
    fake_driver (bed.fake, FILE_A, FREE_REQUEST, &head, NULL, NULL);
    tap_ok (rm_piece_call_of (bed.fake->rm, &call, &bytes) == RM_FREES_PIECE && bytes == 32 * MIB,
            "its freeing is that of one piece");
    rm_end (bed.fake->rm, &call, 0);
    tap_ok (fake_charged (bed.fake, 0) == 0, "and no longer");
    tap_ok (fake_free (bed.fake, FILE_A, bed.client, HANDLE + 7) == NV_ERR_OBJECT_NOT_FOUND && bed.fake->decision == RM_PERFORM,
            "the freeing of what is not there is the driver's to answer");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* Entered beyond the quota it would be memory like any other, and nothing that only the driver reports: for that a process is ended (reconcile.c). */
static void raced_beyond_quota (void)
{
    struct bed bed = open_bed ();
    uint8_t params[16] = { 0 };

    race (&bed, HANDLE, NV01_MEMORY_LOCAL_USER, bed.device, HANDLE, 101 * MIB);
    fake_control (bed.fake, FILE_A, bed.client, bed.subdevice, 0x20800110, params, 16);
    tap_ok (fake_charged (bed.fake, 0) == 0 && !rm_has_object (bed.fake->rm, bed.client, HANDLE),
            "memory that was won beyond the quota does not enter the ledger by the next call");
    tap_ok (fake_free (bed.fake, FILE_A, bed.client, HANDLE) == NV_ERR_INSUFFICIENT_RESOURCES, "nor by its freeing");
    bed.fake->limit[0] = 102 * MIB;
    fake_control (bed.fake, FILE_A, bed.client, HANDLE, 0x00410110, params, 16);
    tap_ok (fake_charged (bed.fake, 0) == 101 * MIB, "within the quota it does");
    tap_ok (fake_free (bed.fake, FILE_A, bed.client, HANDLE) == 0 && fake_close (bed.fake), "nothing is left");
}

static bool is_unknown (struct fake *fake, uint32_t status, unsigned *before)
{
    return status == NV_ERR_OBJECT_NOT_FOUND && fake->decision == RM_REFUSED && fake->notes[RM_UNKNOWN_OBJECT] == ++*before;
}

static void unknown (void)
{
    struct bed bed = open_bed ();
    struct fake *fake = bed.fake;
    unsigned noted = fake->notes[RM_UNKNOWN_OBJECT], asked;
    NVOS57_PARAMETERS share = { .hClient = bed.client, .hObject = HANDLE };
    uint32_t handle = 0, other, device = HANDLE + 5;
    NV0080_ALLOC_PARAMETERS first = { 0 };
    uint8_t params[16] = { 0 };

    tap_ok (is_unknown (fake, fake_alloc (fake, FILE_A, bed.client, HANDLE, &handle, GF100_SUBDEVICE_MASTER, NULL, 0), &noted),
            "an ALLOC below an object that is not there is refused");
    tap_ok (is_unknown (fake, fake_control (fake, FILE_A, bed.client, HANDLE, 0x20800110, params, 16), &noted),
            "a CONTROL of it too");
    tap_ok (is_unknown (fake, fake_dup (fake, FILE_A, bed.client, bed.device, &handle, bed.client, HANDLE), &noted) &&
                is_unknown (fake, fake_dup (fake, FILE_A, bed.client, HANDLE, &handle, bed.client, bed.device), &noted),
            "a DUP of it, or below it");
    fake_call (fake, RM_NODE_CONTROL, FILE_A, SHARE_REQUEST, &share, NULL, 0, NULL, 0);
    tap_ok (is_unknown (fake, share.status, &noted), "and a SHARE");
    tap_ok (is_unknown (fake, fake_alloc (fake, FILE_A, 0xc1d0ffff, 0xc1d0ffff, &handle, NV20_SUBDEVICE_0, params, 4), &noted),
            "a client that is not there has nothing below it");

    other = fake_client (fake, FILE_A);
    tap_ok (!rm_has_object (fake->rm, other, other), "a client is not known by its own ALLOC, which is continued");
    asked = fake->handle_calls;
    fake_control (fake, FILE_A, other, other, 0x00000102, params, 16);
    tap_ok (rm_has_object (fake->rm, other, other) && fake->handle_calls == asked,
            "the first control on it that succeeds is the evidence");
    other = fake_client (fake, FILE_A);
    fake->next_status = NV_ERR_INVALID_CLIENT;
    fake_control (fake, FILE_A, other, other, 0x00000102, params, 16);
    tap_ok (!rm_has_object (fake->rm, other, other), "one that fails is none");
    fake_alloc (fake, FILE_A, other, other, &device, NV01_DEVICE_0, &first, sizeof (first));
    tap_ok (fake->decision == RM_CONTINUE && rm_has_object (fake->rm, other, other) && !rm_has_object (fake->rm, other, device),
            "it is asked about before something is made below it");
    asked = fake->handle_calls;
    fake_subdevice (fake, FILE_A, other, device);
    tap_ok (rm_has_object (fake->rm, other, device) && fake->handle_calls == asked + 1, "a device costs one question");
    fake_subdevice (fake, FILE_A, other, device);
    tap_ok (fake->handle_calls == asked + 1, "and only once");
    {
        uint64_t bytes = MIB;

        handle = 0;
        asked = fake->own_calls;
        fake_memory (fake, FILE_A, other, device, &handle, &bytes);
        fake_free (fake, FILE_A, other, handle);
        tap_ok (fake->own_calls == asked, "an allocation and its freeing cost none");
    }
    tap_ok (fake_close (fake), "nothing is left");
}

/* C7, and what no scheduler could reach */
static void channels (void)
{
    struct bed bed = open_bed ();
    struct fake *fake = bed.fake;
    uint32_t group = fake_group (fake, FILE_A, bed.client, bed.device, COMPUTE), copy = 0, bare, lone = 0, channel;
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS params = { .engineType = COMPUTE };
    union {
        NV_CHANNEL_ALLOC_PARAMS common;
        uint8_t room[FAKE_CHANNEL_PARAMS];
    } of_channel = { .room = { 0 } };

    tap_ok (fake_dup (fake, FILE_A, bed.client, bed.device, &copy, bed.client, group) == 0, "a group is duplicated");
    channel = fake_channel (fake, FILE_A, bed.client, copy);
    tap_ok (rm_groups (fake->rm, 0) == 1 && rm_channels (fake->rm, NULL, 0) == 1,
            "C7: a channel that is made through a duplicate of the group counts");
    of_channel.common.engineType = COMPUTE;
    fake_alloc (fake, FILE_A, bed.client, bed.device, &lone, HOPPER_CHANNEL_GPFIFO_A, &of_channel, sizeof (of_channel));
    tap_ok (rm_groups (fake->rm, 0) == 2, "C5: a channel without a group counts as a group");
    rm_set_timeslice (fake->rm, 0, 777);
    tap_ok (fake_find (fake, bed.client, lone)->slice == 777 && fake_find (fake, bed.client, copy)->slice == 777, "and is weighed");
    tap_ok (fake_free (fake, FILE_A, bed.client, bed.subdevice) == NV_ERR_IN_USE && fake->decision == RM_REFUSED,
            "the subdevice by which channels are stopped is not freed before them");
    rm_freeze (fake->rm, 0, true);
    tap_ok (frozen (fake) == 2, "so they are");
    rm_freeze (fake->rm, 0, false);
    fake_free (fake, FILE_A, bed.client, lone);
    fake_free (fake, FILE_A, bed.client, channel);
    tap_ok (fake_free (fake, FILE_A, bed.client, bed.subdevice) == 0, "afterwards it is");
    bare = fake_device (fake, FILE_A, bed.client, 0);
    copy = 0;
    tap_ok (fake_alloc (fake, FILE_A, bed.client, bare, &copy, KEPLER_CHANNEL_GROUP_A, &params, sizeof (params)) ==
                    NV_ERR_OBJECT_NOT_FOUND &&
                fake->decision == RM_REFUSED,
            "without a subdevice there is no group");
    tap_ok (fake_close (fake), "nothing is left");
}

/* M3, M5, M6 */
static void charges (void)
{
    struct bed bed = open_bed ();
    struct fake *fake = bed.fake, *lender = fake_open (VERSION, RM_POSTURE_GUARD);
    uint32_t handles[3] = { 0 }, copy = 0, group;
    uint64_t bytes = 4096;
    struct fake_object *foreign;

    for (unsigned i = 0; i < 3; i++)
        fake_memory (fake, FILE_A, bed.client, bed.device, &handles[i], &bytes);
    tap_ok (fake_charged (fake, 0) == 3 * 64 * 1024 && rm_reported (fake->rm, FILE_A, 0) == 3 * 4096,
            "M5: pieces of 4 KiB are charged what they take, 64 KiB each, and compared with what the driver reports");
    for (unsigned i = 0; i < 3; i++)
        fake_free (fake, FILE_A, bed.client, handles[i]);
    tap_ok (fake_charged (fake, 0) == 0 && rm_reported (fake->rm, FILE_A, 0) == 0, "and refunded so");

    group = fake_group (fake, FILE_A, bed.client, bed.device, COMPUTE);
    tap_ok (fake_charged (fake, 0) == CONTEXT && rm_reported (fake->rm, FILE_A, 0) == 0, "M6: a group's context is charged");
    for (unsigned i = 0; i < 100 && fake_group (fake, FILE_A, bed.client, bed.device, COMPUTE) != 0; i++)
        continue;
    tap_ok (fake->notes[RM_OVER_QUOTA] == 1 && fake_charged (fake, 0) <= 100 * MIB,
            "there are no more of them than the quota has room for");
    fake_free (fake, FILE_A, bed.client, bed.device);
    tap_ok (group != 0 && fake_charged (fake, 0) == 0, "and they are refunded");

    /* Another tenant's: its client is in the driver and in no record. */
    bed.device = fake_device (fake, FILE_A, bed.client, 0);
    bed.subdevice = fake_subdevice (fake, FILE_A, bed.client, bed.device);
    {
        NVOS64_PARAMETERS head = { .hClass = NV01_ROOT_CLIENT };
        NV0080_ALLOC_PARAMETERS device = { 0 };
        struct fake_memory_params memory = { .common.size = 60 * MIB };
        uint32_t client;

        fake_driver (fake, FILE_B, ALLOC_REQUEST, &head, NULL, NULL);
        client = head.hObjectNew;
        head = (NVOS64_PARAMETERS) { .hRoot = client, .hObjectParent = client, .hObjectNew = 1, .hClass = NV01_DEVICE_0 };
        fake_driver (fake, FILE_B, ALLOC_REQUEST, &head, &device, NULL);
        head = (NVOS64_PARAMETERS) { .hRoot = client, .hObjectParent = 1, .hObjectNew = 2, .hClass = NV01_MEMORY_LOCAL_USER };
        fake_driver (fake, FILE_B, ALLOC_REQUEST, &head, &memory, NULL);
        foreign = fake_find (fake, client, 2);
    }
    tap_ok (fake_dup (fake, FILE_A, bed.client, bed.device, &copy, foreign->client, 2) == 0 && fake_charged (fake, 0) == 60 * MIB,
            "M3: a duplicate of another tenant's memory is charged to the tenant that has it");
    {
        struct rm_piece piece;
        uint32_t second = 0;

        tap_ok (rm_pieces (fake->rm, bed.client, copy, &piece, 1) == 1, "and looked at when it is freed");
        tap_ok (fake_dup (fake, FILE_A, bed.client, bed.device, &second, foreign->client, 2) == NV_ERR_NO_MEMORY &&
                    fake_find (fake, bed.client, second) == NULL && fake_charged (fake, 0) == 60 * MIB,
                "beyond the quota it is given back, and refused");
    }
    tap_ok (fake_close (fake) && fake_close (lender), "nothing is left");
}

/* libcuda's first calls on a client are controls on the client itself. */
static void confirmed_by_control (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    uint32_t first = fake_client (fake, FILE_A), second = fake_client (fake, FILE_A);

    tap_ok (rm_unconfirmed (fake->rm) == 2, "two clients that the caller makes are unconfirmed");
    fake_control (fake, FILE_A, first + 0x1000, first + 0x1000, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, NULL, 0);
    tap_ok (fake->decision == RM_PERFORM && rm_unconfirmed (fake->rm) == 2, "a control that fails confirms none");
    fake_control (fake, FILE_A, first, first, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, NULL, 0);
    fake_control (fake, FILE_A, first, first, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, NULL, 0);
    tap_ok (rm_unconfirmed (fake->rm) == 1, "a control that succeeds confirms its client, once");
    fake_control (fake, FILE_A, second, second, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, NULL, 0);
    tap_ok (rm_unconfirmed (fake->rm) == 0, "and one on the other client the other");
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    phantoms ();
    raced ();
    raced_memory ();
    raced_beyond_quota ();
    unknown ();
    channels ();
    charges ();
    confirmed_by_control ();
    return tap_done ();
}
