/* The driver reserves page tables for the length that a call names, in video memory, before it looks at bounds (rm/page_tables.h). */
#include "rm/nv_params.h"
#include "rm_fake.h"
#include "tap.h"

#define VERSION "580.159.04"
#define FILE_A 1
#define GIB (MIB << 10)
#define COUNT(rows) (sizeof (rows) / sizeof ((rows)[0]))
/* What no call may make the driver reserve, of the whole GPU: an H100 had 2 GiB less after a mapping of 1 TiB with status 0x2e (580.159.04). */
#define MOST (128 * MIB)

static struct fake *fake;
static uint32_t client, device, space;

static void open_version (const char *version)
{
    NV0080_ALLOC_PARAMETERS params = { 0 };

    fake = fake_open (version, RM_POSTURE_GUARD);
    fake->limit[0] = 10 * GIB;
    client = params.hClientShare = fake_client (fake, FILE_A);
    device = 0x10;
    (void) fake_alloc (fake, FILE_A, client, client, &device, NV01_DEVICE_0, &params, sizeof (params));
    (void) fake_subdevice (fake, FILE_A, client, device);
    space = fake_space (fake, FILE_A, client, device);
}

/* Without tables at once. */
static uint32_t whole_range (void)
{
    NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS params = { .hVASpace = space };
    uint32_t handle = 0;

    (void) fake_alloc (fake, FILE_A, client, device, &handle, 0x70, &params, sizeof (params));
    return handle;
}

static uint32_t map (uint32_t range, uint32_t memory, uint64_t offset, uint64_t length)
{
    NVOS46_PARAMETERS head = {
        .hClient = client, .hDevice = device, .hDma = range, .hMemory = memory, .offset = offset, .length = length
    };

    fake_call (fake, RM_NODE_CONTROL, FILE_A, NV_REQUEST (NV_ESC_RM_MAP_MEMORY_DMA, sizeof (head)), &head, NULL, 0, NULL, 0);
    return head.status;
}

static uint32_t map_before_580 (uint32_t range, uint32_t memory, uint64_t length)
{
    NVOS46_PARAMETERS_535 head = { .hClient = client, .hDevice = device, .hDma = range, .hMemory = memory, .length = length };

    fake_call (fake, RM_NODE_CONTROL, FILE_A, NV_REQUEST (NV_ESC_RM_MAP_MEMORY_DMA, sizeof (head)), &head, NULL, 0, NULL, 0);
    return head.status;
}

static uint32_t heap_of (uint32_t function, uint32_t flags, uint64_t bytes, uint32_t *handle)
{
    NVOS32_PARAMETERS head = { .hRoot = client, .hObjectParent = device, .function = function, .hVASpace = space };

    head.data.AllocSize.flags = flags | NVOS32_ALLOC_FLAGS_VIRTUAL;
    if (function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE)
        head.data.AllocSizeRange.size = bytes;
    else if (function == NVOS32_FUNCTION_ALLOC_SIZE)
        head.data.AllocSize.size = bytes;
    else {
        head.data.AllocTiledPitchHeight.height = (uint32_t) (bytes >> 31);
        head.data.AllocTiledPitchHeight.pitch = INT32_MIN; /* the driver extends its sign to 64 bits */
    }
    fake_call (fake, RM_NODE_CONTROL, FILE_A, HEAP_REQUEST, &head, NULL, 0, NULL, 0);
    *handle = head.data.AllocSize.hMemory;
    return head.status;
}

static uint32_t heap (uint32_t flags, uint64_t bytes, uint32_t *handle)
{
    return heap_of (NVOS32_FUNCTION_ALLOC_SIZE, flags, bytes, handle);
}

static uint32_t object (uint32_t flags, uint64_t bytes, uint32_t *handle)
{
    struct fake_memory_params params = { .common = {
                                             .flags = flags | NVOS32_ALLOC_FLAGS_VIRTUAL, .size = bytes, .hVASpace = space } };

    *handle = 0;
    return fake_alloc (fake, FILE_A, client, device, handle, NV50_MEMORY_VIRTUAL, &params, sizeof (params));
}

