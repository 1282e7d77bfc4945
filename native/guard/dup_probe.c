/* See dup_probe.h. */
#include "dup_probe.h"
#include "driver_client.h"

#include "rm/imports.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "shim/share.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* rs_access.h: RS_ACCESS_DUP_OBJECT as a mask, RS_SHARE_TYPE_CLIENT */
#define SHARE_DUP_OBJECT 1u
#define SHARE_TYPE_CLIENT 3u
#define SHARE_COMPOSE 4u /* RS_SHARE_ACTION_FLAG_COMPOSE */
#define HANDLE_PIECES 0x40000000u
#define START_MS 10000

struct connection {
    struct driver_client client;
    uint32_t pid; /* of the process that made the client */
};

struct dup_probe {
    struct connection connections[2];
    pid_t owner; /* of the quarantine: a process that does nothing, until the pipe's other end is closed */
    int owner_pipe;
    uint32_t pieces;
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS answer;
};

/* In place of whatever its owner allowed, or (SHARE_COMPOSE) beside it, this client may duplicate the object. */
static uint32_t share (int file, uint32_t client, uint32_t object, uint32_t target, uint8_t action)
{
    NVOS57_PARAMETERS head = {
        .hClient = client,
        .hObject = object,
        .sharePolicy = { .target = target, .accessMask = SHARE_DUP_OBJECT, .type = SHARE_TYPE_CLIENT, .action = action },
        .status = DRIVER_FAILED
    };

    return ioctl (file, NV_REQUEST (NV_ESC_RM_SHARE, sizeof (head)), &head) == 0 ? head.status : DRIVER_FAILED;
}

/* The process that owns the quarantine: it shares nothing with this one but the open file, and ends with it. */
static void hold_quarantine (struct connection *quarantine, int report, int waits)
{
    unsigned low = (unsigned) (report < waits ? report : waits), high = (unsigned) (report < waits ? waits : report);
    char byte;

    prctl (PR_SET_NAME, "nvc-quarantine");
    if (driver_client_make (&quarantine->client))
        driver_client_make_devices (&quarantine->client);
    /* A listener that stayed open here would keep a container waiting for a guard that is gone. */
    if ((low > 0 && syscall (SYS_close_range, 0, low - 1, 0) != 0) ||
        (high > low + 1 && syscall (SYS_close_range, low + 1, high - 1, 0) != 0) ||
        syscall (SYS_close_range, high + 1, ~0u, 0) != 0)
        _exit (1);
    if (write (report, &quarantine->client.client, sizeof (uint32_t)) != sizeof (uint32_t))
        _exit (1);
    close (report);
    while (read (waits, &byte, 1) < 0 && errno == EINTR)
        continue;
    _exit (0);
}

static bool start_owner (struct dup_probe *probe, struct connection *quarantine)
{
    int report[2], waits[2];
    struct pollfd ready;

    if (pipe2 (report, O_CLOEXEC) != 0)
        return false;
    if (pipe2 (waits, O_CLOEXEC) != 0) {
        close (report[0]);
        close (report[1]);
        return false;
    }
    probe->owner = fork ();
    if (probe->owner == 0)
        hold_quarantine (quarantine, report[1], waits[0]);
    close (report[1]);
    close (waits[0]);
    probe->owner_pipe = waits[1];
    ready = (struct pollfd) { .fd = report[0], .events = POLLIN };
    if (probe->owner < 0 || poll (&ready, 1, START_MS) != 1 ||
        read (report[0], &quarantine->client.client, sizeof (uint32_t)) != sizeof (uint32_t))
        quarantine->client.client = 0;
    close (report[0]);
    quarantine->pid = (uint32_t) probe->owner;
    return quarantine->client.client != 0;
}

/* Tries it with a piece of 64 KiB, as a tenant's would come and go. */
static bool can_move_pieces (struct dup_probe *probe)
{
    const struct connection *probing = &probe->connections[PROBE_CLIENT];
    struct probe_piece piece = { .handle = HANDLE_PIECES + (probe->pieces++ & (HANDLE_PIECES - 1)) };
    /* From 545 on the driver's struct is 8 bytes longer. attr: video memory. */
    union {
        NV_MEMORY_ALLOCATION_PARAMS params;
        uint8_t room[128];
    } memory = { .room = { 0 } };
    bool is_good;

    memory.params.owner = 0x6e76;
    memory.params.attr = 0x18000000;
    memory.params.size = 65536;
    if (driver_client_alloc (&probing->client, DRIVER_HANDLE_DEVICE + probing->client.gpus[0].instance, piece.handle,
                             NV01_MEMORY_LOCAL_USER, &memory) != 0)
        return true; /* a full GPU says nothing about the quarantine */
    is_good = probe_move (probe, &piece, QUARANTINE_CLIENT) && probe_move (probe, &piece, PROBE_CLIENT);
    probe_free (probe, &piece, PROBE_CLIENT);
    if (!is_good)
        probe_free (probe, &piece, QUARANTINE_CLIENT);
    return is_good;
}

