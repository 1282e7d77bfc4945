/* See player.h. */
#include "player.h"

#include "guard/driver_client.h"
#include "guard/privsep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define UVM_MM_INITIALIZE 75u

/* The first simulated GPU; PLAYED_GPU, 32 hexadecimal digits: another one. */
const uint8_t *kernel_uuid (void)
{
    static uint8_t uuid[16] = { 0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55 };
    const char *digits = getenv ("PLAYED_GPU");

    for (unsigned i = 0; digits != NULL && i < sizeof (uuid) && sscanf (digits + 2 * (size_t) i, "%2hhx", &uuid[i]) == 1; i++)
        continue;
    return uuid;
}

const char *player_node (enum manager_node node)
{
    const char *own = getenv ("PLAYED_NODE");

    return node == MANAGER_CONTROL ? "/dev/nvidiactl"
           : node == MANAGER_UVM   ? "/dev/nvidia-uvm"
           : own != NULL           ? own
                                   : "/dev/nvidia0";
}

/* In place of guard/privsep.c. */
int privsep_device (struct privsep *self, int number)
{
    int file;

    (void) self;
    if (number > 1)
        return -ENODEV;
    file = open (player_node (number == 0 ? MANAGER_CONTROL : MANAGER_GPU), O_RDWR | O_CLOEXEC);
    return file >= 0 ? file : -errno;
}

uint32_t player_find_instance (void)
{
    struct driver_client client;
    uint32_t instance;
    int gpu;

    if (!driver_client_open (&client, NULL) || !driver_client_make (&client))
        player_fail ("no client of the driver");
    driver_client_make_devices (&client);
    gpu = driver_client_gpu (&client, kernel_uuid ());
    if (gpu < 0)
        player_fail ("the driver has no device of the GPU");
    instance = client.gpus[gpu].instance;
    driver_client_close (&client);
    return instance;
}

void player_begin_uvm (int file)
{
    struct {
        int32_t file;
        uint32_t status;
    } params = { .file = file };
    int node = open (player_node (MANAGER_UVM), O_RDWR | O_CLOEXEC), kept = fcntl (node, F_DUPFD_CLOEXEC, OWN_DESCRIPTOR);

    close (node);
    if (kept >= 0)
        (void) ioctl (kept, UVM_MM_INITIALIZE, &params);
}
