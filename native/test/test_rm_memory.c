/* Admission: one test a rule of how memory is charged and given back. More than one handle: test_rm_references.c. */
#include "rm_bench.h"
#include "rm/state.h"
#include "tap.h"

#include <string.h>

static void quota (void)
{
    struct bench b = bench (100 * MIB);
    uint32_t first, second, third;
    uint64_t bytes = 10 * MIB + 1;
    struct fake_memory_params params = { 0 };
    NVOS21_PARAMETERS head = { 0 };

    tap_ok (b.fake->gid_calls == 1 && take (&b, 60 * MIB, &first) == 0 && fake_charged (b.fake, 0) == 60 * MIB,
            "rm asks for a subdevice's UUID by itself, and charges its GPU");
    tap_ok (take (&b, 41 * MIB, &second) == NV_ERR_NO_MEMORY && b.fake->decision == RM_REFUSED &&
                b.fake->notes[RM_OVER_QUOTA] == 1 && fake_charged (b.fake, 0) == 60 * MIB &&
                b.fake->last_noted == NV01_MEMORY_LOCAL_USER,
            "over the quota the answer is status 0x51, the driver is not asked and nothing is charged");
    tap_ok (take (&b, 40 * MIB, &second) == 0 && take (&b, 1, &third) == NV_ERR_NO_MEMORY,
            "the quota can be used to its last byte");
    tap_ok (fake_free (b.fake, FILE_A, b.client, first) == 0 && fake_charged (b.fake, 0) == 40 * MIB && even (&b),
            "FREE gives the bytes back");
    b.fake->granule = 2 * MIB;
    tap_ok (fake_memory (b.fake, FILE_A, b.client, b.device, &(uint32_t) { 0 }, &bytes) == 0 && bytes == 12 * MIB &&
                fake_charged (b.fake, 0) == 52 * MIB,
            "the size that counts is the one that the driver granted, not the one asked for");
    b.fake->grant = MIB;
    tap_ok (take (&b, 5 * MIB, &third) == 0 && fake_charged (b.fake, 0) == 53 * MIB && even (&b),
            "what was reserved and not granted is given back");
    fake_free (b.fake, FILE_A, b.client, third);
    b.fake->grant = 0;
    b.fake->granule = 64 * MIB;
    tap_ok (take (&b, 1, &third) == 0 && fake_charged (b.fake, 0) == 116 * MIB && even (&b),
            "more granted than the quota has left is charged nevertheless, for it is there");
    tap_ok (take (&b, 1, &third) == NV_ERR_NO_MEMORY, "and the next allocation is refused");
    fake_free (b.fake, FILE_A, b.client, third);
    b.fake->granule = 1;
    b.fake->limit[0] = 0;
    tap_ok (take (&b, 0, &third) == 0 && even (&b), "an allocation of no bytes charges nothing");
    tap_ok (take (&b, UINT64_MAX, &third) == NV_ERR_NO_MEMORY && take (&b, UINT64_MAX - 100, &third) == NV_ERR_NO_MEMORY &&
                take (&b, (uint64_t) 1 << 63, &third) == NV_ERR_NO_MEMORY && even (&b),
            "sizes near 2^64 are refused before a sum can wrap");
    b.fake->next_status = NV_ERR_INSUFFICIENT_RESOURCES;
    tap_ok (take (&b, MIB, &third) == NV_ERR_INSUFFICIENT_RESOURCES && even (&b), "what the driver refuses is given back");
    head.hRoot = b.client;
    head.hObjectParent = b.device;
    head.hClass = NV01_MEMORY_LOCAL_USER;
    head.pAllocParms = (uint64_t) (uintptr_t) &params;
    params.common.size = 3 * MIB;
    fake_call (b.fake, RM_NODE_CONTROL, FILE_A, SHORT_ALLOC_REQUEST, &head, &params, 128, NULL, 0);
    tap_ok (head.status == 0 && head.hObjectNew != 0 && even (&b) && fake_charged (b.fake, 0) >= 3 * MIB,
            "the short form of ALLOC (NVOS21) counts too, and a handle of 0 is the driver's to choose");
    tap_ok (fake_close (b.fake), "rm_destroy refunds everything and gives the memory back");
}

