/* See driver_client.h. Runs in the tenant's thread, in the process that owns the quarantine (dup_probe.c), and in the node's prober. */
#include "driver_client.h"
#include "privsep.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/nvos.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

uint32_t driver_client_alloc (const struct driver_client *self, uint32_t parent, uint32_t handle, uint32_t number, void *params)
{
    NVOS64_PARAMETERS head = { .hRoot = self->client,
                               .hObjectParent = parent,
                               .hObjectNew = handle,
                               .hClass = number,
                               .pAllocParms = (NvP64) (uintptr_t) params,
                               .status = DRIVER_FAILED };

    return ioctl (self->control, NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (head)), &head) == 0 ? head.status : DRIVER_FAILED;
}

uint32_t driver_client_control (const struct driver_client *self, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    NVOS54_PARAMETERS head = { .hClient = self->client,
                               .hObject = object,
                               .cmd = command,
                               .params = (NvP64) (uintptr_t) params,
                               .paramsSize = size,
                               .status = DRIVER_FAILED };

    return ioctl (self->control, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (head)), &head) == 0 ? head.status : DRIVER_FAILED;
}

void driver_client_add_node (struct driver_client *self, int node)
{
    int32_t control = self->control;

    (void) ioctl (node, NV_REQUEST (NV_ESC_REGISTER_FD, sizeof (control)), &control);
    self->nodes[self->node_count++] = node;
}

bool driver_client_open (struct driver_client *self, struct privsep *privsep)
{
    *self = (struct driver_client) { .control = privsep_device (privsep, 0) };
    for (int number = 1; self->control >= 0 && number <= RM_MAX_GPUS; number++) {
        int node = privsep_device (privsep, number);

        if (node == -ENODEV)
            break;
        if (node >= 0)
            driver_client_add_node (self, node);
    }
    return self->node_count != 0;
}

bool driver_client_make (struct driver_client *self)
{
    NVOS64_PARAMETERS head = { .hClass = NV01_ROOT, .status = DRIVER_FAILED };

    if (ioctl (self->control, NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (head)), &head) == 0 && head.status == NV_OK)
        self->client = head.hObjectNew;
    return self->client != 0;
}

static void make_device (struct driver_client *self, uint32_t id)
{
    NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS info = { .gpuId = id };
    NV2080_CTRL_GPU_GET_GID_INFO_PARAMS gid = { .flags = NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY };
    NV0080_ALLOC_PARAMETERS device = { 0 };
    NV2080_ALLOC_PARAMETERS first = { 0 };

    if (driver_client_control (self, self->client, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, &info, sizeof (info)) != NV_OK)
        return;
    device.deviceId = info.deviceInstance;
    if (driver_client_alloc (self, self->client, DRIVER_HANDLE_DEVICE + info.deviceInstance, NV01_DEVICE_0, &device) != NV_OK ||
        driver_client_alloc (self, DRIVER_HANDLE_DEVICE + info.deviceInstance, DRIVER_HANDLE_SUBDEVICE + info.deviceInstance,
                             NV20_SUBDEVICE_0, &first) != NV_OK ||
        driver_client_control (self, DRIVER_HANDLE_SUBDEVICE + info.deviceInstance, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &gid,
                               sizeof (gid)) != NV_OK)
        return;
    memcpy (self->gpus[self->gpu_count].uuid, gid.data, 16);
    self->gpus[self->gpu_count++].instance = info.deviceInstance;
}

void driver_client_make_devices (struct driver_client *self)
{
    NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS ids;

    /* Those that any process has open: an instance that is not there would make a line in the kernel's log. */
    if (driver_client_control (self, self->client, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &ids, sizeof (ids)) != NV_OK)
        return;
    for (unsigned i = 0; i < RM_MAX_GPUS && ids.gpuIds[i] != NV0000_CTRL_GPU_INVALID_ID; i++)
        make_device (self, ids.gpuIds[i]);
}

void driver_client_close (struct driver_client *self)
{
    for (uint32_t i = 0; i < self->node_count; i++)
        close (self->nodes[i]);
    if (self->control >= 0)
        close (self->control);
    *self = (struct driver_client) DRIVER_CLIENT_NONE;
}

int driver_client_gpu (const struct driver_client *self, const uint8_t uuid[16])
{
    for (uint32_t i = 0; i < self->gpu_count; i++)
        if (memcmp (self->gpus[i].uuid, uuid, 16) == 0)
            return (int) i;
    return -1;
}
