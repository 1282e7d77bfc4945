/*
 * Calls of the resource manager by the simulated libcuda and NVML. Implemented in libcuda_rm.c. Numbers, sizes and
 * offsets are those of the open kernel modules' headers (nvos.h, nv-ioctl-numbers.h, ctrl*.h, uvm_ioctl.h), release
 * 580.
 */
#ifndef NVC_SIM_LIBCUDA_RM_H
#define NVC_SIM_LIBCUDA_RM_H

#include <stdbool.h>
#include <stdint.h>

enum rm_status {
    RM_STATUS_OK = 0,
    RM_STATUS_NOT_SUPPORTED = 0x56,
    RM_STATUS_NO_MEMORY = 0x51,
    RM_STATUS_SYSTEM = 0xffff /* not the driver's: the ioctl itself failed */
};

/* An open client on the control node, for libcuda and NVML. */
struct rm_client {
    int control; /* descriptor, -1: none */
    uint32_t client;
    int version; /* of the driver: 580 */
};

/* NV_MEMORY_ALLOCATION_PARAMS. */
struct rm_memory_parameters {
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attributes, attributes2, format, compression, zcull;
    uint32_t pad;
    uint64_t range_low, range_high;
    uint64_t size;
    uint64_t alignment, offset, limit, address;
    uint32_t tag, vaspace, internal_flags, tag2;
    int32_t numa_node;
    uint32_t pad2;
};
_Static_assert (sizeof (struct rm_memory_parameters) == 128, "the driver's size");

#define RM_FB_ENTRIES 128
struct rm_fb_info {
    uint32_t count;
    struct {
        uint32_t index, kibibytes;
    } entries[RM_FB_ENTRIES];
};
_Static_assert (sizeof (struct rm_fb_info) == 1028, "the driver's size");

/* Opens the control node if a manager serves it, and allocates a client. driver: the version of the interface,
 * "580.159.04". false: no manager, or it does not respond. */
bool rm_client_open (struct rm_client *client, const char *driver);
void rm_client_close (struct rm_client *client);
/* Opens a node if it is one of the simulated manager's (a regular file, never the real driver's device). -1: no. */
int rm_open_node (const char *path);

/* Every function returns a status of the resource manager, or RM_STATUS_SYSTEM. */
uint32_t rm_call (int fd, unsigned int number, void *argument, unsigned int size);
uint32_t rm_allocate_object (const struct rm_client *client, uint32_t parent, uint32_t object, uint32_t class_number,
                             void *parameters);
uint32_t rm_free_object (const struct rm_client *client, uint32_t parent, uint32_t object);
uint32_t rm_control (const struct rm_client *client, uint32_t object, uint32_t command, void *parameters, uint32_t size);

/* FB_GET_INFO_V2 and the compute group's GPFIFO_SCHEDULE(on), with the sizes of the driver's version. */
uint32_t rm_ask_memory (const struct rm_client *client, uint32_t subdevice, struct rm_fb_info *info);
uint32_t rm_schedule_group (const struct rm_client *client, uint32_t group);

/* A device and its subdevice under `device` and `subdevice`, for the GPU of that UUID. Its node must be open. The GPU's
 * instance is found by a query of each. false: the manager has no such GPU. */
bool rm_attach_gpu (const struct rm_client *client, const uint8_t uuid[16], uint32_t device, uint32_t subdevice);
/* "GPU-01234567-..." as 16 bytes. */
bool rm_parse_uuid (const char *text, uint8_t uuid[16]);

#endif
