/* The calls of keep_probe.c: a client of the resource manager, memory of its, and what the driver says about it. Numbers
 * and layouts: nv_escape.h, nvos.h, rs_access.h. */
#ifndef NVC_KEEP_CALLS_H
#define NVC_KEEP_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define MIB ((uint64_t) 1 << 20)
#define REQUEST(number, size) (0xc0000000u | ((uint32_t) (size) << 16) | ('F' << 8) | (number))
#define DEVICE 0x5c000001u
#define SUBDEVICE 0x5c000002u
#define SPACE 0x5c000090u
#define MEMORY 0x5d000000u
#define COPY 0x5e000000u
#define BASE 0x700000000000u
#define ROUNDS 300

struct client {
    int file, node;
    uint32_t handle;
};

struct numbers {
    uint64_t private, owned, duped;
};

static uint64_t now (void)
{
    struct timespec time;

    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

static uint32_t status_of (int file, uint32_t request, void *params, size_t status_at)
{
    uint32_t status;

    if (ioctl (file, request, params) < 0)
        return 0x10000u + (uint32_t) errno;
    memcpy (&status, (uint8_t *) params + status_at, sizeof (status));
    return status;
}

static uint32_t make (const struct client *client, uint32_t parent, uint32_t handle, uint32_t number, void *params)
{
    uint64_t call[6] = {
        client->handle | (uint64_t) parent << 32, handle | (uint64_t) number << 32, (uintptr_t) params, 0, 0, 0xffff
    };

    return status_of (client->file, REQUEST (0x2b, 48), call, 40);
}

static uint32_t ask (const struct client *client, uint32_t command, void *params, uint32_t size)
{
    uint64_t call[4] = { client->handle | (uint64_t) SUBDEVICE << 32, command, (uintptr_t) params, size | (uint64_t) 0xffff << 32 };

    return status_of (client->file, REQUEST (0x2a, 32), call, 28);
}

static uint32_t release (const struct client *client, uint32_t handle)
{
    uint32_t call[4] = { client->handle, DEVICE, handle, 0xffff };

    return status_of (client->file, REQUEST (0x29, 16), call, 12);
}

static uint32_t duplicate (const struct client *to, uint32_t handle, uint32_t from, uint32_t source)
{
    uint32_t call[7] = { to->handle, DEVICE, handle, from, source, 0, 0xffff };

    return status_of (to->file, REQUEST (0x34, 28), call, 24);
}

/* Allows one client alone to duplicate an object; or, of the client itself, all of its objects, beside what is
 * allowed already. DUP_OBJECT; TYPE_CLIENT, COMPOSE. */
static uint32_t share (const struct client *owner, uint32_t object, uint32_t target)
{
    uint32_t call[6] = { owner->handle, object, target, 1, 3 | (object == owner->handle ? 4 << 16 : 0), 0xffff };

    return status_of (owner->file, REQUEST (0x35, 24), call, 20);
}

static uint32_t allocate (const struct client *client, uint32_t handle, uint64_t size)
{
    uint8_t params[128] = { 0 };
    uint32_t owner = 0x6e76, attributes = 0x18000000;

    memcpy (params, &owner, 4);
    memcpy (params + 24, &attributes, 4);
    memcpy (params + 64, &size, 8);
    return make (client, DEVICE, handle, 0x40, params);
}

static struct client opened (void)
{
    struct client client = { .file = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC),
                             .node = open ("/dev/nvidia0", O_RDWR | O_CLOEXEC) };

    if (client.file < 0 || client.node < 0) {
        perror ("open");
        exit (1);
    }
    ioctl (client.node, REQUEST (0xc9, 4), &client.file);
    return client;
}

/* The client belongs to the process that calls this. */
static uint32_t rooted (struct client *client)
{
    uint64_t call[6] = { 0, 0, 0, 0, 0, 0xffff };
    uint32_t status = status_of (client->file, REQUEST (0x2b, 48), call, 40);

    client->handle = (uint32_t) call[1];
    return status;
}

static void furnish (struct client *client)
{
    uint8_t device[56] = { 0 };
    uint32_t zero = 0, status = make (client, client->handle, DEVICE, 0x80, device);

    if (status == 0)
        status = make (client, DEVICE, SUBDEVICE, 0x2080, &zero);
    if (status != 0) {
        printf ("device=%x\n", status);
        exit (1);
    }
}

static struct numbers numbers_of (const struct client *asker, pid_t pid)
{
    static uint8_t params[14408];
    uint32_t one = 1, number = (uint32_t) pid;
    struct numbers numbers = { 0 };

    memset (params, 0, sizeof (params));
    memcpy (params, &one, 4);
    memcpy (params + 8, &number, 4);
    if (ask (asker, 0x2080018e, params, sizeof (params)) == 0)
        memcpy (&numbers, params + 24, sizeof (numbers));
    return numbers;
}

static uint32_t free_mib (const struct client *asker)
{
    uint32_t entry[2] = { 0x16, 0 }; /* HEAP_FREE, KiB */
    uint64_t params[2] = { 1, (uintptr_t) entry };

    return ask (asker, 0x20801301, params, sizeof (params)) == 0 ? entry[1] >> 10 : UINT32_MAX;
}

#endif