static void trees (void)
{
    struct bench b = bench (0);
    uint32_t handle, child = 0, range;
    uint8_t params[4] = { 0 };
    uint64_t bytes = MIB;

    take (&b, 5 * MIB, &handle);
    range = 0;
    fake_alloc (b.fake, FILE_A, b.client, b.subdevice, &range, NV2081_BINAPI, params, 4);
    fake_memory (b.fake, FILE_A, b.client, range, &child, &bytes);
    tap_ok (fake_charged (b.fake, 0) == 6 * MIB && fake_free (b.fake, FILE_A, b.client, b.subdevice) == 0 &&
                fake_charged (b.fake, 0) == 5 * MIB && even (&b),
            "FREE of an object frees all below it");
    tap_ok (fake_free (b.fake, FILE_A, b.client, b.device) == 0 && fake_charged (b.fake, 0) == 0 && even (&b),
            "FREE of the device frees its memory");
    b.device = fake_device (b.fake, FILE_A, b.client, 0);
    take (&b, 5 * MIB, &handle);
    tap_ok (fake_charged (b.fake, 0) == 5 * MIB, "a device of an instance that is known needs no subdevice");
    b.fake->next_status = NV_ERR_INVALID_ARGUMENT;
    tap_ok (fake_free (b.fake, FILE_A, b.client, handle) == NV_ERR_INVALID_ARGUMENT && fake_charged (b.fake, 0) == 5 * MIB,
            "a FREE that the driver refuses gives nothing back");
    tap_ok (fake_free (b.fake, FILE_A, b.client, b.client) == 0 && fake_charged (b.fake, 0) == 0 && even (&b),
            "FREE of the client frees all that it had");
    b.client = fake_client (b.fake, FILE_A);
    b.device = fake_device (b.fake, FILE_A, b.client, 0);
    take (&b, 7 * MIB, &handle);
    tap_ok (fake_free (b.fake, FILE_A, 0, b.client) == 0 && fake_charged (b.fake, 0) == 0 && even (&b),
            "a client may free itself with hRoot left out");
    b.client = fake_client (b.fake, FILE_A);
    b.device = fake_device (b.fake, FILE_A, b.client, 0);
    take (&b, 7 * MIB, &handle);
    fake_close_file (b.fake, FILE_B);
    tap_ok (fake_charged (b.fake, 0) == 7 * MIB, "closing another file changes nothing");
    fake_close_file (b.fake, FILE_A);
    tap_ok (fake_charged (b.fake, 0) == 0 && even (&b), "the last close of a file frees its clients");
    tap_ok (fake_close (b.fake), "nothing is left");
}

static void keys (void)
{
    struct bench b = bench (0);
    uint32_t other = fake_client (b.fake, FILE_B), device = fake_device (b.fake, FILE_B, other, 1), same = 0x77, copy;
    uint64_t first = 3 * MIB, second = 4 * MIB;

    fake_subdevice (b.fake, FILE_B, other, device);
    fake_memory (b.fake, FILE_A, b.client, b.device, &same, &first);
    copy = same;
    fake_memory (b.fake, FILE_B, other, device, &copy, &second);
    tap_ok (copy == same && fake_charged (b.fake, 0) == 3 * MIB && fake_charged (b.fake, 1) == 4 * MIB,
            "objects are known by client and handle: two clients may use the same handle, on two GPUs");
    fake_free (b.fake, FILE_B, other, same);
    tap_ok (fake_charged (b.fake, 0) == 3 * MIB && fake_charged (b.fake, 1) == 0 && even (&b), "and free them apart");
    tap_ok (fake_close (b.fake), "nothing is left");
}