struct dup_probe *probe_open (struct privsep *privsep)
{
    struct dup_probe *probe = calloc (1, sizeof (*probe));
    struct connection *probing, *quarantine;

    if (probe == NULL)
        return NULL;
    probing = &probe->connections[PROBE_CLIENT];
    quarantine = &probe->connections[QUARANTINE_CLIENT];
    quarantine->client = (struct driver_client) DRIVER_CLIENT_NONE;
    probe->owner_pipe = -1;
    probe->owner = -1;
    probing->pid = (uint32_t) getpid ();
    if (driver_client_open (&probing->client, privsep) && driver_client_open (&quarantine->client, privsep) &&
        driver_client_make (&probing->client) && start_owner (probe, quarantine)) {
        driver_client_make_devices (&probing->client);
        /* Better a line in the kernel's log for each GPU than a quarantine that takes nothing. */
        if (probing->client.gpu_count > 0 && !can_move_pieces (probe))
            driver_client_make_devices (&quarantine->client);
        if (probing->client.gpu_count > 0)
            return probe;
    }
    probe_close (probe);
    return NULL;
}

void probe_close (struct dup_probe *probe)
{
    if (probe == NULL)
        return;
    if (probe->owner_pipe >= 0)
        close (probe->owner_pipe);
    for (unsigned i = 0; i < 2; i++)
        driver_client_close (&probe->connections[i].client);
    while (probe->owner > 0 && waitpid (probe->owner, NULL, 0) < 0 && errno == EINTR)
        continue;
    free (probe);
}

int probe_gpu (const struct dup_probe *probe, const uint8_t uuid[16])
{
    return driver_client_gpu (&probe->connections[PROBE_CLIENT].client, uuid);
}

static uint32_t parent_of (const struct dup_probe *probe, const struct probe_piece *piece)
{
    return (piece->is_below_subdevice ? DRIVER_HANDLE_SUBDEVICE : DRIVER_HANDLE_DEVICE) +
           probe->connections[PROBE_CLIENT].client.gpus[piece->gpu].instance;
}

static uint32_t duplicate (const struct dup_probe *probe, const struct connection *to, const struct probe_piece *piece,
                           uint32_t client, uint32_t handle)
{
    NVOS55_PARAMETERS head = { .hClient = to->client.client,
                               .hParent = parent_of (probe, piece),
                               .hObject = piece->handle,
                               .hClientSrc = client,
                               .hObjectSrc = handle,
                               .status = DRIVER_FAILED };

    return ioctl (to->client.control, NV_REQUEST (NV_ESC_RM_DUP_OBJECT, sizeof (head)), &head) == 0 ? head.status : DRIVER_FAILED;
}

/* Whether the driver refuses a duplicate for what the object is, and so to UVM too. Not: it is gone, the handle is in use, memory is short. */
static bool is_about_it (uint32_t status)
{
    switch (status) {
    case NV_ERR_OBJECT_NOT_FOUND:
    case NV_ERR_INVALID_OBJECT_HANDLE:
    case NV_ERR_INVALID_CLIENT:
    case NV_ERR_INSERT_DUPLICATE_NAME:
    case NV_ERR_INSUFFICIENT_RESOURCES:
    case NV_ERR_NO_MEMORY:
    case DRIVER_FAILED:
        return false;
    default:
        return true;
    }
}

enum probe_result probe_duplicate (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, enum probe_client to,
                                   struct probe_piece *piece)
{
    const struct connection *connection = &probe->connections[to];
    uint32_t status = share (file, client, handle, connection->client.client, 0);

    piece->handle = HANDLE_PIECES + (probe->pieces++ & (HANDLE_PIECES - 1));
    if (status == NV_OK)
        status = duplicate (probe, connection, piece, client, handle);
    if (status == NV_OK)
        return PROBE_MADE;
    piece->handle = 0;
    return is_about_it (status) ? PROBE_NONE : PROBE_LOST;
}

