/*
 * Driver-reported usage: the guard's own client of the driver, asked how much video memory the clients of a process hold, which the
 * ledger cannot know. A process may be dead and its open file live on in a child, in a socket's queue or in a ring of io_uring; and a
 * continued call may have become another one than was checked.
 *
 * Runs in the tenant's thread, under guard->driver_usage_lock; driver_usage_ask in the node's prober too, about all processes of a GPU.
 */
#include "driver_usage.h"
#include "driver_client.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/* Of no object. */
#define NO_HANDLE 0xcaf0ffffu

struct driver_usage {
    struct driver_client client;
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS answer;
};

struct driver_usage *driver_usage_open (struct privsep *privsep)
{
    struct driver_usage *usage = calloc (1, sizeof (*usage));

    if (usage == NULL)
        return NULL;
    if (driver_client_open (&usage->client, privsep) && driver_client_make (&usage->client))
        driver_client_make_devices (&usage->client);
    if (usage->client.gpu_count != 0)
        return usage;
    driver_usage_close (usage);
    return NULL;
}

void driver_usage_close (struct driver_usage *usage)
{
    if (usage != NULL)
        driver_client_close (&usage->client);
    free (usage);
}

/* A duplicate of nothing: the driver looks for the client first (serverCopyResource). */
bool driver_usage_has_client (struct driver_usage *usage, uint32_t client)
{
    NVOS55_PARAMETERS head = {
        .hClient = usage->client.client,
        .hParent = usage->client.client,
        .hObject = NO_HANDLE,
        .hClientSrc = client,
        .hObjectSrc = NO_HANDLE,
    };

    if (ioctl (usage->client.control, NV_REQUEST (NV_ESC_RM_DUP_OBJECT, sizeof (head)), &head) != 0)
        return false;
    return head.status != NV_ERR_INVALID_OBJECT_HANDLE && head.status != NV_ERR_INVALID_CLIENT;
}

long driver_usage_ask (const struct driver_client *client, int gpu, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *answer,
                       const uint32_t *pids, unsigned count, struct process_usage *found)
{
    memset (answer, 0, sizeof (*answer));
    answer->pidInfoListCount = count;
    for (unsigned i = 0; i < count; i++)
        answer->pidInfoList[i].pid = pids[i];
    if (driver_client_control (client, DRIVER_HANDLE_SUBDEVICE + client->gpus[gpu].instance, NV2080_CTRL_CMD_GPU_GET_PID_INFO,
                               answer, sizeof (*answer)) != NV_OK)
        return -EIO;
    for (unsigned i = 0; i < count; i++) {
        const NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA *usage = &answer->pidInfoList[i].data.vidMemUsage;

        /* _gpuCollectMemInfo (gpu_rmapi.c): when an owner's handle is freed, the piece's next one owns it, of whichever client. */
        found[i] = (struct process_usage) { .own = usage->memPrivate + usage->memSharedOwned, .duplicated = usage->memSharedDuped };
    }
    return 0;
}

long driver_usage_of_process (struct driver_usage *usage, const uint8_t uuid[16], pid_t pid, struct process_usage *found)
{
    int gpu = driver_client_gpu (&usage->client, uuid);

    return gpu < 0 ? -ENODEV : driver_usage_ask (&usage->client, gpu, &usage->answer, &(uint32_t) { (uint32_t) pid }, 1, found);
}