/* Attack: a mapping longer than what it maps. */
static void mappings (void)
{
    uint32_t video = 0, system = 0, range;
    uint64_t bytes = 4 * GIB;
    bool all = true;

    open_version (VERSION);
    range = whole_range ();
    tap_ok (fake_memory (fake, FILE_A, client, device, &video, &bytes) == 0, "a piece of video memory");
    fake_make (fake, FILE_A, client, device, &system, NV01_MEMORY_SYSTEM, NULL, NULL); /* continued, as ALLOC_MEMORY is */
    tap_ok (map (range, video, 0, bytes) == 0 && map (range, video, 3 * GIB, GIB) == 0 && fake->mappings == 2,
            "all of it is mapped");
    tap_ok (map (range, system, 0, 64 * GIB) == 0 && map (range, system, UINT64_MAX, 1) == 0 && fake->mappings == 4,
            "and what the ledger has no size of, up to 64 GiB: the driver looks at its bounds");
    fake->mappings = 0;
    tap_ok (map (range, video, 0, bytes + 1) == NV_ERR_INVALID_LIMIT && map (range, video, 3 * GIB + 1, GIB) != 0 &&
                map (range, video, bytes + 1, 0) != 0 && fake->decision == RM_REFUSED && fake->mappings == 0,
            "not a byte more of a piece");
    for (unsigned bit = 20; bit < 64; bit++) {
        uint64_t length = (uint64_t) 1 << bit;

        all &= length <= bytes || map (range, video, 0, length) != 0;
        all &= map (range, video, bytes - length / 2, length) != 0 || length / 2 > bytes;
        all &= map (range, video, -length, length) != 0 && map (range, video, MIB, -length) != 0; /* the sum is 0, or small */
        all &= length <= 64 * GIB || map (range, system, 0, length) != 0;
        all &= length <= 64 * GIB || map (range, range, 0, length) != 0;
    }
    tap_ok (all, "nor a sum that wraps, nor more than 64 GiB of anything");
    tap_ok (map (range, system, 0, 64 * GIB + 1) != 0 && map (range, video, 0, UINT64_MAX) != 0, "by one byte");
    tap_ok (fake->pool <= MOST, "so the driver reserves little");
    tap_ok (fake_close (fake), "nothing is left");
    open_version ("535.161.08");
    range = whole_range ();
    tap_ok (fake_memory (fake, FILE_A, client, device, &video, &bytes) == 0 && map_before_580 (range, video, bytes) == 0 &&
                map_before_580 (range, video, bytes + 1) == NV_ERR_INVALID_LIMIT,
            "the shorter struct before 580");
    tap_ok (fake_close (fake), "nothing is left");
}

static uint32_t (*const makers[]) (uint32_t flags, uint64_t bytes, uint32_t *handle) = { heap, object };

