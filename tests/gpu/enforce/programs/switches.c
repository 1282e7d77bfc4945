/*
 * Which process had the compute engine for how long, by the driver's trace of context switches (class 0x90CD, bound by
 * GR_FECS_BIND_EVTBUF_FOR_UID_V2): whether it can be had, and what it says. As root: to others it names no process of another user.
 *
 * usage: switches SECONDS [full]. Prints the driver's statuses of each step, then "pid_N NANOSECONDS" for each process, then "end".
 * full: every step of a switch, and "step_FROM_TO_count", "step_FROM_TO_ns" (in all, of those under a millisecond) for each two steps
 * that follow each other, by the tags of cl90cdfecs.h in hexadecimal; and "news", how many looks, 0.2 ms apart, found something.
 */
#include "../../../../native/rm/nv_numbers.h"
#include "../../../../native/rm/nv_params.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Handles of this program's. */
#define DEVICE 0x5c000001u
#define SUBDEVICE 0x5c000002u
#define HEADER 0x5c000003u
#define RECORDS 0x5c000004u
#define BUFFER 0x5c000005u

#define COUNT 16384u
#define PIDS 256u

struct header {
    uint32_t get, put;
    uint64_t count, dropped, vardata_dropped;
};
static int control;
static uint32_t client;

static void say (const char *name, unsigned long long value)
{
    printf ("%s %llu\n", name, value);
    fflush (stdout);
}

static uint32_t allocate (uint32_t parent, uint32_t handle, uint32_t number, void *params)
{
    NVOS64_PARAMETERS head = { .hRoot = client,
                               .hObjectParent = parent,
                               .hObjectNew = handle,
                               .hClass = number,
                               .pAllocParms = (NvP64) (uintptr_t) params,
                               .status = 0xffff };

    if (ioctl (control, NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (head)), &head) == 0 && handle == 0)
        client = head.hObjectNew;
    return head.status;
}

static uint32_t call (uint32_t object, uint32_t command, void *params, uint32_t size)
{
    NVOS54_PARAMETERS head = { .hClient = client,
                               .hObject = object,
                               .cmd = command,
                               .params = (NvP64) (uintptr_t) params,
                               .paramsSize = size,
                               .status = 0xffff };

    ioctl (control, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (head)), &head);
    return head.status;
}

static const void *memory (uint32_t handle, uint64_t size, const char *name)
{
    union {
        NV_MEMORY_ALLOCATION_PARAMS params;
        uint8_t room[256]; /* longer from 545 on */
    } memory = { .params = {
                     .size = size, .attr = NVOS32_ATTR_COHERENCY_CACHED, .attr2 = NVOS32_ATTR2_PROTECTION_USER_READ_ONLY } };
    nv_ioctl_nvos33_parameters_with_fd map = { .params = { .hClient = client,
                                                           .hDevice = client,
                                                           .hMemory = handle,
                                                           .length = size,
                                                           .status = 0xffff,
                                                           .flags = NVOS33_FLAGS_ACCESS_READ_ONLY } };
    char text[64];
    void *mapped = MAP_FAILED;
    uint32_t status = allocate (client, handle, NV01_MEMORY_DEVICELESS, &memory);

    snprintf (text, sizeof (text), "memory_%s", name);
    say (text, status);
    map.fd = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    ioctl (control, NV_REQUEST (NV_ESC_RM_MAP_MEMORY, sizeof (map)), &map);
    if (status == NV_OK && map.params.status == NV_OK)
        mapped = mmap (NULL, size, PROT_READ, MAP_SHARED, map.fd, 0);
    snprintf (text, sizeof (text), "mapped_%s", name);
    say (text, mapped == MAP_FAILED ? map.params.status + 1 : 0);
    return mapped != MAP_FAILED ? mapped : NULL;
}

static struct {
    uint32_t pid;
    uint64_t had;
} found[PIDS];

#define TAGS 16u

static struct {
    uint64_t count, ns;
} steps[TAGS][TAGS];

static void add_step (const NV_EVENT_BUFFER_FECS_RECORD *from, const NV_EVENT_BUFFER_FECS_RECORD *to)
{
    if (from->tag >= TAGS || to->tag >= TAGS || to->timestamp < from->timestamp || to->timestamp - from->timestamp > 1000000)
        return;
    steps[from->tag][to->tag].count++;
    steps[from->tag][to->tag].ns += to->timestamp - from->timestamp;
}

