/* The driver's half: objects, memory with references, exports, the controls that rm cares about. */
#include "rm_fake.h"

#include <stdlib.h>
#include <string.h>

struct fake_object *fake_find (struct fake *fake, uint32_t client, uint32_t handle)
{
    for (unsigned i = 0; i < fake->object_count; i++)
        if (fake->objects[i].live && fake->objects[i].client == client && fake->objects[i].handle == handle)
            return &fake->objects[i];
    return NULL;
}

/* An object that is there, or else the fake driver itself is broken. */
static struct fake_object *sure (struct fake *fake, uint32_t client, uint32_t handle)
{
    struct fake_object *object = fake_find (fake, client, handle);

    if (object == NULL)
        abort ();
    return object;
}

static struct fake_object *new_object (struct fake *fake)
{
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (!fake->objects[i].live) {
            if (i >= fake->object_count)
                fake->object_count = i + 1;
            memset (&fake->objects[i], 0, sizeof (fake->objects[i]));
            fake->objects[i].live = true;
            fake->objects[i].memory = -1;
            return &fake->objects[i];
        }
    abort ();
}

static int new_memory (struct fake *fake, uint32_t instance, uint64_t bytes)
{
    for (int i = 0; i < FAKE_MEMORIES; i++)
        if (fake->memories[i].references == 0) {
            fake->memories[i] = (struct fake_memory) {bytes, 1, instance};
            return i;
        }
    abort ();
}

static void drop_object (struct fake *fake, struct fake_object *object)
{
    object->live = false;
    for (unsigned i = 0; i < fake->object_count; i++) {
        struct fake_object *at = &fake->objects[i];

        if (at->live && at->client == object->client && at->parent == object->handle && at->handle != object->handle)
            drop_object (fake, at);
    }
    if (object->memory >= 0)
        fake->memories[object->memory].references--;
}

void fake_close_file (struct fake *fake, uint64_t file)
{
    for (unsigned i = 0; i < fake->object_count; i++)
        if (fake->objects[i].live && fake->objects[i].client == fake->objects[i].handle &&
            fake->objects[i].file == file)
            drop_object (fake, &fake->objects[i]);
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == file && fake->exports[i].memory >= 0) {
            fake->memories[fake->exports[i].memory].references--;
            fake->exports[i].memory = -1;
            fake->exports[i].file = 0;
        }
    rm_close_file (fake->rm, file);
}

/* handle: what the caller wants, 0 for any; what it got. params: of a device, a group; bytes: of a piece of memory. */
static uint32_t alloc (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent_handle, uint32_t *handle,
                       uint32_t class, const void *params, uint64_t *bytes)
{
    struct fake_object *parent = fake_find (fake, client, parent_handle), *object;

    if (class == NV01_ROOT_CLIENT || class == NV01_ROOT || class == NV01_ROOT_NON_PRIV) {
        object = new_object (fake);
        object->client = object->handle = ++fake->next_client;
        object->file = file;
        object->class = class;
        *handle = object->handle;
        return 0;
    }
    if (parent == NULL || sure (fake, client, client)->file != file)
        return NV_ERR_INVALID_OBJECT_HANDLE;
    if (*handle != 0 && fake_find (fake, client, *handle) != NULL)
        return NV_ERR_INSERT_DUPLICATE_NAME;
    object = new_object (fake);
    object->client = client;
    object->handle = *handle != 0 ? *handle : ++fake->next_handle;
    object->parent = parent_handle;
    object->class = class;
    object->file = file;
    object->instance = parent->instance;
    if (class == NV01_DEVICE_0 && params != NULL)
        object->instance = ((const NV0080_ALLOC_PARAMETERS *) params)->deviceId;
    if (class == KEPLER_CHANNEL_GROUP_A)
        object->engine = ((const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *) params)->engineType;
    if (bytes != NULL) {
        *bytes = (*bytes + fake->granule - 1) / fake->granule * fake->granule;
        if (fake->grant != 0)
            *bytes = fake->grant;
        object->memory = new_memory (fake, object->instance, *bytes);
    }
    *handle = object->handle;
    return 0;
}

