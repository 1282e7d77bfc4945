/* Questions about memory and processes: what is rewritten, and what is not. */
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

#define FILE_A 1

static struct fake *fake;
static uint32_t client, subdevice, foreign;

/* What an entry is about, and others that rm leaves alone. */
enum {
    RAM = NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE,
    TOTAL = NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE,
    HEAP = NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE,
    USABLE = NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE,
    TAX = NV2080_CTRL_FB_INFO_INDEX_FB_TAX_SIZE_KB,
    LARGEST = NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_SIZE_KB,
    FREE = NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE,
};
static const uint32_t indices[] = { FREE, 5, HEAP, TAX, RAM, 0x1d, TOTAL, LARGEST, USABLE, 0x3b };
#define COUNT (sizeof (indices) / sizeof (indices[0]))

/* FB_GET_INFO_V2 of 580: room for 128. */
static struct {
    uint32_t size;
    NV2080_CTRL_FB_INFO list[128];
} answer;

static void fill (NV2080_CTRL_FB_INFO *list)
{
    for (size_t i = 0; i < COUNT; i++)
        list[i] = (NV2080_CTRL_FB_INFO) { indices[i], 0 };
}

static uint32_t value (const NV2080_CTRL_FB_INFO *list, uint32_t index)
{
    for (size_t i = 0; i < COUNT; i++)
        if (list[i].index == index)
            return list[i].data;
    return UINT32_MAX;
}

static uint32_t ask (uint32_t object)
{
    memset (&answer, 0, sizeof (answer));
    answer.size = COUNT;
    fill (answer.list);
    return fake_control (fake, FILE_A, client, object, NV2080_CTRL_CMD_FB_GET_INFO_V2, &answer, sizeof (answer));
}

static uint32_t kib (uint32_t index) { return value (answer.list, index); }

static void memory (void)
{
    uint64_t bytes = 100 * MIB;
    uint32_t handle = 0, device = fake_device (fake, FILE_A, client, 0);

    tap_ok (ask (subdevice) == 0 && kib (TOTAL) == 1000 * 1024 && kib (FREE) == 900 * 1024 && kib (TAX) == 7000 + TAX,
            "without a limit the driver's numbers stay");
    fake->limit[0] = 400 * MIB;
    fake_memory (fake, FILE_A, client, device, &handle, &bytes);
    ask (subdevice);
    tap_ok (kib (RAM) == 400 * 1024 && kib (TOTAL) == 400 * 1024 && kib (HEAP) == 400 * 1024 && kib (USABLE) == 400 * 1024,
            "the sizes of memory are the limit, wherever they stand in the list");
    tap_ok (kib (FREE) == 300 * 1024 && kib (LARGEST) == 300 * 1024, "what is free is the limit without what the tenant uses");
    tap_ok (kib (TAX) == 0 && kib (5) == 7005 && kib (0x1d) == 7029 && kib (0x3b) == 7059,
            "nothing is reserved, BAR1 and the rest are the driver's");
    fake->used[0] += 500 * MIB;
    ask (subdevice);
    tap_ok (kib (FREE) == 0, "using more than the limit leaves nothing free, not less than that");
    fake->used[0] -= 500 * MIB;
    fake->limit[0] = 5000 * MIB;
    ask (subdevice);
    tap_ok (kib (TOTAL) == 1000 * 1024 && kib (FREE) == 900 * 1024,
            "a share larger than the GPU shows the GPU, and no more free than the driver has");
    fake->limit[0] = 400 * MIB;
    ask (foreign);
    tap_ok (kib (TOTAL) == 1000 * 1024, "a GPU that the share does not name shows its own numbers");
}

/* As long as it is said, or at a second pointer. */
static void lists (void)
{
    NV2080_CTRL_FB_INFO separate[COUNT];
    NV2080_CTRL_FB_GET_INFO_PARAMS one = { .fbInfoListSize = COUNT, .fbInfoList = (NvP64) (uintptr_t) separate };
    NVOS54_PARAMETERS head = fake_control_head (client, subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, &answer, sizeof (answer));
    struct rm_call call = {
        .node = RM_NODE_CONTROL,
        .file = FILE_A,
        .request = CONTROL_REQUEST,
        .head = &head,
        .head_size = sizeof (head),
        .params = &answer,
        .params_size = sizeof (answer),
    };

    memset (&answer, 0, sizeof (answer));
    answer.size = UINT32_MAX;
    rm_begin (fake->rm, &call);
    rm_end (fake->rm, &call, 0);
    tap_ok (answer.size == UINT32_MAX, "a count beyond the params is not followed");
    fill (separate);
    head = fake_control_head (client, subdevice, NV2080_CTRL_CMD_FB_GET_INFO, &one, sizeof (one));
    fake_call (fake, RM_NODE_CONTROL, FILE_A, CONTROL_REQUEST, &head, &one, sizeof (one), separate, sizeof (separate));
    tap_ok (value (separate, TOTAL) == 400 * 1024 && value (separate, FREE) == 300 * 1024,
            "the older question with a list behind a pointer is answered alike");
}

