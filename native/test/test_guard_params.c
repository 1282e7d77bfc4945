/* What the driver is led to by a call that the guard performs: nothing but the guard's own copies, of this call. */
#include "guard_model.h"
#include "rm/abi.h"
#include "rm/bytes.h"
#include "tap.h"

#include <string.h>

#define HEAD MODEL_ADDRESS
#define PARAMS (MODEL_ADDRESS + 4096)
#define LISTS (MODEL_ADDRESS + 8192)

#define CLIENT 0xc1d00001u
#define SPACE 0x5c000001u /* the first handle that is allocated */

static unsigned found;
static uint32_t new_handle = SPACE;

static void count (const char *what, uint32_t number)
{
    found++;
    printf ("# the driver was led elsewhere: %s, %#x\n", what, (unsigned) number);
}

/* Params that lead into the container's memory wherever they could be read, to five elements each. */
static void prepare (const struct driver_params *facts)
{
    for (unsigned at = 0; at < 2048; at += 8)
        set64 (model_at (PARAMS + at), 0, LISTS + at);
    for (unsigned i = 0; facts != NULL && i < facts->pointer_count; i++)
        if (facts->pointers[i].count_at != ANY)
            set32 (model_at (PARAMS), (size_t) facts->pointers[i].count_at, 5);
}

/* The status; what the driver got is in model.head. */
static uint32_t control (uint32_t number, uint32_t size)
{
    uint8_t *head = model_at (HEAD);

    memset (head, 0, 48);
    set32 (head, 8, number);
    set64 (head, 16, PARAMS);
    set32 (head, 24, size);
    set32 (head, 28, 0xffff);
    model_call (MODEL_DESCRIPTOR, 0x2a, 32, HEAD);
    return get32 (head, 28);
}

static uint32_t allocate (uint32_t number, uint32_t flags)
{
    uint8_t *head = model_at (HEAD);

    memset (head, 0, 48);
    set32 (head, 8, new_handle);
    set32 (head, 12, number);
    set64 (head, 16, PARAMS);
    set32 (head, 36, flags);
    set32 (head, 40, 0xffff);
    model_call (MODEL_DESCRIPTOR, 0x2b, 48, HEAD);
    return get32 (head, 40);
}

/* Of each control that rm makes for a tenant, and that leads elsewhere: sizes that the driver may not look at, after a call
 * that left its pointers behind. */
static void sizes (void)
{
    static const uint16_t other[] = { 0, 1, 4, 8, 12, 15 };
    bool are_refused = true, are_taken = true;

    for (size_t i = 0; i < sizeof (driver_controls) / sizeof (driver_controls[0]); i++) {
        const struct driver_params *facts = &driver_controls[i];
        const struct rm_control *row = rm_abi_control (model.tenant->abi, facts->number);

        if (facts->since > MODEL_BRANCH || facts->until < MODEL_BRANCH || facts->pointer_count == 0 || row == NULL ||
            row->kind == CONTROL_FORBIDDEN || row->kind == CONTROL_SCHEDULING)
            continue;
        prepare (facts);
        for (unsigned size = 0; size < sizeof (other) / sizeof (other[0]); size++) {
            uint64_t calls = model.calls;

            are_taken = are_taken && control (facts->number, (uint32_t) facts->size) == 0 && model.calls == calls + 1;
            are_refused = are_refused && control (facts->number, other[size]) != 0 && model.calls == calls + 1;
        }
        are_refused = are_refused && control (facts->number, (uint32_t) facts->size + 8) != 0;
    }
    tap_ok (found == 0, "the driver follows no pointer that an earlier call left");
    tap_ok (are_taken, "params of the driver's own size are taken");
    tap_ok (are_refused, "those of another are refused, and the driver is not called");
    tap_ok (control (0x101, 0) == STATUS_INVALID_ARGUMENT && control (0x20801802, 4) == STATUS_INVALID_ARGUMENT &&
                control (0x20801301, 24) == STATUS_INVALID_ARGUMENT,
            "with the status that the driver has for a size that it checks");
}

static void single (void)
{
    found = 0;
    prepare (facts_find (FACTS_OF (driver_controls), MODEL_BRANCH, 0x801b01));
    tap_ok (control (0x801b01, 16) == 0 && found == 0, "MSENC_GET_CAPS writes its table into the guard's copy");
    set32 (model_at (PARAMS), 8, MODEL_DESCRIPTOR);
    found = 0;
    tap_ok (control (0xfd0104, 16) == 0 && found == 0, "a descriptor is the guard's copy");
    tap_ok (control (0xfd0104, 0) == STATUS_INVALID_ARGUMENT && found == 0, "and none is taken from an earlier call");
    control (0x2080a083, 24);
    tap_ok (found == 0, "a number of the old kind that had a pointer is none that programs make");
}