/* What FB_GET_INFO's entries are about. */
static bool is_total (uint32_t index)
{
    return index == NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE || index == NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE ||
           index == NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE || index == NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE;
}

static bool is_free (uint32_t index)
{
    return index == NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE || index == NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_SIZE_KB;
}

static uint32_t fb_info (const struct fake_object *subdevice, NV2080_CTRL_FB_INFO *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = list[i].index;

        list[i].data = is_total (index) ? 1000 * 1024 : is_free (index) ? 900 * 1024 : 7000 + index + subdevice->instance;
    }
    return 0;
}

static void refer (struct fake *fake, struct fake_object *object, int memory)
{
    object->memory = memory;
    fake->memories[memory].references++;
}

static uint32_t import_one (struct fake *fake, uint64_t by, uint64_t file, uint32_t client, uint32_t parent,
                            uint32_t *handle, uint32_t slot)
{
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == file && fake->exports[i].slot == slot && fake->exports[i].memory >= 0) {
            uint32_t status = alloc (fake, by, client, parent, handle, NV01_MEMORY_LOCAL_USER, NULL, NULL);

            if (status == 0)
                refer (fake, sure (fake, client, *handle), fake->exports[i].memory);
            return status;
        }
    return NV_ERR_OBJECT_NOT_FOUND;
}

static uint32_t disable_channels (struct fake *fake, const NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS *params)
{
    uint32_t count = params->numChannels;

    fake->disable_calls++;
    if (count > RM_FREEZE_MAX)
        return NV_ERR_INVALID_ARGUMENT;
    if (count > fake->largest_batch)
        fake->largest_batch = count;
    for (uint32_t i = 0; i < count; i++) {
        struct fake_object *channel = fake_find (fake, params->hClientList[i], params->hChannelList[i]);

        if (channel == NULL || channel->class != HOPPER_CHANNEL_GPFIFO_A)
            return NV_ERR_INVALID_OBJECT_HANDLE;
        if (params->bDisable)
            channel->frozen++;
        else if (channel->frozen != 0)
            channel->frozen--;
    }
    return 0;
}

static uint32_t gid (struct fake *fake, const struct fake_object *object, NV2080_CTRL_GPU_GET_GID_INFO_PARAMS *params,
                     uint32_t size)
{
    fake->gid_calls++;
    if (fake->no_gid || params->flags != NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY || size != sizeof (*params))
        return NV_ERR_NOT_SUPPORTED;
    params->length = sizeof (fake_uuid[0]);
    memcpy (params->data, fake_uuid[object->instance], sizeof (fake_uuid[0]));
    return 0;
}

/* The file is named by its descriptor. */
static uint32_t export (struct fake *fake, uint32_t client, uint32_t handle, int32_t descriptor, uint32_t slot)
{
    struct fake_object *object = fake_find (fake, client, handle);

    if (object == NULL || object->memory < 0)
        return NV_ERR_OBJECT_NOT_FOUND;
    fake->memories[object->memory].references++;
    fake->exports[fake->export_count++] = (struct fake_export) {(uint32_t) descriptor, object->memory, slot};
    return 0;
}

static uint32_t export_all (struct fake *fake, uint32_t client,
                            const NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS *params)
{
    for (uint32_t i = 0; i < params->numObjects; i++)
        if (export (fake, client, params->objects[i], params->fd, params->index + i) != 0)
            return NV_ERR_OBJECT_NOT_FOUND;
    return 0;
}

static uint32_t import (struct fake *fake, uint64_t by, uint32_t client,
                        NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *params)
{
    uint32_t handle = params->object.data.rmObject.hObject, status;

    status = import_one (fake, by, (uint32_t) params->fd, client, params->object.data.rmObject.hParent, &handle, 0);
    params->object.data.rmObject.hObject = handle;
    return status;
}