static void processes (void)
{
    static NV2080_CTRL_GPU_GET_PIDS_PARAMS pids = { .pidTblCount = 5, .pidTbl = { 101, 102, 103, 104, 105 } };
    static NV2080_CTRL_GPU_GET_PID_INFO_PARAMS info = { .pidInfoListCount = 2 };

    fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &pids, sizeof (pids));
    tap_ok (pids.pidTblCount == 2 && pids.pidTbl[0] == 102 && pids.pidTbl[1] == 104 && pids.pidTbl[2] == 0 && pids.pidTbl[4] == 0,
            "of the processes on a GPU a tenant sees its own");
    pids.pidTblCount = UINT32_MAX;
    fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &pids, sizeof (pids));
    tap_ok (pids.pidTblCount <= 950, "a count beyond the list is not followed");
    for (uint32_t i = 0; i < 2; i++) {
        info.pidInfoList[i].pid = 201 + i;
        info.pidInfoList[i].data.vidMemUsage.memPrivate = 12345;
        info.pidInfoList[i].data.vidMemUsage.protectedMemSharedDuped = 54321;
        info.pidInfoList[i].smcSubscription.gpuInstanceId = 7;
    }
    fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, &info, sizeof (info));
    tap_ok (
        info.pidInfoList[0].data.vidMemUsage.memPrivate == 0 && info.pidInfoList[0].data.vidMemUsage.protectedMemSharedDuped == 0 &&
            info.pidInfoList[0].smcSubscription.gpuInstanceId == 7 && info.pidInfoList[1].data.vidMemUsage.memPrivate == 12345 &&
            info.pidInfoList[1].data.vidMemUsage.protectedMemSharedDuped == 54321,
        "what others use is nothing, what the tenant's processes use stays");
    fake->next_status = NV_ERR_INVALID_ARGUMENT;
    pids.pidTblCount = 1;
    pids.pidTbl[0] = 101;
    fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &pids, sizeof (pids));
    tap_ok (pids.pidTbl[0] == 101, "an answer that the driver did not give is not rewritten");
    tap_ok (fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &pids, 100) == NO_ANSWER &&
                fake->notes[RM_BAD_POINTER] == 1,
            "params that are too short are left to the driver");
}

/* A guard asks in another pid namespace than the tenant's: numbers are the driver's on the way there, and the tenant's in
 * the answer. */
static void namespaces (void)
{
    static NV2080_CTRL_GPU_GET_PIDS_PARAMS pids;
    static NV2080_CTRL_GPU_GET_PID_INFO_PARAMS info;
    const uint32_t *given = fake->given;
    const uint32_t at = offsetof (NV2080_CTRL_GPU_GET_PID_INFO_PARAMS, pidInfoList) / 4;

    fake->pids = 1000;
    pids.pidTblCount = 3;
    for (uint32_t i = 0; i < 3; i++)
        pids.pidTbl[i] = 1002 + i;
    fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &pids, sizeof (pids));
    tap_ok (pids.pidTblCount == 2 && pids.pidTbl[0] == 2 && pids.pidTbl[1] == 4 && pids.pidTbl[2] == 0,
            "a list of processes has the tenant's own numbers");
    info.pidInfoListCount = 4;
    for (uint32_t i = 0; i < 4; i++) {
        info.pidInfoList[i].pid = i < 3 ? 2 + i : 0x80000007u;
        info.pidInfoList[i].data.vidMemUsage.memPrivate = 12345;
    }
    fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, &info, sizeof (info));
    tap_ok (given[at] == 1002 && given[at + 18] == 0x80000003u && given[at + 36] == 1004,
            "the driver is asked about its own numbers, and about no process for one that the tenant has not");
    tap_ok (info.pidInfoList[0].pid == 2 && info.pidInfoList[1].pid == 3 && info.pidInfoList[2].pid == 4,
            "the caller's numbers are there again");
    tap_ok (info.pidInfoList[0].data.vidMemUsage.memPrivate == 12345 && info.pidInfoList[1].data.vidMemUsage.memPrivate == 0 &&
                info.pidInfoList[3].data.vidMemUsage.memPrivate == 0,
            "and only what its processes use");
    fake->next_status = NV_ERR_INVALID_ARGUMENT;
    fake_control (fake, FILE_A, client, subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, &info, sizeof (info));
    tap_ok (info.pidInfoList[0].pid == 2 && info.pidInfoList[1].pid == 3, "also where the driver refuses");
}

static void open_fake (enum rm_posture posture)
{
    fake = fake_open ("580.159.04", posture);
    client = fake_client (fake, FILE_A);
    subdevice = fake_subdevice (fake, FILE_A, client, fake_device (fake, FILE_A, client, 0));
}

int main (void)
{
    open_fake (RM_POSTURE_SHIM);
    foreign = fake_subdevice (fake, FILE_A, client, fake_device (fake, FILE_A, client, 2));
    memory ();
    lists ();
    processes ();
    tap_ok (fake_close (fake), "nothing is left");
    open_fake (RM_POSTURE_GUARD);
    namespaces ();
    tap_ok (fake_close (fake), "nothing is left of the guard's tenant");
    return tap_done ();
}