static void say_steps (void)
{
    for (unsigned from = 0; from < TAGS; from++)
        for (unsigned to = 0; to < TAGS; to++)
            if (steps[from][to].count != 0)
                printf ("step_%x_%x_count %llu\nstep_%x_%x_ns %llu\n", from, to, (unsigned long long) steps[from][to].count, from,
                        to, (unsigned long long) steps[from][to].ns);
}

static uint64_t hidden; /* of processes that this caller is told no number of */

static void add (uint32_t pid, uint64_t nanoseconds)
{
    if (pid == 0) {
        hidden += nanoseconds;
        return;
    }
    for (unsigned i = 0; i < PIDS; i++)
        if (found[i].pid == pid || found[i].pid == 0) { /* a free one */
            found[i].pid = pid;
            found[i].had += nanoseconds;
            return;
        }
}

int main (int argc, char **argv)
{
    NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS ids;
    NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS info = { 0 };
    NV0080_ALLOC_PARAMETERS device = { 0 };
    NV2080_ALLOC_PARAMETERS first = { 0 };
    NV_EVENT_BUFFER_ALLOC_PARAMETERS buffer = { .recordSize = sizeof (NV_EVENT_BUFFER_FECS_RECORD),
                                                .recordCount = COUNT,
                                                .hSubDevice = SUBDEVICE,
                                                .hBufferHeader = HEADER,
                                                .hRecordBuffer = RECORDS };
    NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS bind = { .hEventBuffer = BUFFER,
                                                               .recordSize = sizeof (NV_EVENT_BUFFER_FECS_RECORD),
                                                               .levelOfDetail = argc > 2 ? 0 : 1,
                                                               .bAllUsers = 1 };
    NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS events = { .enable = 1,
                                                             .flags = NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_NEWEST };
    const volatile struct header *header;
    const volatile NV_EVENT_BUFFER_FECS_RECORD *records;
    double seconds = argc > 1 ? atof (argv[1]) : 0, pause = argc > 2 ? 0.0002 : 0.1;
    NV_EVENT_BUFFER_FECS_RECORD before = { .tag = TAGS };
    uint64_t since = 0, switches = 0, lost = 0, news = 0;
    uint32_t at, pid = 0, number = 0;
    int node;

    control = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    node = open ("/dev/nvidia0", O_RDWR | O_CLOEXEC); /* the GPU has a context while a node of it is open */
    say ("client", allocate (0, 0, NV01_ROOT, NULL));
    say ("ids", call (client, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &ids, sizeof (ids)));
    info.gpuId = ids.gpuIds[0];
    say ("id", call (client, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, &info, sizeof (info)));
    device.deviceId = info.deviceInstance;
    say ("device", allocate (client, DEVICE, NV01_DEVICE_0, &device));
    say ("subdevice", allocate (DEVICE, SUBDEVICE, NV20_SUBDEVICE_0, &first));
    header = memory (HEADER, 4096, "header");
    records = memory (RECORDS, COUNT * sizeof (NV_EVENT_BUFFER_FECS_RECORD), "records");
    say ("buffer", allocate (client, BUFFER, NV_EVENT_BUFFER, &buffer));
    say ("bound", call (SUBDEVICE, NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2, &bind, sizeof (bind)));
    say ("reason", bind.reasonCode);
    say ("enabled", call (BUFFER, NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS, &events, sizeof (events)));
    at = header != NULL ? header->put : 0;
    for (double passed = 0; header != NULL && records != NULL && passed < seconds; passed += pause) {
        usleep ((useconds_t) (pause * 1e6));
        news += at != header->put;
        for (uint32_t put = header->put; at != put && put < COUNT; at = (at + 1) % COUNT) {
            NV_EVENT_BUFFER_FECS_RECORD one = *(const NV_EVENT_BUFFER_FECS_RECORD *) (uintptr_t) &records[at];

            lost += switches != 0 && (uint16_t) (number + 1) != one.seqno;
            number = one.seqno;
            switches++;
            add_step (&before, &one);
            before = one;
            if (one.tag == NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_END && since != 0 && one.pid == pid && one.timestamp > since)
                add (pid, one.timestamp - since);
            since = one.tag == NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START ? one.timestamp : 0;
            pid = one.pid;
        }
    }
    say ("records", switches);
    say ("lost", lost);
    say ("hidden", hidden);
    if (argc > 2) {
        say ("news", news);
        say_steps ();
    }
    for (unsigned i = 0; i < PIDS && found[i].pid != 0; i++)
        printf ("pid_%u %llu\n", found[i].pid, (unsigned long long) found[i].had);
    printf ("end\n");
    close (node);
    return 0;
}