static uint32_t import_all (struct fake *fake, uint64_t by, uint32_t client,
                            NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *params)
{
    for (uint32_t i = 0; i < params->numObjects; i++) {
        uint32_t handle = params->objects[i];

        if (import_one (fake, by, (uint32_t) params->fd, client, params->hParent, &handle, params->index + i) != 0)
            return NV_ERR_OBJECT_NOT_FOUND;
        params->objects[i] = handle;
    }
    return 0;
}

static uint32_t control (struct fake *fake, uint64_t file, const NVOS54_PARAMETERS *head, void *params, void *list)
{
    uint32_t client = head->hClient;
    struct fake_object *object = fake_find (fake, client, head->hObject);
    NV2080_CTRL_FB_GET_INFO_V2_PARAMS *info = params; /* FB_GET_INFO begins with the same number */
    NVA06C_CTRL_TIMESLICE_PARAMS *timeslice = params;
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS *one = params;

    if (object == NULL || sure (fake, client, client)->file != file)
        return NV_ERR_INVALID_CLIENT;
    switch (head->cmd) {
    case NV2080_CTRL_CMD_GPU_GET_GID_INFO:
        return gid (fake, object, params, head->paramsSize);
    case NV2080_CTRL_CMD_FB_GET_INFO_V2:
        return fb_info (object, info->fbInfoList, info->fbInfoListSize);
    case NV2080_CTRL_CMD_FB_GET_INFO:
        return fb_info (object, list, info->fbInfoListSize);
    case NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS:
        return object->class == NV20_SUBDEVICE_0 ? disable_channels (fake, params) : NV_ERR_INVALID_OBJECT_HANDLE;
    case NVA06C_CTRL_CMD_SET_TIMESLICE:
        fake->slice_calls++;
        object->slice = timeslice->timesliceUs;
        return 0;
    case NVA06C_CTRL_CMD_GET_TIMESLICE:
        timeslice->timesliceUs = object->slice;
        return 0;
    case NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD:
        return export (fake, client, one->object.data.rmObject.hObject, one->fd, 0);
    case NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD:
        return export_all (fake, client, params);
    case NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD:
        return import (fake, file, client, params);
    case NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD:
        return import_all (fake, file, client, params);
    default:
        return 0;
    }
}

/* attr, NVOS32_ATTR_LOCATION */
#define ATTRIBUTE_LOCATION 0x6000000u

static uint32_t heap_alloc (struct fake *fake, uint64_t file, NVOS32_PARAMETERS *head)
{
    uint32_t handle = head->data.AllocSize.hMemory, attribute = head->data.AllocSize.attr, status;
    uint64_t bytes = head->data.AllocSize.size;
    bool is_video;

    if (head->function == NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT) {
        attribute = head->data.AllocTiledPitchHeight.attr;
        bytes = (uint64_t) head->data.AllocTiledPitchHeight.height * (uint32_t) head->data.AllocTiledPitchHeight.pitch;
    } else if (head->function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE)
        bytes = head->data.AllocSizeRange.size;
    is_video = (head->data.AllocSize.flags & NVOS32_ALLOC_FLAGS_VIRTUAL) == 0 && (attribute & ATTRIBUTE_LOCATION) == 0;
    status = alloc (fake, file, head->hRoot, head->hObjectParent, &handle, NV01_MEMORY_LOCAL_USER, NULL,
                    is_video ? &bytes : NULL);
    if (status != 0)
        return status;
    head->data.AllocSize.hMemory = handle;
    if (head->function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE)
        head->data.AllocSizeRange.size = bytes;
    else
        head->data.AllocSize.size = bytes; /* AllocTiledPitchHeight has it there, too */
    return 0;
}

static uint32_t free_object (struct fake *fake, uint32_t client, uint32_t handle)
{
    struct fake_object *object = fake_find (fake, client != 0 ? client : handle, handle);

    if (object == NULL)
        return NV_ERR_OBJECT_NOT_FOUND;
    drop_object (fake, object);
    return 0;
}

