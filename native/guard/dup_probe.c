/* See dup_probe.h. Clients are made as nvidia-smi makes its own: nvidiactl,
 * the GPUs' nodes registered with it, devices. */
#include "dup_probe.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "shim/share.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
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
#define HANDLE_DEVICE 0xcaf00000u
#define HANDLE_SUBDEVICE 0xcaf01000u
#define HANDLE_PIECES 0x40000000u
#define FAILED 0xffffu
#define START_MS 10000

/* Open files of the driver's nodes with one client. */
struct connection {
    int control;
    uint32_t client;
    uint32_t pid; /* of the process that made the client */
    int nodes[SHARE_MAX_GPUS];
    unsigned node_count;
};

struct dup_probe {
    struct connection connections[2];
    struct {
        uint8_t uuid[16];
        uint32_t instance;
    } gpus[SHARE_MAX_GPUS];
    int gpu_count;
    pid_t owner; /* of the quarantine: a process that does nothing, until the pipe's other end is closed */
    int owner_pipe;
    uint32_t pieces;
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS answer;
};

static uint32_t make (const struct connection *connection, uint32_t parent, uint32_t handle, uint32_t number, void *params)
{
    NVOS64_PARAMETERS head = { .hRoot = connection->client,
                               .hObjectParent = parent,
                               .hObjectNew = handle,
                               .hClass = number,
                               .pAllocParms = (NvP64) (uintptr_t) params,
                               .status = FAILED };

    return ioctl (connection->control, NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (head)), &head) == 0 ? head.status : FAILED;
}

static uint32_t ask (const struct connection *connection, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    NVOS54_PARAMETERS head = { .hClient = connection->client,
                               .hObject = object,
                               .cmd = command,
                               .params = (NvP64) (uintptr_t) params,
                               .paramsSize = size,
                               .status = FAILED };

    return ioctl (connection->control, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (head)), &head) == 0 ? head.status : FAILED;
}

/* In place of whatever its owner allowed, this client and no other may duplicate the object. */
static uint32_t share (int file, uint32_t client, uint32_t object, uint32_t target)
{
    NVOS57_PARAMETERS head = { .hClient = client,
                               .hObject = object,
                               .sharePolicy = { .target = target, .accessMask = SHARE_DUP_OBJECT, .type = SHARE_TYPE_CLIENT },
                               .status = FAILED };

    return ioctl (file, NV_REQUEST (NV_ESC_RM_SHARE, sizeof (head)), &head) == 0 ? head.status : FAILED;
}

/* The client belongs to the process that makes this call. 0: none. */
static uint32_t make_root (int control)
{
    NVOS64_PARAMETERS head = { .hClass = NV01_ROOT, .status = FAILED };

    return ioctl (control, NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (head)), &head) == 0 && head.status == 0 ? head.hObjectNew : 0;
}

/* A device and a subdevice for each GPU, under the same handles in both clients. Made by the process that made the
 * client: the driver asserts it on the way to the GPU's firmware (device.c). */
static void make_devices (const struct connection *connection)
{
    for (uint32_t i = 0; i < connection->node_count; i++) {
        NV0080_ALLOC_PARAMETERS params = { .deviceId = i };
        NV2080_ALLOC_PARAMETERS first = { 0 };

        if (make (connection, connection->client, HANDLE_DEVICE + i, NV01_DEVICE_0, &params) != 0)
            break;
        make (connection, HANDLE_DEVICE + i, HANDLE_SUBDEVICE + i, NV20_SUBDEVICE_0, &first);
    }
}

/* The process that owns the quarantine: it shares nothing with this one but the open file, and ends with it. */
static void hold_quarantine (struct connection *quarantine, int report, int waits)
{
    unsigned low = (unsigned) (report < waits ? report : waits), high = (unsigned) (report < waits ? waits : report);
    char byte;

    prctl (PR_SET_NAME, "nvc-keeper");
    signal (SIGINT, SIG_IGN);
    signal (SIGTERM, SIG_DFL);
    quarantine->client = make_root (quarantine->control);
    if (quarantine->client != 0)
        make_devices (quarantine);
    /* A listener that stayed open here would keep a container waiting for a guard that is gone. */
    if ((low > 0 && syscall (SYS_close_range, 0, low - 1, 0) != 0) ||
        (high > low + 1 && syscall (SYS_close_range, low + 1, high - 1, 0) != 0) ||
        syscall (SYS_close_range, high + 1, ~0u, 0) != 0)
        _exit (1);
    if (write (report, &quarantine->client, sizeof (quarantine->client)) != sizeof (quarantine->client))
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
        read (report[0], &quarantine->client, sizeof (quarantine->client)) != sizeof (quarantine->client))
        quarantine->client = 0;
    close (report[0]);
    quarantine->pid = (uint32_t) probe->owner;
    return quarantine->client != 0;
}

static bool open_files (struct connection *connection, const char *directory)
{
    char path[512];

    snprintf (path, sizeof (path), "%s/nvidiactl", directory);
    connection->control = open (path, O_RDWR | O_CLOEXEC);
    for (unsigned i = 0; connection->control >= 0 && i < SHARE_MAX_GPUS; i++) {
        int32_t control = connection->control;
        int node;

        snprintf (path, sizeof (path), "%s/nvidia%u", directory, i);
        node = open (path, O_RDWR | O_CLOEXEC);
        if (node < 0)
            continue;
        ioctl (node, NV_REQUEST (NV_ESC_REGISTER_FD, sizeof (control)), &control);
        connection->nodes[connection->node_count++] = node;
    }
    return connection->node_count != 0;
}