/* Two threads: the driver has freed a handle and given it out again before the first thread comes back. */
static void handles_again (void)
{
    struct bench b = bench (0);
    NVOS00_PARAMETERS head = { 0 };
    struct rm_call call = { .node = RM_NODE_CONTROL, .file = FILE_A, .request = FREE_REQUEST, .head = &head, .head_size = 16 };
    uint32_t handle = 0x99;
    uint64_t bytes = MIB;

    fake_memory (b.fake, FILE_A, b.client, b.device, &handle, &bytes);
    head.hRoot = b.client;
    head.hObjectOld = handle;
    rm_begin (b.fake->rm, &call);
    fake_driver (b.fake, FILE_A, call.request, &head, NULL, NULL);
    bytes = 5 * MIB;
    fake_memory (b.fake, FILE_A, b.client, b.device, &handle, &bytes);
    rm_end (b.fake->rm, &call, 0);
    tap_ok (fake_charged (b.fake, 0) == 5 * MIB && even (&b),
            "a handle that was given out again during a FREE belongs to the new object");
    tap_ok (fake_close (b.fake), "nothing is left");
}

static void unknown_gpu (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_SHIM);
    uint32_t client = fake_client (fake, FILE_A), device = fake_device (fake, FILE_A, client, 0), handle = 0;
    uint32_t second = fake_device (fake, FILE_A, client, 0), foreign = fake_device (fake, FILE_A, client, 2);
    uint64_t bytes = 6 * MIB, more = 3 * MIB;

    fake->limit[0] = 8 * MIB;
    tap_ok (fake_memory (fake, FILE_A, client, device, &handle, &bytes) == 0 && fake_charged (fake, 0) == 0 && fake->own_calls == 0,
            "memory of a device whose GPU is not known yet is let through");
    handle = 0;
    fake_memory (fake, FILE_A, client, second, &handle, &more);
    fake->no_gid = true;
    fake_subdevice (fake, FILE_A, client, device);
    tap_ok (fake->gid_calls == 1 && fake_charged (fake, 0) == 0, "a subdevice that does not tell its UUID changes nothing");
    fake->no_gid = false;
    fake_subdevice (fake, FILE_A, client, device);
    tap_ok (fake_charged (fake, 0) == 9 * MIB && fake_bytes (fake, 0) == 9 * MIB,
            "it is charged when a subdevice tells the GPU, over the limit too, under every device of that instance");
    fake_subdevice (fake, FILE_A, client, foreign);
    handle = 0;
    bytes = 100 * MIB;
    tap_ok (fake_memory (fake, FILE_A, client, foreign, &handle, &bytes) == 0 && fake_charged (fake, 0) == 9 * MIB,
            "memory of a GPU that the share does not name is not charged");
    tap_ok (fake_close (fake), "nothing is left");
}

static void lazily (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_SHIM);
    struct rm_totals totals;
    uint32_t client = 0, device;
    NVOS64_PARAMETERS head = { 0 };

    /* The driver alone makes the client: rm has not seen it. */
    head.hClass = NV01_ROOT_CLIENT;
    fake_driver (fake, FILE_A, ALLOC_REQUEST, &head, NULL, NULL);
    client = head.hObjectNew;
    device = fake_device (fake, FILE_A, client, 0);
    fake_subdevice (fake, FILE_A, client, device);
    rm_totals (fake->rm, &totals);
    tap_ok (totals.clients == 1 && totals.objects == 3, "a client is known from the first handle that works on a file");
    fake_close_file (fake, FILE_A);
    rm_totals (fake->rm, &totals);
    tap_ok (totals.clients == 0 && totals.objects == 0, "and goes with the file");
    tap_ok (fake_close (fake), "nothing is left");
}

/* The legacy heap: function, flags, attributes. */
static uint32_t heap (struct bench *b, uint32_t function, uint32_t attributes, uint32_t flags, uint64_t bytes,
                      NVOS32_PARAMETERS *head)
{
    *head = (NVOS32_PARAMETERS) { .hRoot = b->client, .hObjectParent = b->device, .function = function };
    head->data.AllocSize.flags = flags;
    if (function == NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT) {
        head->data.AllocTiledPitchHeight.attr = attributes;
        head->data.AllocTiledPitchHeight.height = 1024;
        head->data.AllocTiledPitchHeight.pitch = (int32_t) (bytes / 1024);
    } else {
        head->data.AllocSize.attr = attributes;
        if (function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE)
            head->data.AllocSizeRange.size = bytes;
        else
            head->data.AllocSize.size = bytes;
    }
    fake_call (b->fake, RM_NODE_CONTROL, FILE_A, HEAP_REQUEST, head, NULL, 0, NULL, 0);
    return head->status;
}

