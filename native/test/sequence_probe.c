/*
 * In place of native/guard/dup_probe.c, whose quarantine is made by a process of its own: the same calls of the driver by two
 * processes of the kernel of sequence_kernel.h.
 */
#include "sequence_kernel.h"

#include "guard/dup_probe.h"
#include "guard/privsep.h"

#include "rm/imports.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* rs_access.h: RS_ACCESS_DUP_OBJECT as a mask, RS_SHARE_TYPE_CLIENT */
#define SHARE_DUP_OBJECT 1u
#define SHARE_TYPE_CLIENT 3u
#define SHARE_COMPOSE 4u
#define DEVICE 0xcaf00000u
#define SUBDEVICE 0xcaf01000u
#define FIRST_PIECE 0x40000000u

struct dup_probe {
    struct {
        int control;
        uint32_t client, pid;
    } connections[2];
    uint8_t uuid[16];
    uint32_t pieces;
};

static uint32_t make (int control, uint32_t client, uint32_t parent, uint32_t handle, uint32_t class, void *params)
{
    NVOS64_PARAMETERS head = {
        .hRoot = client, .hObjectParent = parent, .hObjectNew = handle, .hClass = class, .pAllocParms = (NvP64) (uintptr_t) params
    };

    ioctl (control, NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (head)), &head);
    return head.status == 0 ? head.hObjectNew : 0;
}

struct dup_probe *probe_open (struct privsep *privsep)
{
    struct dup_probe *probe = calloc (1, sizeof (*probe));
    NV2080_CTRL_GPU_GET_GID_INFO_PARAMS gid = { .flags = NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY };
    NVOS54_PARAMETERS control = { .hObject = SUBDEVICE,
                                  .cmd = NV2080_CTRL_CMD_GPU_GET_GID_INFO,
                                  .params = (NvP64) (uintptr_t) &gid,
                                  .paramsSize = sizeof (gid) };
    pid_t before = kernel.caller;

    for (unsigned i = 0; i < 2; i++) {
        NV0080_ALLOC_PARAMETERS device = { .deviceId = 0 };
        NV2080_ALLOC_PARAMETERS subdevice = { 0 };

        kernel.caller = before + (pid_t) i;
        probe->connections[i].control = privsep_device (privsep, 0);
        probe->connections[i].pid = (uint32_t) kernel.caller;
        probe->connections[i].client = make (probe->connections[i].control, 0, 0, 0, NV01_ROOT_CLIENT, NULL);
        make (probe->connections[i].control, probe->connections[i].client, probe->connections[i].client, DEVICE, NV01_DEVICE_0,
              &device);
        make (probe->connections[i].control, probe->connections[i].client, DEVICE, SUBDEVICE, NV20_SUBDEVICE_0, &subdevice);
    }
    kernel.caller = before;
    control.hClient = probe->connections[0].client;
    ioctl (probe->connections[0].control, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (control)), &control);
    memcpy (probe->uuid, gid.data, 16);
    return probe;
}

void probe_close (struct dup_probe *probe)
{
    if (probe == NULL)
        return;
    for (unsigned i = 0; i < 2; i++)
        close (probe->connections[i].control);
    free (probe);
}

int probe_gpu (const struct dup_probe *probe, const uint8_t uuid[16]) { return memcmp (probe->uuid, uuid, 16) == 0 ? 0 : -1; }

static uint32_t share (int file, uint32_t client, uint32_t handle, uint32_t target, uint8_t action)
{
    NVOS57_PARAMETERS head = {
        .hClient = client,
        .hObject = handle,
        .sharePolicy = { .target = target, .accessMask = SHARE_DUP_OBJECT, .type = SHARE_TYPE_CLIENT, .action = action }
    };

    return ioctl (file, NV_REQUEST (NV_ESC_RM_SHARE, sizeof (head)), &head) == 0 ? head.status : UINT32_MAX;
}

static bool duplicate (const struct dup_probe *probe, enum probe_client to, const struct probe_piece *piece, uint32_t client,
                       uint32_t handle)
{
    NVOS55_PARAMETERS head = { .hClient = probe->connections[to].client,
                               .hParent = piece->is_below_subdevice ? SUBDEVICE : DEVICE,
                               .hObject = piece->handle,
                               .hClientSrc = client,
                               .hObjectSrc = handle };

    return ioctl (probe->connections[to].control, NV_REQUEST (NV_ESC_RM_DUP_OBJECT, sizeof (head)), &head) == 0 && head.status == 0;
}

enum probe_result probe_duplicate (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, enum probe_client to,
                                   struct probe_piece *piece)
{
    uint32_t status = share (file, client, handle, probe->connections[to].client, 0);

