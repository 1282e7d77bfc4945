/* A client of the driver of the guard's own, made as nvidia-smi makes its own: nvidiactl, the container's GPUs' nodes registered with it,
 * devices. It takes the driver milliseconds for each GPU. The caller serialises. */
#ifndef NVC_GUARD_DRIVER_CLIENT_H
#define NVC_GUARD_DRIVER_CLIENT_H

#include "rm/rm.h"

#include <stdbool.h>
#include <stdint.h>

struct privsep;

#define DRIVER_HANDLE_DEVICE 0xcaf00000u /* + the GPU's device instance */
#define DRIVER_HANDLE_SUBDEVICE 0xcaf01000u
/* A status of no driver's: the ioctl itself failed. */
#define DRIVER_FAILED 0xffffu

struct driver_client {
    int control; /* -1: none */
    uint32_t client; /* 0: none */
    int nodes[RM_MAX_GPUS];
    uint32_t node_count;
    struct {
        uint8_t uuid[16];
        uint32_t instance;
    } gpus[RM_MAX_GPUS]; /* of which there are a device and a subdevice */
    uint32_t gpu_count;
};

#define DRIVER_CLIENT_NONE { .control = -1 }

/* The node of a GPU, at most RM_MAX_GPUS of them, for a client that has its control node; the client owns it from then on. */
void driver_client_add_node (struct driver_client *self, int node);
/* The nodes are opened by the monitor, and stay open: so do the GPUs' contexts in the driver. */
bool driver_client_open (struct driver_client *self, struct privsep *privsep);
/* The client, which belongs to the process that makes this call, and its devices: the driver asserts on the way to the GPU's firmware
 * that both are made by one process (device.c). false: there is no client. */
bool driver_client_make (struct driver_client *self);
void driver_client_make_devices (struct driver_client *self);
void driver_client_close (struct driver_client *self);
/* The place in gpus; -1: there is no such GPU. */
int driver_client_gpu (const struct driver_client *self, const uint8_t uuid[16]);

/* Status of the driver, or DRIVER_FAILED. */
uint32_t driver_client_alloc (const struct driver_client *self, uint32_t parent, uint32_t handle, uint32_t number, void *params);
uint32_t driver_client_control (const struct driver_client *self, uint32_t object, uint32_t command, void *params, uint32_t size);

#endif
