/* Questions about memory and processes: what is rewritten, and what is not. */
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

#define FILE_A 1

static struct fake *fake;
static uint32_t client, subdevice, foreign;

static void pairs (uint8_t *to, const uint32_t *indices, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        set32 (to, 8 * i, indices[i]);
        set32 (to, 8 * i + 4, 0);
    }
}

static uint32_t value (const uint8_t *list, uint32_t count, uint32_t index)
{
    for (uint32_t i = 0; i < count; i++)
        if (get32 (list, 8 * i) == index)
            return get32 (list, 8 * i + 4);
    return 0xffffffff;
}

static const uint32_t indices[] = {0x16, 5, 9, 0x10, 7, 0x1d, 8, 0x12, 0x20, 0x3b};
#define COUNT (sizeof (indices) / sizeof (indices[0]))

static uint32_t ask (uint32_t object, uint8_t *params)
{
    memset (params, 0, 1028);
    set32 (params, 0, COUNT);
    pairs (params + 4, indices, COUNT);
    return fake_control (fake, FILE_A, client, object, 0x20801303, params, 1028);
}

static void memory (void)
{
    static uint8_t params[1028];
    uint8_t *list = params + 4, one[16] = {0}, head[32] = {0}, separate[8 * COUNT];
    uint64_t bytes = 100 * MIB;
    uint32_t handle = 0, device = fake_device (fake, FILE_A, client, 0);

    tap_ok (ask (subdevice, params) == 0 && value (list, COUNT, 8) == 1000 * 1024 &&
            value (list, COUNT, 0x16) == 900 * 1024 &&
                value (list, COUNT, 0x10) == 7016,
            "without a limit the driver's numbers stay");
    fake->limit[0] = 400 * MIB;
    fake_memory (fake, FILE_A, client, device, &handle, &bytes);
    ask (subdevice, params);
    tap_ok (value (list, COUNT, 7) == 400 * 1024 && value (list, COUNT, 8) == 400 * 1024 &&
                value (list, COUNT, 9) == 400 * 1024 && value (list, COUNT, 0x20) == 400 * 1024,
            "the sizes of memory are the limit, wherever they stand in the list");
    tap_ok (value (list, COUNT, 0x16) == 300 * 1024 && value (list, COUNT, 0x12) == 300 * 1024,
            "what is free is the limit without what the tenant uses");
    tap_ok (value (list, COUNT, 0x10) == 0 && value (list, COUNT, 5) == 7005 && value (list, COUNT, 0x1d) == 7029 &&
                value (list, COUNT, 0x3b) == 7059,
            "nothing is reserved, BAR1 and the rest are the driver's");
    fake->used[0] += 500 * MIB;
    ask (subdevice, params);
    tap_ok (value (list, COUNT, 0x16) == 0, "using more than the limit leaves nothing free, not less than that");
    fake->used[0] -= 500 * MIB;
    fake->limit[0] = 5000 * MIB;
    ask (subdevice, params);
    tap_ok (value (list, COUNT, 8) == 1000 * 1024 && value (list, COUNT, 0x16) == 900 * 1024,
            "a share larger than the GPU shows the GPU, and no more free than the driver has");
    fake->limit[0] = 400 * MIB;
    ask (foreign, params);
    tap_ok (value (list, COUNT, 8) == 1000 * 1024, "a GPU that the share does not name shows its own numbers");
    memset (params, 0, sizeof (params));
    set32 (params, 0, 0xffffffff);
    set32 (head, 0, client);
    set32 (head, 4, subdevice);
    set32 (head, 8, 0x20801303);
    set64 (head, 16, (uint64_t) (uintptr_t) params);
    set32 (head, 24, 1028);
    {
        struct rm_call call = {RM_NODE_CONTROL, FILE_A, REQUEST (0x2a, 32), head, 32, params, 1028, NULL, 0, {0}};

        rm_begin (fake->rm, &call);
        rm_end (fake->rm, &call, 0);
    }
    tap_ok (get32 (params, 0) == 0xffffffff, "a count beyond the params is not followed");
    set32 (one, 0, COUNT);
    set64 (one, 8, (uint64_t) (uintptr_t) separate);
    pairs (separate, indices, COUNT);
    set32 (head, 8, 0x20801301);
    set64 (head, 16, (uint64_t) (uintptr_t) one);
    set32 (head, 24, sizeof (one));
    fake_call (fake, RM_NODE_CONTROL, FILE_A, REQUEST (0x2a, 32), head, one, sizeof (one), separate, sizeof (separate));
    tap_ok (value (separate, COUNT, 8) == 400 * 1024 && value (separate, COUNT, 0x16) == 300 * 1024,
            "the older question with a list behind a pointer is answered alike");
}

static void processes (void)
{
    static uint8_t pids[3812], info[14408];

    memset (pids, 0, sizeof (pids));
    set32 (pids, 8, 5);
    for (uint32_t i = 0; i < 5; i++)
        set32 (pids, 12 + 4 * i, 101 + i);
    fake_control (fake, FILE_A, client, subdevice, 0x2080018d, pids, sizeof (pids));
    tap_ok (get32 (pids, 8) == 2 && get32 (pids, 12) == 102 && get32 (pids, 16) == 104 && get32 (pids, 20) == 0 &&
                get32 (pids, 28) == 0,
            "of the processes on a GPU a tenant sees its own");
    set32 (pids, 8, 0xffffffff);
    fake_control (fake, FILE_A, client, subdevice, 0x2080018d, pids, sizeof (pids));
    tap_ok (get32 (pids, 8) <= 950, "a count beyond the list is not followed");
    set32 (info, 0, 2);
    for (uint32_t i = 0; i < 2; i++) {
        set32 (info, 8 + 72 * i, 201 + i);
        set64 (info, 8 + 72 * i + 16, 12345);
        set64 (info, 8 + 72 * i + 56, 54321);
    }
    fake_control (fake, FILE_A, client, subdevice, 0x2080018e, info, sizeof (info));
    tap_ok (get64 (info, 24) == 0 && get64 (info, 64) == 0 && get64 (info, 96) == 12345 && get64 (info, 136) == 54321,
            "what others use is nothing, what the tenant's processes use stays");
    fake->next_status = 0x1f;
    set32 (pids, 8, 1);
    set32 (pids, 12, 101);
    fake_control (fake, FILE_A, client, subdevice, 0x2080018d, pids, sizeof (pids));
    tap_ok (get32 (pids, 12) == 101, "an answer that the driver did not give is not rewritten");
    tap_ok (fake_control (fake, FILE_A, client, subdevice, 0x2080018d, pids, 100) == 0xffffffff &&
                fake->notes[RM_BAD_POINTER] == 1,
            "params that are too short are left to the driver");
}

int main (void)
{
    fake = fake_open ("580.159.04", RM_POSTURE_SHIM);
    client = fake_client (fake, FILE_A);
    subdevice = fake_subdevice (fake, FILE_A, client, fake_device (fake, FILE_A, client, 0));
    foreign = fake_subdevice (fake, FILE_A, client, fake_device (fake, FILE_A, client, 2));
    memory ();
    processes ();
    tap_ok (fake_close (fake), "nothing is left");
    return tap_done ();
}
