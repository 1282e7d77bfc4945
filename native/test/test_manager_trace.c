/* The simulated driver's trace of context switches: what it takes to have one, and what is in it. The clock is manual. */
#include "manager_bed.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/nvos.h"
#include "tap.h"

#define COUNT 64u
#define HEADER 0x5c000010u
#define RECORDS 0x5c000011u
#define BUFFER 0x5c000012u

static struct manager_file *file;
static uint32_t client;

static uint32_t memory (uint32_t handle, uint64_t size)
{
    uint8_t params[128] = { 0 };

    memcpy (params + offsetof (NV_MEMORY_ALLOCATION_PARAMS, size), &size, sizeof (size));
    return bed_alloc (file, client, client, handle, NV01_MEMORY_DEVICELESS, params);
}

static uint32_t buffer (uint32_t count)
{
    NV_EVENT_BUFFER_ALLOC_PARAMETERS params = { .recordSize = sizeof (NV_EVENT_BUFFER_FECS_RECORD),
                                                .recordCount = count,
                                                .hSubDevice = SUBDEVICE,
                                                .hBufferHeader = HEADER,
                                                .hRecordBuffer = RECORDS };

    return bed_alloc (file, client, client, BUFFER, NV_EVENT_BUFFER, &params);
}

static uint32_t bind_it (void)
{
    NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS params = { .hEventBuffer = BUFFER, .bAllUsers = 1, .levelOfDetail = 1 };

    return bed_control (file, client, SUBDEVICE, NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2, &params, sizeof (params));
}

static uint32_t enable (void)
{
    NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS params = { .enable = 1,
                                                             .flags = NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_NEWEST };

    return bed_control (file, client, BUFFER, NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS, &params, sizeof (params));
}

static uint32_t map (uint32_t handle)
{
    nv_ioctl_nvos33_parameters_with_fd params = { .params = {
                                                      .hClient = client, .hDevice = client, .hMemory = handle, .length = 4096 } };

    return bed_ioctl (file, NV_REQUEST (NV_ESC_RM_MAP_MEMORY, sizeof (params)), &params) == 0 ? params.params.status : 0xfffff;
}

static uint32_t process (uint32_t pid, uint64_t microseconds, uint64_t work)
{
    struct manager_file *own = manager_open (bed, MANAGER_CONTROL, 0);
    uint32_t group_params[5] = { 0, 0, 0, 1, 0 }, handle;
    static uint8_t channel_params[368];
    struct sim_submit submit = { .channel = 0x200, .nanoseconds = work, .count = 1 };

    bed_task.process = pid;
    handle = submit.client = bed_client (own, 0);
    bed_alloc (own, handle, DEVICE, 0x100, 0xA06C, group_params);
    bed_alloc (own, handle, 0x100, 0x200, 0xC86F, channel_params);
    bed_control (own, handle, 0x100, 0xA06C0103, &microseconds, 8);
    bed_ioctl (own, SIM_SUBMIT, &submit);
    bed_task.process = 100;
    return submit.status;
}

static NV_EVENT_BUFFER_FECS_RECORD record (uint32_t place)
{
    NV_EVENT_BUFFER_FECS_RECORD found;

    manager_read (bed, place * sizeof (found), (uint8_t *) &found, sizeof (found));
    return found;
}

int main (void)
{
    uint64_t on[2] = { 0 };
    bool fits = true;

    bed_start ();
    file = manager_open (bed, MANAGER_CONTROL, 0);
    client = bed_client (file, 0);
    tap_ok (memory (HEADER, 4096) == 0 && buffer (COUNT) != 0, "an event buffer needs both memories");
    tap_ok (memory (RECORDS, COUNT * sizeof (NV_EVENT_BUFFER_FECS_RECORD)) == 0 && buffer (COUNT + 1) != 0 && buffer (COUNT) == 0,
            "and room for its records");
    tap_ok (bind_it () == NV_ERR_INSUFFICIENT_PERMISSIONS, "not every client may have the trace");
    bed_task.privileged = true;
    tap_ok (bind_it () == 0 && enable () == 0, "one with CAP_SYS_ADMIN may");
    bed_task.privileged = false;
    tap_ok (map (RECORDS) == 0 && map (HEADER) == NV_ERR_NOT_SUPPORTED, "one memory is mapped at a time");

    process (101, 3000, 60 * MILLISECOND);
    process (102, 1000, 60 * MILLISECOND);
    manager_clock (bed, SIM_CLOCK_ADVANCE, 40 * MILLISECOND);
    for (uint32_t i = 0; i + 1 < COUNT && record (i + 1).timestamp != 0; i++) {
        NV_EVENT_BUFFER_FECS_RECORD one = record (i), next = record (i + 1);

        fits = fits && next.seqno == one.seqno + 1 && next.tag != one.tag && next.timestamp >= one.timestamp;
        if (one.tag == NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START) {
            fits = fits && one.pid == next.pid && (one.pid == 101 || one.pid == 102);
            on[one.pid == 102] += next.timestamp - one.timestamp;
        } else {
            fits = fits && one.pid != next.pid && next.timestamp - one.timestamp == 215000;
        }
    }
    tap_ok (fits && record (10).timestamp != 0, "begins and ends follow each other, with a switch between two processes");
    tap_ok (on[0] == 3 * on[1] && on[0] >= 24 * MILLISECOND, "by their slices");
    tap_ok (manager_has_news (bed) && !manager_has_news (bed), "there is something new, once");
    manager_clock (bed, SIM_CLOCK_ADVANCE, 1000 * MILLISECOND);
    fits = false;
    for (uint32_t i = 0; i < COUNT; i++)
        fits = fits || record (i).seqno >= COUNT;
    tap_ok (fits, "the newest records are over the oldest");
    bed_free (file, client, BUFFER);
    manager_clock (bed, SIM_CLOCK_ADVANCE, 1000 * MILLISECOND);
    bed_free (file, client, RECORDS);
    tap_ok (record (0).timestamp == 0, "without its memory nothing is mapped");
    bed_stop ();
    return tap_done ();
}
