/* Escapes other than allocation and control: those of libcuda and NVML at their start, and mappings. Runs as manager.c,
 * under manager->lock. */
#include "manager_state.h"
#include "versions.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum escape {
    ESCAPE_ALLOC_OBJECT = 0x28,
    ESCAPE_DUPLICATE = 0x34,
    ESCAPE_SHARE = 0x35,
    ESCAPE_IDLE = 0x41,
    ESCAPE_VID_HEAP = 0x4A,
    ESCAPE_MAP = 0x4E,
    ESCAPE_UNMAP = 0x4F,
    ESCAPE_MAP_DMA = 0x57,
    ESCAPE_UNMAP_DMA = 0x58,
    ESCAPE_UPDATE_MAPPING = 0x5E,
    ESCAPE_CARD_INFO = 200,
    ESCAPE_REGISTER_FD = 201,
    ESCAPE_ALLOC_OS_EVENT = 206,
    ESCAPE_FREE_OS_EVENT = 207,
    ESCAPE_CHECK_VERSION = 210,
    ESCAPE_ATTACH_GPUS = 212,
    ESCAPE_SYS_PARAMS = 214,
    ESCAPE_NUMA_INFO = 215,
    ESCAPE_WAIT_OPEN = 218,
};

enum { CLASS_RANGE = 0x70, CLASS_OF_DEVICE = 0x80, CLASS_OF_SUBDEVICE = 0x2080, CLASS_OTHER_RANGE = 0x50A0 };

/* escape.c and nv.c: a struct of another size is refused by every release, and so is the wrong kind of node. */
struct escape_row {
    uint32_t escape;
    uint32_t size;
    enum version_struct varying; /* the size by release, in place of `size` */
    enum { ONE, SOME } how_many; /* SOME: an array of structs of that size */
    enum { CONTROL_NODE, GPU_NODE, EITHER_NODE } node;
};

static const struct escape_row rows[] = {
    { ESCAPE_ALLOC_OBJECT, 20, VERSION_NONE, ONE, CONTROL_NODE },  { ESCAPE_DUPLICATE, 28, VERSION_NONE, ONE, CONTROL_NODE },
    { ESCAPE_SHARE, 24, VERSION_NONE, ONE, CONTROL_NODE },         { ESCAPE_IDLE, 56, VERSION_NONE, ONE, CONTROL_NODE },
    { ESCAPE_VID_HEAP, 184, VERSION_NONE, ONE, CONTROL_NODE },     { ESCAPE_MAP, 56, VERSION_NONE, ONE, CONTROL_NODE },
    { ESCAPE_UNMAP, 32, VERSION_NONE, ONE, CONTROL_NODE },         { ESCAPE_MAP_DMA, 0, VERSION_MAP_DMA, ONE, CONTROL_NODE },
    { ESCAPE_UNMAP_DMA, 0, VERSION_UNMAP_DMA, ONE, CONTROL_NODE }, { ESCAPE_UPDATE_MAPPING, 40, VERSION_NONE, ONE, CONTROL_NODE },
    { ESCAPE_CARD_INFO, 72, VERSION_NONE, SOME, CONTROL_NODE },    { ESCAPE_REGISTER_FD, 4, VERSION_NONE, ONE, EITHER_NODE },
    { ESCAPE_ALLOC_OS_EVENT, 16, VERSION_NONE, ONE, EITHER_NODE }, { ESCAPE_FREE_OS_EVENT, 16, VERSION_NONE, ONE, EITHER_NODE },
    { ESCAPE_CHECK_VERSION, 72, VERSION_NONE, ONE, CONTROL_NODE }, { ESCAPE_ATTACH_GPUS, 4, VERSION_NONE, SOME, CONTROL_NODE },
    { ESCAPE_SYS_PARAMS, 8, VERSION_NONE, ONE, CONTROL_NODE },     { ESCAPE_NUMA_INFO, 560, VERSION_NONE, ONE, GPU_NODE },
    { ESCAPE_WAIT_OPEN, 0, VERSION_WAIT_OPEN, ONE, EITHER_NODE },
};