/* Attack: ranges that keep page tables for all of their length. */
static void ranges (void)
{
    uint32_t handle, copy, last = 0;

    for (size_t i = 0; i < COUNT (makers); i++) {
        bool all = true;
        unsigned count = 0;

        open_version (VERSION);
        for (unsigned bit = 37; bit < 64; bit++)
            all &= makers[i](0, (uint64_t) 1 << bit, &handle) == NV_ERR_NO_MEMORY &&
                   makers[i](NVOS32_ALLOC_FLAGS_SPARSE, (uint64_t) 1 << bit, &handle) != 0 &&
                   makers[i](NVOS32_ALLOC_FLAGS_SPARSE | NVOS32_ALLOC_FLAGS_LAZY, (uint64_t) 1 << bit, &handle) != 0;
        all &= makers[i](0, UINT64_MAX, &handle) != 0 && makers[i](0, 64 * GIB + 1, &handle) != 0;
        tap_ok (all && fake->pool == 0, "a range is not longer than 64 GiB");
        tap_ok (makers[i](NVOS32_ALLOC_FLAGS_LAZY, 1024 * GIB, &handle) == 0 &&
                    makers[i](NVOS32_ALLOC_FLAGS_EXTERNALLY_MANAGED, 1024 * GIB, &handle) == 0 &&
                    makers[i](NVOS32_ALLOC_FLAGS_SPARSE, 64 * GIB, &handle) == 0 && fake_charged (fake, 0) == 0,
                "one that reserves no tables, or keeps none, is not charged");
        while (count < 1000 && makers[i](0, 64 * GIB, &handle) == 0) {
            count++;
            last = handle;
        }
        tap_ok (count == 80 && fake_charged (fake, 0) == 10 * GIB && fake->pool <= MOST, "80 of 64 GiB fill a quota of 10 GiB");
        tap_ok (fake_free (fake, FILE_A, client, last) == 0 && fake_charged (fake, 0) == 10 * GIB - 128 * MIB,
                "a FREE gives it back");
        fake->next_status = NV_ERR_INSUFFICIENT_RESOURCES;
        tap_ok (makers[i](0, 64 * GIB, &handle) != 0 && fake_charged (fake, 0) == 10 * GIB - 128 * MIB,
                "so does the driver's refusal");
        copy = 0;
        tap_ok (makers[i](0, 32 * GIB, &handle) == 0 && fake_dup (fake, FILE_A, client, device, &copy, client, handle) == 0 &&
                    fake_free (fake, FILE_A, client, handle) == 0 && fake_charged (fake, 0) == 10 * GIB - 64 * MIB,
                "a duplicate is charged the same: it keeps the tables");
        handle = 0;
        tap_ok (fake_dup (fake, FILE_A, client, device, &handle, client, copy) == 0 && fake_charged (fake, 0) == 10 * GIB,
                "its own duplicate too");
        last = 0;
        tap_ok (fake_dup (fake, FILE_A, client, device, &last, client, handle) == NV_ERR_NO_MEMORY && fake->decision == RM_REFUSED,
                "while there is room");
        (void) fake_free (fake, FILE_A, client, handle);
        fake->next_status = NV_ERR_INVALID_STATE;
        tap_ok (fake_dup (fake, FILE_A, client, device, &last, client, copy) == NV_ERR_INVALID_STATE &&
                    fake_charged (fake, 0) == 10 * GIB - 64 * MIB,
                "one that the driver refuses is not charged");
        tap_ok (fake_close (fake), "nothing is left");
    }
    open_version (VERSION);
    tap_ok (heap_of (NVOS32_FUNCTION_ALLOC_SIZE_RANGE, 0, 1024 * GIB, &handle) == NV_ERR_NO_MEMORY &&
                heap_of (NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT, 0, 1024 * GIB, &handle) == NV_ERR_NO_MEMORY &&
                heap_of (NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT, 0, 2 * GIB, &handle) == NV_ERR_NO_MEMORY && fake->pool == 0,
            "by the other functions too");
    tap_ok (heap_of (NVOS32_FUNCTION_ALLOC_SIZE_RANGE, 0, GIB, &handle) == 0 && fake_charged (fake, 0) == 2 * MIB,
            "a range by them is charged, too");
    fake->grant = 2 * GIB;
    tap_ok (heap (0, GIB, &handle) == 0 && fake_charged (fake, 0) == 6 * MIB && fake_free (fake, FILE_A, client, handle) == 0 &&
                fake_charged (fake, 0) == 2 * MIB,
            "of what the driver made longer, all is charged");
    tap_ok (fake_close (fake), "nothing is left");
}

/* What was seen on an H100 (580.159.04, 2026-11-27): flags but VIRTUAL, and bytes. Vulkan's device and 256 MiB of its types of memory; CUDA's context and
 * an NVDEC decoder, in the last two. */
static const struct {
    uint32_t flags;
    uint64_t bytes;
} seen[] = {
    { 0x20000, 0x1000 },       { 0x20000, 0x13000 },       { 0x20000, 0x80000 }, { 0x20000, 0x600000 },  { 0x20100, 0x10000 },
    { 0x20100, 0x10000000 },   { 0x20000, 0x10000000 },    { 0x110, 0x10000 },   { 0x402c10d, 0x20000 }, { 0x402c10d, 0x2000000 },
    { 0x402c10d, 0x10000000 }, { 0x402c10d, 0x100000000 }, { 0xc100, 0x30000 },  { 0xc415, 0xfb000000 },
};
static const uint64_t lengths[] = { 0xb0, 0x1000, 0x28000, 0x2fd000, 0x3fc000, 0x600000, 0x10000000 };

static void programs (void)
{
    uint32_t handle, system = 0, video = 0, range;
    bool all = true;

    open_version (VERSION);
    fake->limit[0] = GIB;
    for (size_t i = 0; i < COUNT (seen); i++)
        for (size_t k = 0; k < COUNT (makers); k++)
            all &= makers[k](seen[i].flags, seen[i].bytes, &handle) == 0;
    tap_ok (all && fake_charged (fake, 0) < 4 * MIB, "ranges that programs make");
    range = whole_range ();
    fake_make (fake, FILE_A, client, device, &system, NV01_MEMORY_SYSTEM, NULL, NULL);
    for (size_t i = 0; i < COUNT (lengths); i++) {
        uint64_t bytes = lengths[i];

        video = 0;
        all &= map (range, system, 0, lengths[i]) == 0 && fake_memory (fake, FILE_A, client, device, &video, &bytes) == 0 &&
               map (range, video, 0, lengths[i]) == 0;
    }
    tap_ok (all, "and mappings");
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    mappings ();
    ranges ();
    programs ();
    return tap_done ();
}
