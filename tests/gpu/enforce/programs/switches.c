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

/* class/cl90ce.h, class/cl90cd.h, class/cl90cdfecs.h, ctrl/ctrl90cd.h, ctrl/ctrl2080/ctrl2080gr.h, nvos.h of 580.126.20 */
#define MEMORY_DEVICELESS 0x90ceu
#define EVENT_BUFFER 0x90cdu
#define ATTR_COHERENCY_CACHED (1u << 29)
#define ATTR2_USER_READ_ONLY (1u << 22)
#define BIND_FOR_UID_V2 0x20801238u
#define ENABLE_EVENTS 0x90cd0101u
#define KEEP_NEWEST 2u
#define MAP_MEMORY 0x4eu
#define MAP_READ_ONLY 1u
#define SIMPLE_START 6u
#define SIMPLE_END 7u
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
struct record {
    uint32_t type, vardata;
    uint8_t tag, vmid;
    uint16_t number;
    uint32_t context, pid;
    uint16_t reserved;
    uint8_t instances[2];
    uint64_t stamp;
};
struct buffer_params {
    uint64_t header, records;
    uint32_t record_size, record_count;
    uint64_t vardata;
    uint32_t vardata_size, free_threshold;
    uint64_t notification;
    uint32_t vardata_threshold, subdevice, flags, header_memory, record_memory, vardata_memory;
};
struct bind_params {
    uint32_t buffer, record_size, detail, filter;
    uint8_t all_users, pad[3];
    uint32_t reason;
};
struct map_params {
    uint32_t client, device, memory, pad;
    uint64_t offset, length, address;
    uint32_t status, flags;
    int32_t fd, pad2;
};
_Static_assert (sizeof (struct record) == 32 && sizeof (struct buffer_params) == 72 && sizeof (struct map_params) == 56, "");

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
    } memory = { .params = { .size = size, .attr = ATTR_COHERENCY_CACHED, .attr2 = ATTR2_USER_READ_ONLY } };
    struct map_params map = { .device = 0, .memory = handle, .length = size, .status = 0xffff, .flags = MAP_READ_ONLY };
    char text[64];
    void *mapped = MAP_FAILED;
    uint32_t status = allocate (client, handle, MEMORY_DEVICELESS, &memory);

    snprintf (text, sizeof (text), "memory_%s", name);
    say (text, status);
    map.client = map.device = client;
    map.fd = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    ioctl (control, NV_REQUEST (MAP_MEMORY, sizeof (map)), &map);
    if (status == NV_OK && map.status == NV_OK)
        mapped = mmap (NULL, size, PROT_READ, MAP_SHARED, map.fd, 0);
    snprintf (text, sizeof (text), "mapped_%s", name);
    say (text, mapped == MAP_FAILED ? map.status + 1 : 0);
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

static void add_step (const struct record *from, const struct record *to)
{
    if (from->tag >= TAGS || to->tag >= TAGS || to->stamp < from->stamp || to->stamp - from->stamp > 1000000)
        return;
    steps[from->tag][to->tag].count++;
    steps[from->tag][to->tag].ns += to->stamp - from->stamp;
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
    struct buffer_params buffer = { .record_size = sizeof (struct record),
                                    .record_count = COUNT,
                                    .subdevice = SUBDEVICE,
                                    .header_memory = HEADER,
                                    .record_memory = RECORDS };
    struct bind_params bind = {
        .buffer = BUFFER, .record_size = sizeof (struct record), .detail = argc > 2 ? 0 : 1, .all_users = 1
    };
    struct {
        uint8_t enable, pad[3];
        uint32_t flags;
    } events = { .enable = 1, .flags = KEEP_NEWEST };
    const volatile struct header *header;
    const volatile struct record *records;
    double seconds = argc > 1 ? atof (argv[1]) : 0, pause = argc > 2 ? 0.0002 : 0.1;
    struct record before = { .tag = TAGS };
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
    records = memory (RECORDS, COUNT * sizeof (struct record), "records");
    say ("buffer", allocate (client, BUFFER, EVENT_BUFFER, &buffer));
    say ("bound", call (SUBDEVICE, BIND_FOR_UID_V2, &bind, sizeof (bind)));
    say ("reason", bind.reason);
    say ("enabled", call (BUFFER, ENABLE_EVENTS, &events, sizeof (events)));
    at = header != NULL ? header->put : 0;
    for (double passed = 0; header != NULL && records != NULL && passed < seconds; passed += pause) {
        usleep ((useconds_t) (pause * 1e6));
        news += at != header->put;
        for (uint32_t put = header->put; at != put && put < COUNT; at = (at + 1) % COUNT) {
            struct record one = *(const struct record *) (uintptr_t) &records[at];

            lost += switches != 0 && (uint16_t) (number + 1) != one.number;
            number = one.number;
            switches++;
            add_step (&before, &one);
            before = one;
            if (one.tag == SIMPLE_END && since != 0 && one.pid == pid && one.stamp > since)
                add (pid, one.stamp - since);
            since = one.tag == SIMPLE_START ? one.stamp : 0;
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
