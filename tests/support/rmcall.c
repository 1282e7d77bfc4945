/* rmcall BYTES: what a program does that wants video memory, by the driver's own calls, as one JSON object on stdout.

   Opens /dev/nvidiactl, makes a client with a device and a subdevice, allocates BYTES, asks for free memory and for the
   processes on the GPU. Static, so that it runs in any container. With a second argument it then waits for its stdin. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct alloc {
    uint32_t root, parent, object, class_number;
    uint64_t params, rights;
    uint32_t size, flags, status, pad;
};

struct control {
    uint32_t client, object, number, flags;
    uint64_t params;
    uint32_t size, status;
};

static int file;

static uint32_t allocate (uint32_t client, uint32_t parent, uint32_t *object, uint32_t class_number, void *params)
{
    struct alloc call = { client, parent, *object, class_number, (uintptr_t) params, 0, 0, 0, 0xffff, 0 };
    if (ioctl (file, _IOWR ('F', 0x2b, struct alloc), &call) < 0)
        return 0x10000u + (uint32_t) errno;
    *object = call.object;
    return call.status;
}

static uint32_t control (uint32_t client, uint32_t object, uint32_t number, void *params, uint32_t size)
{
    struct control call = { client, object, number, 0, (uintptr_t) params, size, 0xffff };
    if (ioctl (file, _IOWR ('F', 0x2a, struct control), &call) < 0)
        return 0x10000u + (uint32_t) errno;
    return call.status;
}

int main (int argc, char **argv)
{
    uint32_t client = 0, device = 1, subdevice = 2, memory = 3, zeros[14] = { 0 }, attributes = 0x18000000;
    uint64_t bytes = argc > 1 ? strtoull (argv[1], NULL, 0) : 1 << 20;
    static uint32_t info[257], pids[953];
    uint8_t params[128] = { 0 };
    uint32_t allocated;

    file = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    if (file < 0 || allocate (0, 0, &client, 0, NULL) != 0 || allocate (client, client, &device, 0x80, zeros) != 0 ||
        allocate (client, device, &subdevice, 0x2080, zeros) != 0) {
        printf ("{\"errno\": %d}\n", errno);
        return 1;
    }
    params[0] = 1; /* owner: any but 0 */
    memcpy (params + 24, &attributes, 4);
    memcpy (params + 64, &bytes, 8);
    allocated = allocate (client, device, &memory, 0x40, params);
    memcpy (&bytes, params + 64, 8);
    info[0] = 1;
    info[1] = 0x16;
    control (client, subdevice, 0x20801303, info, sizeof (info));
    pids[1] = 0x2080;
    control (client, subdevice, 0x2080018d, pids, sizeof (pids));
    printf ("{\"errno\": 0, \"status\": %u, \"bytes\": %llu, \"free\": %u, \"self\": %d, \"pids\": [", allocated,
            (unsigned long long) bytes, info[2], (int) getpid ());
    for (uint32_t i = 0; i < pids[2]; i++)
        printf ("%s%u", i > 0 ? ", " : "", pids[3 + i]);
    printf ("]}\n");
    fflush (stdout);
    return argc > 2 && read (0, params, 1) < 0;
}