void probe_free (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client from)
{
    NVOS00_PARAMETERS head = { .hObjectOld = piece->handle, .status = DRIVER_FAILED };

    if (piece->handle == 0)
        return;
    head.hRoot = probe->connections[from].client.client;
    head.hObjectParent = parent_of (probe, piece);
    (void) ioctl (probe->connections[from].client.control, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
}

bool probe_move (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client to)
{
    enum probe_client other = to == PROBE_CLIENT ? QUARANTINE_CLIENT : PROBE_CLIENT;
    const struct connection *from = &probe->connections[other], *target = &probe->connections[to];

    if (share (from->client.control, from->client.client, piece->handle, target->client.client, 0) != 0 ||
        duplicate (probe, target, piece, from->client.client, piece->handle) != 0)
        return false;
    probe_free (probe, piece, other);
    return true;
}

bool probe_take (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, int gpu, struct probe_piece *piece)
{
    const struct connection *connection = &probe->connections[QUARANTINE_CLIENT];

    *piece = (struct probe_piece) { .gpu = gpu, .handle = HANDLE_PIECES + (probe->pieces++ & (HANDLE_PIECES - 1)) };
    return (file < 0 || share (file, client, handle, connection->client.client, SHARE_COMPOSE) == 0) &&
           duplicate (probe, connection, piece, client, handle) == 0;
}

uint64_t probe_bytes (const struct dup_probe *probe, const struct probe_piece *piece, enum probe_client which)
{
    const struct driver_client *client = &probe->connections[which].client;
    NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS class = { .hObject = piece->handle,
                                                        .index = NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID };
    NV0041_CTRL_SURFACE_INFO size = { .index = NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE };
    NV0041_CTRL_GET_SURFACE_INFO_PARAMS info = { .surfaceInfoListSize = 1, .surfaceInfoList = (NvP64) (uintptr_t) &size };

    if (driver_client_control (client, client->client, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, &class, sizeof (class)) != NV_OK ||
        class.data.hResult != NV01_MEMORY_LOCAL_USER ||
        driver_client_control (client, piece->handle, NV0041_CTRL_CMD_GET_SURFACE_INFO, &info, sizeof (info)) != NV_OK)
        return 0;
    return (uint64_t) size.data * SURFACE_UNIT;
}

bool probe_import (struct dup_probe *probe, const struct rm_source *source, int gpu, struct probe_piece *piece)
{
    const struct driver_client *client = &probe->connections[QUARANTINE_CLIENT].client;
    union rm_import_params params;
    uint32_t parent, size, command;

    if (gpu < 0)
        return false;
    *piece = (struct probe_piece) { .gpu = gpu };
    parent = parent_of (probe, piece);
    command = rm_import_again (source, parent, &params, &size);
    if (driver_client_control (client, client->client, command, &params, size) != NV_OK)
        return false;
    piece->handle = rm_imported (source, &params);
    return piece->handle != 0;
}

bool probe_is_same (const struct dup_probe *probe, const struct probe_piece *piece, const struct probe_piece *other)
{
    const struct driver_client *client = &probe->connections[QUARANTINE_CLIENT].client;
    NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS params = { .hObject1 = piece->handle, .hObject2 = other->handle };

    return driver_client_control (client, client->client, NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES, &params,
                                  sizeof (params)) == NV_OK &&
           params.bDuplicates != 0;
}

bool probe_query (struct dup_probe *probe, int gpu, enum probe_client which, uint64_t *private_bytes, uint64_t *shared_bytes)
{
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *answer = &probe->answer;
    const NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA *found = &answer->pidInfoList[0].data.vidMemUsage;
    const struct driver_client *probing = &probe->connections[PROBE_CLIENT].client;

    /* All else of it is the driver's to fill. */
    answer->pidInfoListCount = 1;
    answer->pidInfoList[0].pid = probe->connections[which].pid;
    answer->pidInfoList[0].index = 0; /* video memory */
    if (driver_client_control (probing, DRIVER_HANDLE_SUBDEVICE + probing->gpus[gpu].instance, NV2080_CTRL_CMD_GPU_GET_PID_INFO,
                               answer, sizeof (*answer)) != NV_OK)
        return false;
    *private_bytes = found->memPrivate;
    *shared_bytes = found->memSharedOwned + found->memSharedDuped;
    return true;
}
