/* See dup_probe.h. Clients are made as nvidia-smi makes its own: nvidiactl,
 * the GPUs' nodes registered with it, devices. */
#include "dup_probe.h"

#include "rm/abi.h"
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

/* nv-ioctl-numbers.h, nv_escape.h, nvos.h, rs_access.h, cl0000.h, cl0080.h, cl2080.h, ctrl2080gpu.h */
#define REQUEST(number, size) (0xc0000000u | ((uint32_t) (size) << 16) | ('F' << 8) | (number))
#define REGISTER_FD REQUEST (201, 4)
#define FREE_REQUEST REQUEST (0x29, 16)
#define CONTROL_REQUEST REQUEST (0x2a, 32)
#define ALLOC_REQUEST REQUEST (0x2b, 48)
#define DUP_REQUEST REQUEST (0x34, 28)
#define SHARE_REQUEST REQUEST (0x35, 24)
#define CLASS_ROOT 0x0u
#define CLASS_DEVICE_0 0x80u
#define CLASS_SUBDEVICE_0 0x2080u
#define CLASS_VIDEO_MEMORY 0x40u
#define GET_GID_INFO 0x2080014au
#define GET_PID_INFO 0x2080018eu
#define GID_BINARY 2u
#define PID_INFO_SIZE 14408u
#define PID_INFO_PRIVATE 24u
#define DEVICE_PARAMS_SIZE 56u
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
    uint8_t answer[PID_INFO_SIZE];
};

static uint32_t call (int file, uint32_t request, void *params, size_t status_at)
{
    uint32_t status;

    if (ioctl (file, request, params) != 0)
        return FAILED;
    memcpy (&status, (uint8_t *) params + status_at, sizeof (status));
    return status;
}

static uint32_t make (const struct connection *connection, uint32_t parent, uint32_t handle, uint32_t number, void *params)
{
    struct {
        uint32_t client, parent, handle, number;
        uint64_t params, rights;
        uint32_t params_size, flags, status, spare;
    } head = { connection->client, parent, handle, number, (uint64_t) (uintptr_t) params, 0, 0, 0, FAILED, 0 };

    return call (connection->control, ALLOC_REQUEST, &head, 40);
}

static uint32_t ask (const struct connection *connection, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    struct {
        uint32_t client, object, command, flags;
        uint64_t params;
        uint32_t size, status;
    } head = { connection->client, object, command, 0, (uint64_t) (uintptr_t) params, size, FAILED };

    return call (connection->control, CONTROL_REQUEST, &head, 28);
}

/* In place of whatever its owner allowed, this client and no other may duplicate the object. */
static uint32_t share (int file, uint32_t client, uint32_t object, uint32_t target)
{
    uint32_t head[6] = { client, object, target, SHARE_DUP_OBJECT, SHARE_TYPE_CLIENT, FAILED };

    return call (file, SHARE_REQUEST, head, 20);
}

/* The client belongs to the process that makes this call. 0: none. */
static uint32_t make_root (int control)
{
    uint32_t head[12] = { [3] = CLASS_ROOT, [10] = FAILED };

    return call (control, ALLOC_REQUEST, head, 40) == 0 ? head[2] : 0;
}

/* A device and a subdevice for each GPU, under the same handles in both clients. Made by the process that made the
 * client: the driver asserts it on the way to the GPU's firmware (device.c). */
static void make_devices (const struct connection *connection)
{
    for (uint32_t i = 0; i < connection->node_count; i++) {
        uint8_t params[DEVICE_PARAMS_SIZE] = { 0 };
        uint32_t zero = 0;

        memcpy (params, &i, sizeof (i)); /* deviceId */
        if (make (connection, connection->client, HANDLE_DEVICE + i, CLASS_DEVICE_0, params) != 0)
            break;
        make (connection, HANDLE_DEVICE + i, HANDLE_SUBDEVICE + i, CLASS_SUBDEVICE_0, &zero);
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
        ioctl (node, REGISTER_FD, &control);
        connection->nodes[connection->node_count++] = node;
    }
    return connection->node_count != 0;
}

static void find_gpus (struct dup_probe *probe, const struct connection *connection)
{
    for (uint32_t i = 0; i < connection->node_count; i++) {
        uint32_t flags = GID_BINARY;
        uint8_t gid[268] = { 0 };

        memcpy (gid + 4, &flags, sizeof (flags));
        if (ask (connection, HANDLE_SUBDEVICE + i, GET_GID_INFO, gid, sizeof (gid)) != 0)
            continue;
        memcpy (probe->gpus[probe->gpu_count].uuid, gid + 12, 16);
        probe->gpus[probe->gpu_count++].instance = i;
    }
}

/* Tries it with a piece of 64 KiB, as a tenant's would come and go. */
static bool can_move_pieces (struct dup_probe *probe)
{
    const struct connection *probing = &probe->connections[PROBE_CLIENT];
    struct probe_piece piece = { .handle = HANDLE_PIECES + (probe->pieces++ & (HANDLE_PIECES - 1)) };
    uint8_t params[128] = { 0 };
    uint32_t owner = 0x6e76, attributes = 0x18000000; /* NV_MEMORY_ALLOCATION_PARAMS: owner, attr; video memory */
    uint64_t size = 65536;
    bool is_good;

    memcpy (params, &owner, sizeof (owner));
    memcpy (params + 24, &attributes, sizeof (attributes));
    memcpy (params + 64, &size, sizeof (size));
    if (make (probing, HANDLE_DEVICE + probe->gpus[0].instance, piece.handle, CLASS_VIDEO_MEMORY, params) != 0)
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
    uint32_t head[7] = { to->client, parent_of (probe, piece), piece->handle, client, handle, 0, FAILED };

    return call (to->control, DUP_REQUEST, head, 24);
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
    uint32_t head[4] = { probe->connections[from].client, parent_of (probe, piece), piece->handle, FAILED };

    call (probe->connections[from].control, FREE_REQUEST, head, 12);
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
    uint32_t head[4] = { 1, 0, probe->connections[which].pid, 0 };
    uint64_t found[3];

    /* All of it is the driver's to fill but the head: count, pid, index (video memory). */
    memcpy (probe->answer, head, sizeof (head));
    if (ask (&probe->connections[PROBE_CLIENT], HANDLE_SUBDEVICE + probe->gpus[gpu].instance, GET_PID_INFO, probe->answer,
             PID_INFO_SIZE) != 0)
        return false;
    memcpy (found, probe->answer + PID_INFO_PRIVATE, sizeof (found)); /* memPrivate, memSharedOwned, memSharedDuped */
    *private_bytes = found[0];
    *shared_bytes = found[1] + found[2];
    return true;
}