static uint32_t heap (struct fake *fake, uint64_t file, NVOS32_PARAMETERS *head)
{
    switch (head->function) {
    case NVOS32_FUNCTION_FREE:
        return free_object (fake, head->hRoot, head->data.Free.hMemory);
    case NVOS32_FUNCTION_INFO:
        head->total = 1000 * MIB;
        head->free = 900 * MIB;
        head->data.Info.size = 800 * MIB;
        return 0;
    default:
        return heap_alloc (fake, file, head);
    }
}

static uint32_t duplicate (struct fake *fake, uint64_t file, NVOS55_PARAMETERS *head)
{
    struct fake_object *source = fake_find (fake, head->hClientSrc, head->hObjectSrc);
    uint32_t handle = head->hObject, status;

    if (source == NULL)
        return NV_ERR_OBJECT_NOT_FOUND;
    status = alloc (fake, file, head->hClient, head->hParent, &handle, source->class, NULL, NULL);
    head->hObject = handle;
    if (status == 0 && source->memory >= 0)
        refer (fake, sure (fake, head->hClient, handle), source->memory);
    return status;
}

/* Up to pAllocParms the same for NVOS64. */
static uint32_t alloc_object (struct fake *fake, uint64_t file, NVOS21_PARAMETERS *head, void *params)
{
    NV_MEMORY_ALLOCATION_PARAMS *memory = head->hClass == NV01_MEMORY_LOCAL_USER ? params : NULL;
    const NV00F8_ALLOCATION_PARAMETERS *fabric = head->hClass == NV_MEMORY_FABRIC ? params : NULL;
    uint32_t handle = head->hObjectNew, status;
    uint64_t bytes = memory != NULL ? memory->size : 0;

    status = alloc (fake, file, head->hRoot, head->hObjectParent, &handle, head->hClass, params,
                    head->hClass == NV01_MEMORY_LOCAL_USER ? &bytes : NULL);
    if (status != 0)
        return status;
    head->hObjectNew = handle;
    if (memory != NULL)
        memory->size = bytes;
    if (fabric != NULL && fabric->map.hVidMem != 0)
        refer (fake, sure (fake, head->hRoot, handle), sure (fake, head->hRoot, fabric->map.hVidMem)->memory);
    return 0;
}

long fake_driver (struct fake *fake, uint64_t file, uint32_t request, void *head, void *params, void *list)
{
    uint32_t status = fake->next_status;
    NVOS02_PARAMETERS *memory = head;
    NVOS00_PARAMETERS *freed = head;

    fake->next_status = 0;
    switch (rm_request_number (request)) {
    case NV_ESC_RM_ALLOC:
        if (status == 0)
            status = alloc_object (fake, file, head, params);
        if (rm_request_size (request) == sizeof (NVOS21_PARAMETERS))
            ((NVOS21_PARAMETERS *) head)->status = status;
        else
            ((NVOS64_PARAMETERS *) head)->status = status;
        return 0;
    case NV_ESC_RM_FREE:
        freed->status = status != 0 ? status : free_object (fake, freed->hRoot, freed->hObjectOld);
        return 0;
    case NV_ESC_RM_CONTROL:
        ((NVOS54_PARAMETERS *) head)->status = status != 0 ? status : control (fake, file, head, params, list);
        return 0;
    case NV_ESC_RM_DUP_OBJECT:
        ((NVOS55_PARAMETERS *) head)->status = status != 0 ? status : duplicate (fake, file, head);
        return 0;
    case NV_ESC_RM_VID_HEAP_CONTROL:
        ((NVOS32_PARAMETERS *) head)->status = status != 0 ? status : heap (fake, file, head);
        return 0;
    case NV_ESC_RM_ALLOC_MEMORY:
        if (memory->hClass == NV01_MEMORY_LOCAL_USER)
            memory->limit = 1000 * MIB - 1;
        memory->status = status;
        return 0;
    default:
        return 0;
    }
}
