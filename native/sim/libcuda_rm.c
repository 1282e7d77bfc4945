/* Calls of the resource manager (libcuda_rm.h), through libc's functions, so that a preloaded library can interpose
 * them. Runs in the process of libcuda or NVML, on the calling thread. */
#include "libcuda_rm.h"
#include "versions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTROL_NODE "/dev/nvidiactl"
#define MAXIMUM_INSTANCES 32u

enum { ESCAPE_FREE = 0x29, ESCAPE_CONTROL = 0x2a, ESCAPE_ALLOCATE = 0x2b, ESCAPE_SYSTEM_PARAMETERS = 0xd6 };
enum { CLASS_ROOT = 0x0, CLASS_DEVICE = 0x80, CLASS_SUBDEVICE = 0x2080 };
#define VAMODE_MULTIPLE_VASPACES 2u /* of a device: none without a handle */
#define CONTROL_GET_GID 0x2080014au
#define CONTROL_FB_GET_INFO 0x20801303u
#define CONTROL_GROUP_SCHEDULE 0xa06c0101u

struct allocation_call {
    uint32_t root, parent, object, class_number;
    uint64_t parameters, rights;
    uint32_t parameters_size, flags, status, pad;
};
struct control_call {
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t parameters_size, status;
};
struct free_call {
    uint32_t root, parent, object, status;
};
struct gid_parameters {
    uint32_t index, flags, length;
    uint8_t data[256];
};
_Static_assert (sizeof (struct allocation_call) == 48 && sizeof (struct control_call) == 32, "the driver's sizes");
_Static_assert (sizeof (struct gid_parameters) == 268, "the driver's size");

uint32_t rm_call (int fd, unsigned int number, void *argument, unsigned int size)
{
    int result;

    do {
        result = ioctl (fd, _IOC (_IOC_READ | _IOC_WRITE, 'F', number, size), argument);
    } while (result < 0 && (errno == EINTR || errno == EAGAIN));
    return result < 0 ? RM_STATUS_SYSTEM : RM_STATUS_OK;
}

uint32_t rm_allocate_object (const struct rm_client *client, uint32_t parent, uint32_t object, uint32_t class_number,
                             void *parameters)
{
    /* Without the size of the parameters, as the real library. */
    struct allocation_call call = { .root = client->client,
                                    .parent = parent,
                                    .object = object,
                                    .class_number = class_number,
                                    .parameters = (uintptr_t) parameters };
    uint32_t failed = rm_call (client->control, ESCAPE_ALLOCATE, &call, sizeof (call));

    return failed != RM_STATUS_OK ? failed : call.status;
}

uint32_t rm_free_object (const struct rm_client *client, uint32_t parent, uint32_t object)
{
    struct free_call call = { .root = client->client, .parent = parent, .object = object };
    uint32_t failed = rm_call (client->control, ESCAPE_FREE, &call, sizeof (call));

    return failed != RM_STATUS_OK ? failed : call.status;
}

uint32_t rm_control (const struct rm_client *client, uint32_t object, uint32_t command, void *parameters, uint32_t size)
{
    struct control_call call = { .client = client->client,
                                 .object = object,
                                 .command = command,
                                 .parameters = (uintptr_t) parameters,
                                 .parameters_size = size };
    uint32_t failed = rm_call (client->control, ESCAPE_CONTROL, &call, sizeof (call));

    return failed != RM_STATUS_OK ? failed : call.status;
}

uint32_t rm_ask_memory (const struct rm_client *client, uint32_t subdevice, struct rm_fb_info *info)
{
    return rm_control (client, subdevice, CONTROL_FB_GET_INFO, info, version_size (VERSION_FB_INFO, client->version));
}

uint32_t rm_schedule_group (const struct rm_client *client, uint32_t group)
{
    uint8_t schedule[3] = { 1, 0, 0 };

    return rm_control (client, group, CONTROL_GROUP_SCHEDULE, schedule, version_size (VERSION_SCHEDULE, client->version));
}

int rm_open_node (const char *path)
{
    struct stat status;

    /* The manager's nodes are regular files (FUSE). A character device is the real driver's and is never used. */
    if (stat (path, &status) < 0 || !S_ISREG (status.st_mode))
        return -1;
    return open (path, O_RDWR | O_CLOEXEC);
}

bool rm_client_open (struct rm_client *client, const char *driver)
{
    uint8_t system[8] = { 0 };
    struct allocation_call call = { .class_number = CLASS_ROOT };

    client->version = version_release (driver);
    client->control = rm_open_node (CONTROL_NODE);
    if (client->control < 0)
        return false;
    if (rm_call (client->control, ESCAPE_SYSTEM_PARAMETERS, system, sizeof (system)) == RM_STATUS_OK &&
        rm_call (client->control, ESCAPE_ALLOCATE, &call, sizeof (call)) == RM_STATUS_OK && call.status == RM_STATUS_OK) {
        client->client = call.object;
        return true;
    }
    rm_client_close (client);
    return false;
}

void rm_client_close (struct rm_client *client)
{
    if (client->control >= 0)
        close (client->control);
    client->control = -1;
    client->client = 0;
}

bool rm_attach_gpu (const struct rm_client *client, const uint8_t uuid[16], uint32_t device, uint32_t subdevice)
{
    for (uint32_t instance = 0; instance < MAXIMUM_INSTANCES; instance++) {
        uint32_t device_parameters[14] = { [0] = instance, [1] = client->client, [12] = VAMODE_MULTIPLE_VASPACES };
        uint32_t subdevice_parameters[1] = { 0 };
        struct gid_parameters gid = { .flags = 2, .length = 16 };
        if (rm_allocate_object (client, client->client, device, CLASS_DEVICE, device_parameters) != RM_STATUS_OK)
            continue;
        if (rm_allocate_object (client, device, subdevice, CLASS_SUBDEVICE, subdevice_parameters) == RM_STATUS_OK &&
            rm_control (client, subdevice, CONTROL_GET_GID, &gid, sizeof (gid)) == RM_STATUS_OK && memcmp (gid.data, uuid, 16) == 0)
            return true;
        rm_free_object (client, client->client, device);
    }
    return false;
}

static int digit (char letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

bool rm_parse_uuid (const char *text, uint8_t uuid[16])
{
    unsigned int nibbles = 0;

    if (strncmp (text, "GPU-", 4) != 0)
        return false;
    memset (uuid, 0, 16);
    for (text += 4; *text != '\0'; text++) {
        if (*text == '-')
            continue;
        if (digit (*text) < 0 || nibbles == 32)
            return false;
        uuid[nibbles / 2] = (uint8_t) (uuid[nibbles / 2] << 4 | digit (*text));
        nibbles++;
    }
    return nibbles == 32;
}