static bool is_good (const struct request *request)
{
    for (size_t i = 0; i < sizeof (rows) / sizeof (rows[0]); i++) {
        const struct escape_row *row = &rows[i];
        uint32_t size = row->varying != VERSION_NONE ? version_size (row->varying, request->manager->release) : row->size;
        if (row->escape != request->escape)
            continue;
        if (row->node != EITHER_NODE && (row->node == GPU_NODE) != (request->file->node == MANAGER_GPU))
            return false;
        if (size == 0 || request->head_size == 0 || request->head_size % size != 0)
            return false;
        return row->how_many == SOME || request->head_size == size;
    }
    return false;
}

/* nv_ioctl_card_info_t: 72 bytes a GPU. */
static void card_info (struct request *request)
{
    uint32_t room = request->head_size / 72;

    memset (request->head, 0, request->head_size);
    for (uint32_t i = 0; i < request->manager->gpus && i < room; i++) {
        const struct machine_gpu *gpu = &request->manager->machine->gpus[i];
        uint8_t *card = request->head + 72 * (size_t) i;
        card[0] = 1;
        put32 (card, 4, gpu->domain);
        card[8] = (uint8_t) gpu->bus;
        card[9] = (uint8_t) gpu->device;
        put16 (card, 12, (uint16_t) (gpu->pci_id & 0xffff));
        put16 (card, 14, (uint16_t) (gpu->pci_id >> 16));
        put32 (card, 16, gpu->domain << 16 | gpu->bus << 8 | gpu->device);
        put64 (card, 48, gpu->memory);
        put32 (card, 56, gpu->minor);
    }
}

/* cmd (0: strict, '1': relaxed, '2': query), reply (1: recognized), the version. */
static bool check_version (struct request *request)
{
    const char *version = request->manager->machine->driver;
    bool same = strncmp ((const char *) request->head + 8, version, 64) == 0;
    uint32_t command = get32 (request->head, 0);

    put32 (request->head, 4, same || command == '2');
    memset (request->head + 8, 0, 64);
    memcpy (request->head + 8, version, strnlen (version, 63));
    if (!same && command == 0)
        request->error = -EINVAL;
    return true;
}

static enum status map_memory (struct request *request)
{
    struct client *client = client_of (request, get32 (request->head, 0));

    if (client == NULL)
        return client_error (request, get32 (request->head, 0));
    const struct object *object = object_find (client, get32 (request->head, 8));
    if (object == NULL)
        return STATUS_INVALID_OBJECT_HANDLE;
    if (object->class_number == CLASS_DEVICELESS)
        return trace_map (request->manager, object);
    put64 (request->head, 32, get64 (request->head, 16)); /* identifies the mapping; never used as an address */
    return STATUS_OK;
}

static enum status of_object (struct request *request, size_t object_at)
{
    struct client *client = client_of (request, get32 (request->head, 0));

    if (client == NULL)
        return client_error (request, get32 (request->head, 0));
    return object_find (client, get32 (request->head, object_at)) == NULL ? STATUS_INVALID_OBJECT_HANDLE : STATUS_OK;
}

/* By a device or a subdevice, into a range of addresses. What is undone need not name its memory. */
static enum status map_dma (struct request *request, bool is_map)
{
    struct client *client = client_of (request, get32 (request->head, 0));
    const struct object *device, *range;

    if (client == NULL)
        return client_error (request, get32 (request->head, 0));
    device = object_find (client, get32 (request->head, 4));
    range = object_find (client, get32 (request->head, 8));
    if (device == NULL || range == NULL || (is_map && object_find (client, get32 (request->head, 12)) == NULL))
        return STATUS_OBJECT_NOT_FOUND;
    if (device->class_number != CLASS_OF_DEVICE && device->class_number != CLASS_OF_SUBDEVICE)
        return STATUS_INVALID_OBJECT;
    return range->class_number == CLASS_RANGE || range->class_number == CLASS_OTHER_RANGE ? STATUS_OK : STATUS_NOT_SUPPORTED;
}

