/* See witness.h. Clients are made as nvidia-smi makes its own: nvidiactl,
 * the GPUs' nodes registered with it, devices. */
#include "witness.h"

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

struct place {
    int control;
    uint32_t client;
    uint32_t pid;
    int nodes[SHARE_MAX_GPUS];
    unsigned node_count;
};

struct witness {
    struct place places[2];
    struct {
        uint8_t uuid[16];
        uint32_t instance;
    } gpus[SHARE_MAX_GPUS];
    int gpu_count;
    pid_t owner; /* of the store: a process that does nothing, until the pipe's other end is closed */
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

static uint32_t make (const struct place *place, uint32_t parent, uint32_t handle, uint32_t number, void *params)
{
    struct {
        uint32_t client, parent, handle, number;
        uint64_t params, rights;
        uint32_t params_size, flags, status, spare;
    } head = { place->client, parent, handle, number, (uint64_t) (uintptr_t) params, 0, 0, 0, FAILED, 0 };

    return call (place->control, ALLOC_REQUEST, &head, 40);
}

static uint32_t ask (const struct place *place, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    struct {
        uint32_t client, object, command, flags;
        uint64_t params;
        uint32_t size, status;
    } head = { place->client, object, command, 0, (uint64_t) (uintptr_t) params, size, FAILED };

    return call (place->control, CONTROL_REQUEST, &head, 28);
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

/* A device and a subdevice for each GPU, under the same handles in both places. Made by the process that made the
 * client: the driver asserts it on the way to the GPU's firmware (device.c). */
static void furnish (const struct place *place)
{
    for (uint32_t i = 0; i < place->node_count; i++) {
        uint8_t params[DEVICE_PARAMS_SIZE] = { 0 };
        uint32_t zero = 0;

        memcpy (params, &i, sizeof (i)); /* deviceId */
        if (make (place, place->client, HANDLE_DEVICE + i, CLASS_DEVICE_0, params) != 0)
            break;
        make (place, HANDLE_DEVICE + i, HANDLE_SUBDEVICE + i, CLASS_SUBDEVICE_0, &zero);
    }
}

/* In the other process: it shares nothing with this one but the open file, and ends with it. */
static void own (struct place *store, int said, int waits)
{
    unsigned low = (unsigned) (said < waits ? said : waits), high = (unsigned) (said < waits ? waits : said);
    char byte;

    prctl (PR_SET_NAME, "nvc-keeper");
    signal (SIGINT, SIG_IGN);
    signal (SIGTERM, SIG_DFL);
    store->client = make_root (store->control);
    if (store->client != 0)
        furnish (store);
    /* A listener that stayed open here would keep a container waiting for a guard that is gone. */
    if ((low > 0 && syscall (SYS_close_range, 0, low - 1, 0) != 0) ||
        (high > low + 1 && syscall (SYS_close_range, low + 1, high - 1, 0) != 0) ||
        syscall (SYS_close_range, high + 1, ~0u, 0) != 0)
        _exit (1);
    if (write (said, &store->client, sizeof (store->client)) != sizeof (store->client))
        _exit (1);
    close (said);
    while (read (waits, &byte, 1) < 0 && errno == EINTR)
        continue;
    _exit (0);
}

static bool start_owner (struct witness *witness, struct place *store)
{
    int said[2], waits[2];
    struct pollfd ready;

    if (pipe2 (said, O_CLOEXEC) != 0)
        return false;
    if (pipe2 (waits, O_CLOEXEC) != 0) {
        close (said[0]);
        close (said[1]);
        return false;
    }
    witness->owner = fork ();
    if (witness->owner == 0)
        own (store, said[1], waits[0]);
    close (said[1]);
    close (waits[0]);
    witness->owner_pipe = waits[1];
    ready = (struct pollfd) { .fd = said[0], .events = POLLIN };
    if (witness->owner < 0 || poll (&ready, 1, START_MS) != 1 ||
        read (said[0], &store->client, sizeof (store->client)) != sizeof (store->client))
        store->client = 0;
    close (said[0]);
    store->pid = (uint32_t) witness->owner;
    return store->client != 0;
}

static bool open_files (struct place *place, const char *directory)
{
    char path[512];

    snprintf (path, sizeof (path), "%s/nvidiactl", directory);
    place->control = open (path, O_RDWR | O_CLOEXEC);
    for (unsigned i = 0; place->control >= 0 && i < SHARE_MAX_GPUS; i++) {
        int32_t control = place->control;
        int node;

        snprintf (path, sizeof (path), "%s/nvidia%u", directory, i);
        node = open (path, O_RDWR | O_CLOEXEC);
        if (node < 0)
            continue;
        ioctl (node, REGISTER_FD, &control);
        place->nodes[place->node_count++] = node;
    }
    return place->node_count != 0;
}

static void find_gpus (struct witness *witness, const struct place *place)
{
    for (uint32_t i = 0; i < place->node_count; i++) {
        uint32_t flags = GID_BINARY;
        uint8_t gid[268] = { 0 };

        memcpy (gid + 4, &flags, sizeof (flags));
        if (ask (place, HANDLE_SUBDEVICE + i, GET_GID_INFO, gid, sizeof (gid)) != 0)
            continue;
        memcpy (witness->gpus[witness->gpu_count].uuid, gid + 12, 16);
        witness->gpus[witness->gpu_count++].instance = i;
    }
}

/* Tries it with a piece of 64 KiB, as a tenant's would come and go. */
static bool takes_pieces (struct witness *witness)
{
    const struct place *stand = &witness->places[WITNESS_STAND];
    struct witness_piece piece = { .handle = HANDLE_PIECES + (witness->pieces++ & (HANDLE_PIECES - 1)) };
    uint8_t params[128] = { 0 };
    uint32_t owner = 0x6e76, attributes = 0x18000000; /* NV_MEMORY_ALLOCATION_PARAMS: owner, attr; video memory */
    uint64_t size = 65536;
    bool is_good;

    memcpy (params, &owner, sizeof (owner));
    memcpy (params + 24, &attributes, sizeof (attributes));
    memcpy (params + 64, &size, sizeof (size));
    if (make (stand, HANDLE_DEVICE + witness->gpus[0].instance, piece.handle, CLASS_VIDEO_MEMORY, params) != 0)
        return true; /* a full GPU says nothing about the store */
    is_good = witness_move (witness, &piece, WITNESS_STORE) && witness_move (witness, &piece, WITNESS_STAND);
    witness_free (witness, &piece, WITNESS_STAND);
    if (!is_good)
        witness_free (witness, &piece, WITNESS_STORE);
    return is_good;
}

struct witness *witness_open (const char *device_directory)
{
    struct witness *witness = calloc (1, sizeof (*witness));
    struct place *stand, *store;

    if (witness == NULL)
        return NULL;
    stand = &witness->places[WITNESS_STAND];
    store = &witness->places[WITNESS_STORE];
    stand->control = store->control = witness->owner_pipe = -1;
    witness->owner = -1;
    stand->pid = (uint32_t) getpid ();
    if (open_files (stand, device_directory) && open_files (store, device_directory) &&
        (stand->client = make_root (stand->control)) != 0 && start_owner (witness, store)) {
        furnish (stand);
        find_gpus (witness, stand);
        /* Better a line in the kernel's log for each GPU than a store that takes nothing. */
        if (witness->gpu_count > 0 && !takes_pieces (witness))
            furnish (store);
        if (witness->gpu_count > 0)
            return witness;
    }
    witness_close (witness);
    return NULL;
}

void witness_close (struct witness *witness)
{
    if (witness == NULL)
        return;
    if (witness->owner_pipe >= 0)
        close (witness->owner_pipe);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < witness->places[i].node_count; k++)
            close (witness->places[i].nodes[k]);
        if (witness->places[i].control >= 0)
            close (witness->places[i].control);
    }
    while (witness->owner > 0 && waitpid (witness->owner, NULL, 0) < 0 && errno == EINTR)
        continue;
    free (witness);
}