static void legacy (void)
{
    struct bench b = bench (100 * MIB);
    NVOS32_PARAMETERS head;
    nv_ioctl_nvos02_parameters_with_fd window = { 0 };
    uint32_t handle;

    tap_ok (heap (&b, NVOS32_FUNCTION_ALLOC_SIZE, 0, 0, 10 * MIB, &head) == 0 && fake_charged (b.fake, 0) == 10 * MIB,
            "the old heap's function 2 is charged");
    handle = head.data.AllocSize.hMemory;
    tap_ok (heap (&b, NVOS32_FUNCTION_ALLOC_SIZE_RANGE, 0, 0, 20 * MIB, &head) == 0 &&
                heap (&b, NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT, 0, 0, 30 * MIB, &head) == 0 &&
                fake_charged (b.fake, 0) == 60 * MIB && even (&b),
            "functions 14 and 6 too, by their own layouts");
    tap_ok (heap (&b, NVOS32_FUNCTION_ALLOC_SIZE, 0, 0, 41 * MIB, &head) == NV_ERR_NO_MEMORY && b.fake->decision == RM_REFUSED,
            "and refused over the quota");
    tap_ok (heap (&b, NVOS32_FUNCTION_ALLOC_SIZE, 0x2000000, 0, 90 * MIB, &head) == 0 &&
                heap (&b, NVOS32_FUNCTION_ALLOC_SIZE, 0, NVOS32_ALLOC_FLAGS_VIRTUAL, 90 * MIB, &head) == 0 &&
                fake_charged (b.fake, 0) == 60 * MIB,
            "system memory and address ranges of the old heap are not charged");
    heap (&b, NVOS32_FUNCTION_INFO, 0, 0, 0, &head);
    tap_ok (head.total == 100 * MIB && head.free == 40 * MIB && head.data.Info.size == 40 * MIB,
            "its function 5 answers with the share's numbers");
    head = (NVOS32_PARAMETERS) { .hRoot = b.client, .function = NVOS32_FUNCTION_FREE, .data.Free.hMemory = handle };
    fake_call (b.fake, RM_NODE_CONTROL, FILE_A, HEAP_REQUEST, &head, NULL, 0, NULL, 0);
    tap_ok (fake_charged (b.fake, 0) == 50 * MIB && even (&b), "its function 3 gives back");
    tap_ok (heap (&b, NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT, 0, 0, UINT64_MAX, &head) == NV_ERR_NO_MEMORY &&
                heap (&b, NVOS32_FUNCTION_ALLOC_SIZE_RANGE, 0, 0, UINT64_MAX, &head) == NV_ERR_NO_MEMORY && even (&b),
            "sizes that wrap are refused there too");
    window.params.hRoot = b.client;
    window.params.hObjectParent = b.device;
    window.params.hClass = NV01_MEMORY_LOCAL_USER;
    fake_call (b.fake, RM_NODE_CONTROL, FILE_A, ALLOC_MEMORY_REQUEST, &window, NULL, 0, NULL, 0);
    tap_ok (window.params.status == 0 && window.params.limit == 100 * MIB - 1 && even (&b),
            "ALLOC_MEMORY of class 0x40 is a question about the memory's size, answered with the share's");
    tap_ok (fake_close (b.fake), "nothing is left");
}