static void find_gpus (struct dup_probe *probe, const struct connection *connection)
{
    for (uint32_t i = 0; i < connection->node_count; i++) {
        NV2080_CTRL_GPU_GET_GID_INFO_PARAMS gid = { .flags = NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY };

        if (ask (connection, HANDLE_SUBDEVICE + i, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &gid, sizeof (gid)) != 0)
            continue;
        memcpy (probe->gpus[probe->gpu_count].uuid, gid.data, 16);
        probe->gpus[probe->gpu_count++].instance = i;
    }
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
    if (make (probing, HANDLE_DEVICE + probe->gpus[0].instance, piece.handle, NV01_MEMORY_LOCAL_USER, &memory) != 0)
        return true; /* a full GPU says nothing about the quarantine */
    is_good = probe_move (probe, &piece, QUARANTINE_CLIENT) && probe_move (probe, &piece, PROBE_CLIENT);
    probe_free (probe, &piece, PROBE_CLIENT);
    if (!is_good)
        probe_free (probe, &piece, QUARANTINE_CLIENT);
    return is_good;
}

struct dup_probe *probe_open (const char *device_directory)
{
    struct dup_probe *probe = calloc (1, sizeof (*probe));
    struct connection *probing, *quarantine;

    if (probe == NULL)
        return NULL;
    probing = &probe->connections[PROBE_CLIENT];
    quarantine = &probe->connections[QUARANTINE_CLIENT];
    probing->control = quarantine->control = probe->owner_pipe = -1;
    probe->owner = -1;
    probing->pid = (uint32_t) getpid ();
    if (open_files (probing, device_directory) && open_files (quarantine, device_directory) &&
        (probing->client = make_root (probing->control)) != 0 && start_owner (probe, quarantine)) {
        make_devices (probing);
        find_gpus (probe, probing);
        /* Better a line in the kernel's log for each GPU than a quarantine that takes nothing. */
        if (probe->gpu_count > 0 && !can_move_pieces (probe))
            make_devices (quarantine);
        if (probe->gpu_count > 0)
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
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < probe->connections[i].node_count; k++)
            close (probe->connections[i].nodes[k]);
        if (probe->connections[i].control >= 0)
            close (probe->connections[i].control);
    }
    while (probe->owner > 0 && waitpid (probe->owner, NULL, 0) < 0 && errno == EINTR)
        continue;
    free (probe);
}

int probe_gpu (const struct dup_probe *probe, const uint8_t uuid[16])
{
    for (int i = 0; i < probe->gpu_count; i++)
        if (memcmp (probe->gpus[i].uuid, uuid, 16) == 0)
            return i;
    return -1;
}

static uint32_t parent_of (const struct dup_probe *probe, const struct probe_piece *piece)
{
    return (piece->is_below_subdevice ? HANDLE_SUBDEVICE : HANDLE_DEVICE) + probe->gpus[piece->gpu].instance;
}

static uint32_t duplicate (const struct dup_probe *probe, const struct connection *to, const struct probe_piece *piece,
                           uint32_t client, uint32_t handle)
{
    NVOS55_PARAMETERS head = { .hClient = to->client,
                               .hParent = parent_of (probe, piece),
                               .hObject = piece->handle,
                               .hClientSrc = client,
                               .hObjectSrc = handle,
                               .status = FAILED };

    return ioctl (to->control, NV_REQUEST (NV_ESC_RM_DUP_OBJECT, sizeof (head)), &head) == 0 ? head.status : FAILED;
}

bool probe_duplicate (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, enum probe_client to,
                      struct probe_piece *piece)
{
    const struct connection *connection = &probe->connections[to];

    piece->handle = HANDLE_PIECES + (probe->pieces++ & (HANDLE_PIECES - 1));
    return share (file, client, handle, connection->client) == 0 && duplicate (probe, connection, piece, client, handle) == 0;
}

void probe_free (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client from)
{
    NVOS00_PARAMETERS head = { .hRoot = probe->connections[from].client,
                               .hObjectParent = parent_of (probe, piece),
                               .hObjectOld = piece->handle,
                               .status = FAILED };

    (void) ioctl (probe->connections[from].control, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
}

bool probe_move (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client to)
{
    enum probe_client other = to == PROBE_CLIENT ? QUARANTINE_CLIENT : PROBE_CLIENT;
    const struct connection *from = &probe->connections[other], *target = &probe->connections[to];

    if (share (from->control, from->client, piece->handle, target->client) != 0 ||
        duplicate (probe, target, piece, from->client, piece->handle) != 0)
        return false;
    probe_free (probe, piece, other);
    return true;
}

bool probe_query (struct dup_probe *probe, int gpu, enum probe_client which, uint64_t *private_bytes, uint64_t *shared_bytes)
{
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *answer = &probe->answer;
    const NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA *found = &answer->pidInfoList[0].data.vidMemUsage;

    /* All else of it is the driver's to fill. */
    answer->pidInfoListCount = 1;
    answer->pidInfoList[0].pid = probe->connections[which].pid;
    answer->pidInfoList[0].index = 0; /* video memory */
    if (ask (&probe->connections[PROBE_CLIENT], HANDLE_SUBDEVICE + probe->gpus[gpu].instance, NV2080_CTRL_CMD_GPU_GET_PID_INFO,
             answer, sizeof (*answer)) != 0)
        return false;
    *private_bytes = found->memPrivate;
    *shared_bytes = found->memSharedOwned + found->memSharedDuped;
    return true;
}