    if (status == NV_ERR_OBJECT_NOT_FOUND || status == NV_ERR_INVALID_CLIENT)
        return PROBE_LOST;
    piece->handle = FIRST_PIECE + probe->pieces++;
    if (status == 0 && duplicate (probe, to, piece, client, handle))
        return PROBE_MADE;
    piece->handle = 0;
    return PROBE_NONE;
}

void probe_free (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client from)
{
    NVOS00_PARAMETERS head = { .hRoot = probe->connections[from].client, .hObjectOld = piece->handle };

    if (piece->handle != 0)
        ioctl (probe->connections[from].control, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
}

bool probe_move (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client to)
{
    enum probe_client from = to == PROBE_CLIENT ? QUARANTINE_CLIENT : PROBE_CLIENT;
    uint32_t client = probe->connections[from].client;

    if (share (probe->connections[from].control, client, piece->handle, probe->connections[to].client, 0) != 0 ||
        !duplicate (probe, to, piece, client, piece->handle))
        return false;
    probe_free (probe, piece, from);
    return true;
}

bool probe_query (struct dup_probe *probe, int gpu, enum probe_client which, uint64_t *private_bytes, uint64_t *shared_bytes)
{
    static NV2080_CTRL_GPU_GET_PID_INFO_PARAMS answer;
    const NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA *found = &answer.pidInfoList[0].data.vidMemUsage;
    NVOS54_PARAMETERS head = { .hClient = probe->connections[0].client,
                               .hObject = SUBDEVICE,
                               .cmd = NV2080_CTRL_CMD_GPU_GET_PID_INFO,
                               .params = (NvP64) (uintptr_t) &answer,
                               .paramsSize = sizeof (answer) };

    (void) gpu;
    answer.pidInfoListCount = 1;
    answer.pidInfoList[0].pid = probe->connections[which].pid;
    answer.pidInfoList[0].index = 0;
    if (ioctl (probe->connections[0].control, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (head)), &head) != 0 || head.status != 0)
        return false;
    *private_bytes = found->memPrivate;
    *shared_bytes = found->memSharedOwned + found->memSharedDuped;
    return true;
}

static uint32_t control (const struct dup_probe *probe, enum probe_client which, uint32_t object, uint32_t command, void *params,
                         uint32_t size)
{
    uint32_t client = probe->connections[which].client;
    NVOS54_PARAMETERS head = { .hClient = client,
                               .hObject = object != 0 ? object : client,
                               .cmd = command,
                               .params = (NvP64) (uintptr_t) params,
                               .paramsSize = size,
                               .status = 1 };

    ioctl (probe->connections[which].control, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (head)), &head);
    return head.status;
}

bool probe_import (struct dup_probe *probe, const struct rm_source *source, int gpu, struct probe_piece *piece)
{
    union rm_import_params params;
    uint32_t size, command = rm_import_again (source, DEVICE, &params, &size);

    *piece = (struct probe_piece) { .gpu = gpu };
    if (gpu < 0 || control (probe, QUARANTINE_CLIENT, 0, command, &params, size) != 0)
        return false;
    piece->handle = rm_imported (source, &params);
    return piece->handle != 0;
}

bool probe_is_same (const struct dup_probe *probe, const struct probe_piece *piece, const struct probe_piece *other)
{
    NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS params = { .hObject1 = piece->handle, .hObject2 = other->handle };

    return control (probe, QUARANTINE_CLIENT, 0, NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES, &params, sizeof (params)) == 0 &&
           params.bDuplicates != 0;
}

bool probe_take (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, int gpu, struct probe_piece *piece)
{
    *piece = (struct probe_piece) { .gpu = gpu, .handle = FIRST_PIECE + probe->pieces++ };
    return (file < 0 || share (file, client, handle, probe->connections[QUARANTINE_CLIENT].client, SHARE_COMPOSE) == 0) &&
           duplicate (probe, QUARANTINE_CLIENT, piece, client, handle);
}

uint64_t probe_bytes (const struct dup_probe *probe, const struct probe_piece *piece, enum probe_client which)
{
    NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS class = { .hObject = piece->handle,
                                                        .index = NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID };
    NV0041_CTRL_SURFACE_INFO size = { .index = NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE };
    NV0041_CTRL_GET_SURFACE_INFO_PARAMS info = { .surfaceInfoListSize = 1, .surfaceInfoList = (NvP64) (uintptr_t) &size };

    if (control (probe, which, 0, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, &class, sizeof (class)) != 0 ||
        class.data.hResult != NV01_MEMORY_LOCAL_USER ||
        control (probe, which, piece->handle, NV0041_CTRL_CMD_GET_SURFACE_INFO, &info, sizeof (info)) != 0)
        return 0;
    return (uint64_t) size.data * SURFACE_UNIT;
}