/* The driver frees any object by function 3. */
static void freed_by_heap (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    uint32_t client = fake_client (fake, FILE_A), device = fake_device (fake, FILE_A, client, 0);
    uint32_t named[] = { fake_subdevice (fake, FILE_A, client, device), fake_group (fake, FILE_A, client, device, 1), device,
                         client };
    bool any = false;

    for (unsigned i = 0; i < sizeof (named) / sizeof (named[0]); i++) {
        NVOS32_PARAMETERS head = { .hRoot = client, .function = NVOS32_FUNCTION_FREE, .data.Free.hMemory = named[i] };

        fake_call (fake, RM_NODE_CONTROL, FILE_A, HEAP_REQUEST, &head, NULL, 0, NULL, 0);
        any |= fake->decision != RM_REFUSED || head.status == 0 || !rm_has_object (fake->rm, client, named[i]);
    }
    tap_ok (!any && fake->notes[RM_FORBIDDEN_ESCAPE] == 4, "a subdevice, a group, a device or a client is not freed by it");
    tap_ok (fake_close (fake), "nothing is left");
}

static void forgotten (void)
{
    struct bench b = bench (100 * MIB);
    struct fake_memory_params params = { 0 };
    NVOS64_PARAMETERS head = { 0 };
    struct rm_call call = { .node = RM_NODE_CONTROL,
                            .file = FILE_A,
                            .request = ALLOC_REQUEST,
                            .head = &head,
                            .head_size = 48,
                            .params = &params,
                            .params_size = 128 };

    head.hRoot = b.client;
    head.hObjectParent = b.device;
    head.hClass = NV01_MEMORY_LOCAL_USER;
    head.pAllocParms = (uint64_t) (uintptr_t) &params;
    params.common.size = 9 * MIB;
    tap_ok (rm_begin (b.fake->rm, &call) == RM_PERFORM && fake_charged (b.fake, 0) == 9 * MIB,
            "bytes are reserved before the driver is asked");
    rm_forget_call (b.fake->rm, &call);
    tap_ok (fake_charged (b.fake, 0) == 0, "and come back when the call is never made");
    rm_begin (b.fake->rm, &call);
    rm_end (b.fake->rm, &call, -14);
    tap_ok (fake_charged (b.fake, 0) == 0, "or when the ioctl itself fails");
    b.fake->allocate_fail = 1;
    tap_ok (fake_close (b.fake), "nothing is left");
}

/* Steps, not seconds: chains of the table stay short however many objects live. */
static void many (void)
{
    struct bench b = bench (0);
    const struct table *table;
    size_t longest = 0;
    NVOS64_PARAMETERS head;
    NVOS00_PARAMETERS freed;
    struct rm_call call = { .node = RM_NODE_CONTROL, .file = FILE_A, .request = ALLOC_REQUEST, .head = &head };

    for (uint32_t i = 0; i < 100000; i++) {
        head = (NVOS64_PARAMETERS) {
            .hRoot = b.client,
            .hObjectParent = b.device,
            .hObjectNew = 0x60000000 + i,
            .hClass = NV01_MEMORY_SYSTEM,
        };
        call.head_size = sizeof (head);
        rm_begin (b.fake->rm, &call);
        rm_end (b.fake->rm, &call, 0);
    }
    table = &b.fake->rm->objects;
    for (size_t i = 0; i < table->capacity; i++) {
        size_t length = 0;

        for (const struct link *at = table->buckets[i]; at != NULL; at = at->next)
            length++;
        longest = length > longest ? length : longest;
    }
    tap_ok (table->count == 100003 && table->capacity >= table->count && longest <= 12,
            "with 100 000 objects a look-up takes a handful of steps");
    call.request = FREE_REQUEST;
    call.head = &freed;
    for (uint32_t i = 0; i < 100000; i++) {
        freed = (NVOS00_PARAMETERS) { .hRoot = b.client, .hObjectOld = 0x60000000 + i * 7919 % 100000 };
        call.head_size = sizeof (freed);
        rm_begin (b.fake->rm, &call);
        rm_end (b.fake->rm, &call, 0);
    }
    tap_ok (table->count == 3 && b.fake->blocks < 200, "and they come and go in a few hundred blocks of memory");
    tap_ok (fake_close (b.fake), "nothing is left");
}

int main (void)
{
    quota ();
    trees ();
    keys ();
    handles_again ();
    unknown_gpu ();
    lazily ();
    legacy ();
    freed_by_heap ();
    forgotten ();
    many ();
    return tap_done ();
}
