/*
 * Driver-reported usage: the guard's own client of the driver, asked how much video memory the clients of a process hold, which the
 * ledger cannot know. A process may be dead and its open file live on in a child, in a socket's queue or in a ring of io_uring; and a
 * continued call may have become another one than was checked.
 *
 * The client is made as nvidia-smi makes its own: nvidiactl, the GPUs' nodes registered with it, device, subdevice. All of it runs in
 * tenants' threads, under guard->driver_usage_lock.
 */
#include "driver_usage.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "shim/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define HANDLE_DEVICE 0xcaf00000u
#define HANDLE_SUBDEVICE 0xcaf01000u

struct driver_usage {
    int control;
    int nodes[SHARE_MAX_GPUS];
    unsigned node_count;
    uint32_t client;
    struct {
        uint8_t uuid[16];
        uint32_t subdevice;
    } gpus[SHARE_MAX_GPUS];
    unsigned gpu_count;
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS answer;
};

static uint32_t make (struct driver_usage *usage, uint32_t parent, uint32_t *object, uint32_t number, void *params)
{
    NVOS64_PARAMETERS alloc = { .hRoot = usage->client,
                                .hObjectParent = parent,
                                .hObjectNew = *object,
                                .hClass = number,
                                .pAllocParms = (NvP64) (uintptr_t) params };

    if (ioctl (usage->control, NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (alloc)), &alloc) != 0)
        return NV_ERR_NOT_SUPPORTED;
    *object = alloc.hObjectNew;
    return alloc.status;
}

static uint32_t ask (struct driver_usage *usage, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    NVOS54_PARAMETERS control = { .hClient = usage->client,
                                  .hObject = object,
                                  .cmd = command,
                                  .params = (NvP64) (uintptr_t) params,
                                  .paramsSize = size };

    return ioctl (usage->control, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (control)), &control) == 0 ? control.status
                                                                                                     : NV_ERR_NOT_SUPPORTED;
}

/* Opens the GPUs' nodes, so that the GPUs stay attached while the guard runs. */
static void attach_nodes (struct driver_usage *usage, const char *directory)
{
    for (unsigned i = 0; i < SHARE_MAX_GPUS; i++) {
        char path[512];
        int32_t control = usage->control;
        int node;

        snprintf (path, sizeof (path), "%s/nvidia%u", directory, i);
        node = open (path, O_RDWR | O_CLOEXEC);
        if (node < 0)
            continue;
        ioctl (node, NV_REQUEST (NV_ESC_REGISTER_FD, sizeof (control)), &control);
        usage->nodes[usage->node_count++] = node;
    }
}

static void find_gpus (struct driver_usage *usage)
{
    for (uint32_t i = 0; i < usage->node_count; i++) {
        NV0080_ALLOC_PARAMETERS params = { .deviceId = i };
        NV2080_ALLOC_PARAMETERS first = { 0 };
        NV2080_CTRL_GPU_GET_GID_INFO_PARAMS gid = { .flags = NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY };
        uint32_t device = HANDLE_DEVICE + i, subdevice = HANDLE_SUBDEVICE + i;

        /* Numbers are given without gaps, and asking for one that is not there makes a line in the kernel's log. */
        if (make (usage, usage->client, &device, NV01_DEVICE_0, &params) != 0)
            break;
        if (make (usage, device, &subdevice, NV20_SUBDEVICE_0, &first) != 0)
            continue;
        if (ask (usage, subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &gid, sizeof (gid)) != 0)
            continue;
        memcpy (usage->gpus[usage->gpu_count].uuid, gid.data, 16);
        usage->gpus[usage->gpu_count++].subdevice = subdevice;
    }
}

struct driver_usage *driver_usage_open (const char *device_directory)
{
    struct driver_usage *usage = calloc (1, sizeof (*usage));
    char path[512];

    if (usage == NULL)
        return NULL;
    snprintf (path, sizeof (path), "%s/nvidiactl", device_directory);
    usage->control = open (path, O_RDWR | O_CLOEXEC);
    if (usage->control < 0 || make (usage, 0, &usage->client, NV01_ROOT, NULL) != 0) {
        driver_usage_close (usage);
        return NULL;
    }
    attach_nodes (usage, device_directory);
    find_gpus (usage);
    if (usage->gpu_count == 0) {
        driver_usage_close (usage);
        return NULL;
    }
    return usage;
}

void driver_usage_close (struct driver_usage *usage)
{
    if (usage == NULL)
        return;
    for (unsigned i = 0; i < usage->node_count; i++)
        close (usage->nodes[i]);
    if (usage->control >= 0)
        close (usage->control);
    free (usage);
}

long driver_usage_of_process (struct driver_usage *usage, const uint8_t uuid[16], pid_t pid, uint64_t *bytes)
{
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *answer = &usage->answer;
    const NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA *found = &answer->pidInfoList[0].data.vidMemUsage;

    for (unsigned i = 0; i < usage->gpu_count; i++) {
        if (memcmp (usage->gpus[i].uuid, uuid, 16) != 0)
            continue;
        memset (answer, 0, sizeof (*answer));
        answer->pidInfoListCount = 1;
        answer->pidInfoList[0].pid = (uint32_t) pid;
        if (ask (usage, usage->gpus[i].subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, answer, sizeof (*answer)) != 0)
            return -EIO;
        *bytes = found->memPrivate + found->memSharedOwned; /* owned: with other handles, UVM's too */
        return 0;
    }
    return -ENODEV;
}