/* Whatever the size is said to be, what is behind it is not an earlier call's. */
static void scratch (void)
{
    bool is_clear = true;

    prepare (NULL);
    control (0x20801303, 1028);
    control (0x102, 8);
    for (size_t at = 8; at < 4096; at++)
        is_clear = is_clear && model.tenant->params[at] == 0;
    tap_ok (is_clear, "behind the params of a call nothing is left of an earlier one");
    control (0x20801303, 1028);
    control (0x20800145, 0);
    tap_ok (get64 (model.head, 16) == 0 && get32 (model.head, 24) == 0, "a control without params goes out with none");
    tap_ok (get64 (model_at (HEAD), 16) == PARAMS, "and comes back as it was");
}

static void classes (void)
{
    static const uint16_t capabilities[] = { 0xc637, 0xc638, 0xc639, 0xc640 };
    uint64_t calls = model.calls;

    found = 0;
    prepare (NULL);
    for (unsigned i = 0; i < 4; i++)
        allocate (capabilities[i], 0);
    tap_ok (model.calls == calls, "a class that takes a descriptor is left to the caller");
    allocate (0x3e, 0);
    memset (model_at (PARAMS), 0, 56);
    allocate (0x90f1, 0);
    prepare (NULL);
    set32 (model_at (PARAMS), 108, SPACE);
    set32 (model_at (PARAMS), 8, NVOS32_ALLOC_FLAGS_LAZY); /* of any size */
    new_handle++;
    allocate (0x50a0, 0);
    tap_ok (model.calls == calls + 3 && found == 0, "an address that only the driver writes goes out as none");
    allocate (0x90e6, 0);
    tap_ok (model.calls == calls + 4 && get64 (model.head, 16) == 0, "a class without params gets none");
    tap_ok (allocate (0x90f1, 1) == 0x1b && model.calls == calls + 4, "serialized params are refused");
}

static void escapes (void)
{
    static const uint8_t callers[][2] = { { 0x4f, 32 }, { 0x5e, 40 } };
    uint64_t calls = model.calls;
    bool are_left = true;

    for (unsigned i = 0; i < 2; i++)
        are_left = are_left && model_call (MODEL_DESCRIPTOR, callers[i][0], callers[i][1], PARAMS).continue_syscall;
    tap_ok (are_left && model.calls == calls, "escapes that hold pointers of the caller are left to it");
    memset (model_at (HEAD), 0, 184);
    set32 (model_at (HEAD), 8, 2);
    set32 (model_at (HEAD), 12, SPACE);
    set32 (model_at (HEAD), 52, NVOS32_ALLOC_FLAGS_VIRTUAL | NVOS32_ALLOC_FLAGS_LAZY); /* a range of addresses */
    set64 (model_at (HEAD), 120, LISTS);
    model_call (MODEL_DESCRIPTOR, 0x4a, 184, HEAD);
    tap_ok (model.calls == calls + 1 && found == 0, "NVOS32 goes out without its address");
}

/* The status, or 0xffff: the driver was not called. */
static uint32_t idle (uint32_t flags, uint32_t count)
{
    uint8_t *head = model_at (HEAD);

    memset (head, 0, 56);
    set32 (head, 0, CLIENT);
    set32 (head, 12, count);
    for (unsigned i = 0; i < 3; i++) {
        set64 (head, 16 + 8 * i, LISTS + 64 * i);
        for (unsigned k = 0; k < 5; k++)
            set32 (model_at (LISTS + 64 * i), 4 * k, i << 8 | k);
    }
    set32 (head, 40, flags);
    set32 (head, 44, 5000000);
    set32 (head, 48, 0xffff);
    model_call (MODEL_DESCRIPTOR, 0x41, 56, HEAD);
    return get32 (head, 48);
}

/* IDLE_CHANNELS: lists of clients, devices and channels. */
static void idle_lists (void)
{
    uint64_t calls = model.calls;
    const uint32_t *channels;

    found = 0;
    tap_ok (idle (0, 5) == 0 && model.calls == calls + 1 && found == 0, "lists of channels are the guard's copies");
    channels = (const uint32_t *) (uintptr_t) get64 (model.head, 32);
    tap_ok (channels[0] == 0x200 && channels[4] == 0x204 && get32 (model.head, 44) == 100000,
            "of what the caller had, for 100 ms at most");
    tap_ok (get64 (model_at (HEAD), 32) == LISTS + 128 && get32 (model_at (HEAD), 44) == 5000000,
            "and the struct comes back as it was");
    tap_ok (idle (0, UINT32_MAX) == 0xffff && idle (0, 0x40000000) == 0xffff && model.calls == calls + 1,
            "a list without end is refused");
    tap_ok (idle (1u << 4, UINT32_MAX) == 0 && model.calls == calls + 2 && found == 0,
            "where one channel is meant no list is read");
}

/* The driver makes a device for a process that has the GPU's node open. The guard has it with its own client of the driver. */
static void devices (void)
{
    uint64_t calls = model.calls;

    memset (model_at (PARAMS), 0, 56);
    model.guard.has_driver_usage = false;
    (void) allocate (NV01_DEVICE_0, 0);
    tap_ok (model.calls > calls && model.guard.has_driver_usage, "a device is made by the guard when it has its own client");
}

int main (void)
{
    model.report = count;
    model_begin ();
    sizes ();
    single ();
    scratch ();
    classes ();
    escapes ();
    idle_lists ();
    devices ();
    model_end ();
    return tap_done ();
}