int witness_gpu (const struct witness *witness, const uint8_t uuid[16])
{
    for (int i = 0; i < witness->gpu_count; i++)
        if (memcmp (witness->gpus[i].uuid, uuid, 16) == 0)
            return i;
    return -1;
}

static uint32_t parent_of (const struct witness *witness, const struct witness_piece *piece)
{
    return (piece->is_below_subdevice ? HANDLE_SUBDEVICE : HANDLE_DEVICE) + witness->gpus[piece->gpu].instance;
}

static uint32_t duplicate (const struct witness *witness, const struct place *to, const struct witness_piece *piece,
                           uint32_t client, uint32_t handle)
{
    uint32_t head[7] = { to->client, parent_of (witness, piece), piece->handle, client, handle, 0, FAILED };

    return call (to->control, DUP_REQUEST, head, 24);
}

bool witness_call (struct witness *witness, int file, uint32_t client, uint32_t handle, enum witness_place to,
                   struct witness_piece *piece)
{
    const struct place *place = &witness->places[to];

    piece->handle = HANDLE_PIECES + (witness->pieces++ & (HANDLE_PIECES - 1));
    return share (file, client, handle, place->client) == 0 && duplicate (witness, place, piece, client, handle) == 0;
}

void witness_free (struct witness *witness, const struct witness_piece *piece, enum witness_place from)
{
    uint32_t head[4] = { witness->places[from].client, parent_of (witness, piece), piece->handle, FAILED };

    call (witness->places[from].control, FREE_REQUEST, head, 12);
}

bool witness_move (struct witness *witness, const struct witness_piece *piece, enum witness_place to)
{
    enum witness_place other = to == WITNESS_STAND ? WITNESS_STORE : WITNESS_STAND;
    const struct place *from = &witness->places[other], *target = &witness->places[to];

    if (share (from->control, from->client, piece->handle, target->client) != 0 ||
        duplicate (witness, target, piece, from->client, piece->handle) != 0)
        return false;
    witness_free (witness, piece, other);
    return true;
}

bool witness_ask (struct witness *witness, int gpu, enum witness_place place, uint64_t *private_bytes, uint64_t *shared_bytes)
{
    uint32_t head[4] = { 1, 0, witness->places[place].pid, 0 };
    uint64_t found[3];

    /* All of it is the driver's to fill but the head: count, pid, index (video memory). */
    memcpy (witness->answer, head, sizeof (head));
    if (ask (&witness->places[WITNESS_STAND], HANDLE_SUBDEVICE + witness->gpus[gpu].instance, GET_PID_INFO, witness->answer,
             PID_INFO_SIZE) != 0)
        return false;
    memcpy (found, witness->answer + PID_INFO_PRIVATE, sizeof (found)); /* memPrivate, memSharedOwned, memSharedDuped */
    *private_bytes = found[0];
    *shared_bytes = found[1] + found[2];
    return true;
}