/* Of one channel. One that may compute never has nothing to do: so long the driver's locks are held. */
static enum status wait_idle (struct request *request)
{
    struct client *client = client_of (request, get32 (request->head, 0));
    uint32_t timeout = get32 (request->head, 44);
    const struct object *channel;

    if (client == NULL)
        return client_error (request, get32 (request->head, 0));
    if ((get32 (request->head, 40) >> 4 & 0xf) != 1)
        return STATUS_NOT_SUPPORTED;
    channel = object_find (client, get32 (request->head, 8));
    if (channel == NULL || channel->channel == NULL)
        return STATUS_INVALID_OBJECT_HANDLE;
    if (!channel->channel->scheduled)
        return STATUS_OK;
    nanosleep (&(struct timespec) { timeout / 1000000, timeout % 1000000 * 1000L }, NULL);
    return STATUS_TIMEOUT;
}

static enum status os_event (struct request *request)
{
    return client_find (request->manager, get32 (request->head, 0)) == NULL ? STATUS_INVALID_CLIENT : STATUS_OK;
}

/*
 * Registers the control file with this file of a GPU: later calls on it use the control file's clients. Once, without
 * chains; this file holds a reference to the control file, so that closing the latter alone frees no client.
 */
static bool register_file (struct request *request)
{
    struct manager_file *file = request->file, *control = request->named;

    if (control == NULL || control->node != MANAGER_CONTROL || control == file || control->registered != NULL ||
        file->registered != NULL || file->references > 1) {
        request->error = -EINVAL;
        return true;
    }
    file->registered = control;
    control->references++;
    return true;
}

#define ANSWER(offset, call) (put32 (request->head, offset, (uint32_t) (call)), true)

bool escape_other (struct request *request)
{
    if (!is_good (request))
        return false;
    switch (request->escape) {
    case ESCAPE_ALLOC_OBJECT:
        return ANSWER (16, class_allocate_object (request));
    case ESCAPE_DUPLICATE:
        return ANSWER (24, memory_duplicate (request));
    case ESCAPE_SHARE:
        return ANSWER (20, memory_share (request));
    case ESCAPE_IDLE:
        return ANSWER (48, wait_idle (request));
    case ESCAPE_VID_HEAP:
        return ANSWER (20, memory_vid_heap (request));
    case ESCAPE_MAP:
        return ANSWER (40, map_memory (request));
    case ESCAPE_UNMAP:
        return ANSWER (24, of_object (request, 8));
    case ESCAPE_MAP_DMA:
    case ESCAPE_UNMAP_DMA:
        return ANSWER (request->head_size - 8, map_dma (request, request->escape == ESCAPE_MAP_DMA));
    case ESCAPE_UPDATE_MAPPING:
        return ANSWER (32, of_object (request, 8));
    case ESCAPE_ALLOC_OS_EVENT:
    case ESCAPE_FREE_OS_EVENT:
        return ANSWER (12, os_event (request));
    case ESCAPE_CARD_INFO:
        card_info (request);
        return true;
    case ESCAPE_CHECK_VERSION:
        return check_version (request);
    case ESCAPE_REGISTER_FD:
        return register_file (request);
    case ESCAPE_SYS_PARAMS:
        put64 (request->head, 0, UINT64_C (128) << 20);
        return true;
    case ESCAPE_NUMA_INFO:
        memset (request->head, 0, request->head_size);
        put32 (request->head, 0, UINT32_MAX); /* no node */
        return true;
    case ESCAPE_WAIT_OPEN:
        put64 (request->head, 0, 0);
        return true;
    case ESCAPE_ATTACH_GPUS:
        return true;
    default:
        return false;
    }
}
