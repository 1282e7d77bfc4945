/*
 * Driver-reported usage: the guard's own client of the driver, asked how much video memory the clients of a process hold, which the
 * ledger cannot know. A process may be dead and its open file live on in a child, in a socket's queue or in a ring of io_uring; and a
 * continued call may have become another one than was checked.
 *
 * The client is made as nvidia-smi makes its own: nvidiactl, the GPUs' nodes registered with it, device, subdevice. All of it runs in
 * tenants' threads, under guard->driver_usage_lock.
 */
#include "tenant.h"

#include "rm/abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* nv-ioctl-numbers.h, nv_escape.h, nvos.h, cl0000.h, cl0080.h, cl2080.h, ctrl2080gpu.h */
#define REQUEST(number, size) (0xc0000000u | ((uint32_t) (size) << 16) | ('F' << 8) | (number))
#define REGISTER_FD REQUEST (201, 4)
#define ALLOC_REQUEST REQUEST (0x2b, 48)
#define CONTROL_REQUEST REQUEST (0x2a, 32)
#define CLASS_ROOT 0x0u
#define CLASS_DEVICE_0 0x80u
#define CLASS_SUBDEVICE_0 0x2080u
#define GET_GID_INFO 0x2080014au
#define GET_PID_INFO 0x2080018eu
#define GID_BINARY 2u
#define PID_INFO_SIZE 14408u
#define DEVICE_PARAMS_SIZE 56u
#define HANDLE_DEVICE 0xcaf00000u
#define HANDLE_SUBDEVICE 0xcaf01000u

struct alloc {
    uint32_t root, parent, object, number;
    uint64_t params, rights;
    uint32_t params_size, flags, status, spare;
};
struct control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
_Static_assert (sizeof (struct alloc) == 48 && sizeof (struct control) == 32, "NVOS64, NVOS54");

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
    uint8_t answer[PID_INFO_SIZE];
};

static uint32_t make (struct driver_usage *usage, uint32_t parent, uint32_t *object, uint32_t number, void *params)
{
    struct alloc alloc = { .root = usage->client, .parent = parent, .object = *object, .number = number,
                           .params = (uint64_t) (uintptr_t) params };

    if (ioctl (usage->control, ALLOC_REQUEST, &alloc) != 0)
        return STATUS_NOT_SUPPORTED;
    *object = alloc.object;
    return alloc.status;
}

static uint32_t ask (struct driver_usage *usage, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    struct control control = { .client = usage->client, .object = object, .command = command,
                               .params = (uint64_t) (uintptr_t) params, .params_size = size };

    return ioctl (usage->control, CONTROL_REQUEST, &control) == 0 ? control.status : STATUS_NOT_SUPPORTED;
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
        ioctl (node, REGISTER_FD, &control);
        usage->nodes[usage->node_count++] = node;
    }
}

static void find_gpus (struct driver_usage *usage)
{
    for (uint32_t i = 0; i < usage->node_count; i++) {
        uint8_t params[DEVICE_PARAMS_SIZE] = { 0 };
        uint8_t gid[268] = { 0 };
        uint32_t device = HANDLE_DEVICE + i, subdevice = HANDLE_SUBDEVICE + i, zero = 0, flags = GID_BINARY;

        memcpy (params, &i, sizeof (i)); /* deviceId */
        /* Numbers are given without gaps, and asking for one that is not there makes a line in the kernel's log. */
        if (make (usage, usage->client, &device, CLASS_DEVICE_0, params) != 0)
            break;
        if (make (usage, device, &subdevice, CLASS_SUBDEVICE_0, &zero) != 0)
            continue;
        memcpy (gid + 4, &flags, sizeof (flags));
        if (ask (usage, subdevice, GET_GID_INFO, gid, sizeof (gid)) != 0)
            continue;
        memcpy (usage->gpus[usage->gpu_count].uuid, gid + 12, 16);
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
    if (usage->control < 0 || make (usage, 0, &usage->client, CLASS_ROOT, NULL) != 0) {
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
    uint32_t one = 1, number = (uint32_t) pid;
    uint64_t private, owned;

    for (unsigned i = 0; i < usage->gpu_count; i++) {
        if (memcmp (usage->gpus[i].uuid, uuid, 16) != 0)
            continue;
        memset (usage->answer, 0, sizeof (usage->answer));
        memcpy (usage->answer, &one, sizeof (one));
        memcpy (usage->answer + 8, &number, sizeof (number));
        if (ask (usage, usage->gpus[i].subdevice, GET_PID_INFO, usage->answer, sizeof (usage->answer)) != 0)
            return -EIO;
        memcpy (&private, usage->answer + 8 + 16, sizeof (private)); /* memPrivate */
        memcpy (&owned, usage->answer + 8 + 24, sizeof (owned));     /* memSharedOwned: with other handles, UVM's too */
        *bytes = private + owned;
        return 0;
    }
    return -ENODEV;
}
