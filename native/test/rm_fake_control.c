/* The fake driver: controls that rm makes, reads or answers. */
#include "rm_fake.h"

#include <string.h>

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

uint32_t fake_import (struct fake *fake, uint64_t by, uint64_t file, uint32_t client, uint32_t parent, uint32_t *handle,
                      uint32_t slot)
{
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == file && fake->exports[i].slot == slot && fake->exports[i].memory >= 0) {
            uint32_t status = fake_make (fake, by, client, parent, handle, NV01_MEMORY_LOCAL_USER, NULL, NULL);

            if (status == 0)
                fake_refer (fake, fake_sure (fake, client, *handle), fake->exports[i].memory);
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

/* What a slot has; -1: nothing. The file is named by its descriptor. */
static struct fake_export *slot_of (struct fake *fake, int32_t descriptor, uint32_t slot)
{
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == (uint32_t) descriptor && fake->exports[i].slot == slot && fake->exports[i].memory >= 0)
            return &fake->exports[i];
    return NULL;
}

static uint32_t export (struct fake *fake, uint32_t client, uint32_t handle, int32_t descriptor, uint32_t slot)
{
    struct fake_object *object = fake_find (fake, client, handle);
    struct fake_export *before = slot_of (fake, descriptor, slot);

    if (handle != 0 && (object == NULL || object->memory < 0))
        return NV_ERR_OBJECT_NOT_FOUND;
    if (before != NULL) {
        fake->memories[before->memory].references--;
        before->memory = -1;
    }
    if (handle == 0)
        return 0;
    fake->memories[object->memory].references++;
    if (before == NULL)
        before = &fake->exports[fake->export_count++];
    *before = (struct fake_export) { (uint32_t) descriptor, object->memory, slot };
    return 0;
}

/* Into a file that has none (_initializeExportObjectFd). */
static uint32_t export_only (struct fake *fake, uint32_t client, uint32_t handle, int32_t descriptor)
{
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == (uint32_t) descriptor && fake->exports[i].memory >= 0)
            return NV_ERR_IN_USE;
    return export (fake, client, handle, descriptor, 0);
}

static uint32_t export_all (struct fake *fake, uint32_t client, const NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS *params)
{
    for (uint32_t i = 0; i < params->numObjects; i++)
        if (export (fake, client, params->objects[i], params->fd, params->index + i) != 0)
            return NV_ERR_OBJECT_NOT_FOUND;
    return 0;
}

static uint32_t import (struct fake *fake, uint64_t by, uint32_t client, NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *params)
{
    uint32_t handle = params->object.data.rmObject.hObject, status;

    status = fake_import (fake, by, (uint32_t) params->fd, client, params->object.data.rmObject.hParent, &handle, 0);
    params->object.data.rmObject.hObject = handle;
    return status;
}

/* As cliresCtrlCmdOsUnixImportObjectsFromFd_IMPL, but for what that frees when it fails. */
static uint32_t import_all (struct fake *fake, uint64_t by, uint32_t client,
                            NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *params)
{
    for (uint32_t i = 0; i < params->numObjects; i++) {
        uint32_t handle = params->objects[i];

        params->objectTypes[i] = slot_of (fake, params->fd, params->index + i) != NULL;
        if (params->objectTypes[i] == NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_NONE)
            continue;
        if (fake_import (fake, by, (uint32_t) params->fd, client, params->hParent, &handle, params->index + i) != 0)
            return NV_ERR_OBJECT_NOT_FOUND;
        params->objects[i] = handle;
    }
    return 0;
}

/* What a client may ask about its own objects. */
static uint32_t handle_info (struct fake *fake, uint32_t client, NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS *params)
{
    const struct fake_object *object = fake_find (fake, client, params->hObject);

    fake->handle_calls++;
    if (object == NULL)
        return NV_ERR_OBJECT_NOT_FOUND;
    params->data.hResult = params->index == NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID ? object->class : object->parent;
    return 0;
}

/* memIsDuplicate */
static uint32_t are_duplicates (struct fake *fake, uint32_t client, NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS *params)
{
    const struct fake_object *first = fake_find (fake, client, params->hObject1),
                             *second = fake_find (fake, client, params->hObject2);

    if (first == NULL || second == NULL || first->memory < 0 || second->memory < 0)
        return NV_ERR_OBJECT_NOT_FOUND;
    params->bDuplicates = first->memory == second->memory;
    return 0;
}

static uint32_t surface_info (const struct fake *fake, const struct fake_object *object,
                              const NV0041_CTRL_GET_SURFACE_INFO_PARAMS *params)
{
    NV0041_CTRL_SURFACE_INFO *list = (void *) (uintptr_t) params->surfaceInfoList;

    if (object->memory < 0)
        return NV_ERR_NOT_SUPPORTED;
    for (uint32_t i = 0; i < params->surfaceInfoListSize; i++)
        list[i].data = (uint32_t) (fake->memories[object->memory].bytes >> 12);
    return 0;
}

static uint32_t channel_property (struct fake *fake, uint32_t client, const NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS *params)
{
    struct fake_object *channel = fake_find (fake, client, params->hChannel);

    if (channel == NULL)
        return NV_ERR_INVALID_OBJECT_HANDLE;
    fake->slice_calls++;
    channel->slice = params->value;
    return 0;
}

/* A group's timeslice is that of its first channel's start, unless the group itself is started. */
static void start (struct fake *fake, struct fake_object *object)
{
    struct fake_object *group = fake_find (fake, object->client, object->parent);

    object->is_started = true;
    object->in_force = object->slice;
    if (group != NULL && group->class == KEPLER_CHANNEL_GROUP_A && group->in_force == 0)
        group->in_force = group->slice;
}

/* A context draws, or stops at any instruction. */
static uint32_t set_mode (struct fake *fake, const NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS *params)
{
    fake->mode_calls++;
    if (fake->no_mode)
        return NV_ERR_NOT_SUPPORTED;
    if (fake->draws && params->cilpPreemptMode == NV2080_GR_PREEMPTION_COMPUTE_CILP)
        return NV_ERR_INVALID_REQUEST;
    fake->mode = params->cilpPreemptMode;
    return 0;
}

uint32_t fake_answer (struct fake *fake, uint64_t file, const NVOS54_PARAMETERS *head, void *params, void *list)
{
    uint32_t client = head->hClient;
    struct fake_object *object = fake_find (fake, client, head->hObject);
    NV2080_CTRL_FB_GET_INFO_V2_PARAMS *info = params; /* FB_GET_INFO begins with the same number */
    NVA06C_CTRL_TIMESLICE_PARAMS *timeslice = params;
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS *one = params;

    if (object == NULL || fake_sure (fake, client, client)->file != file)
        return NV_ERR_INVALID_CLIENT;
    if (params != NULL)
        memcpy (fake->given, params, head->paramsSize < sizeof (fake->given) ? head->paramsSize : sizeof (fake->given));
    switch (head->cmd) {
    case NV2080_CTRL_CMD_GPU_GET_GID_INFO:
        return gid (fake, object, params, head->paramsSize);
    case NV2080_CTRL_CMD_FB_GET_INFO_V2:
        return fb_info (object, info->fbInfoList, info->fbInfoListSize);
    case NV2080_CTRL_CMD_FB_GET_INFO:
        return fb_info (object, list, info->fbInfoListSize);
    case NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS:
        return object->class == NV20_SUBDEVICE_0 ? disable_channels (fake, params) : NV_ERR_INVALID_OBJECT_HANDLE;
    case NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO:
        return handle_info (fake, client, params);
    case NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES:
        return are_duplicates (fake, client, params);
    case NV0041_CTRL_CMD_GET_SURFACE_INFO:
        return params != NULL && head->paramsSize == sizeof (NV0041_CTRL_GET_SURFACE_INFO_PARAMS)
                   ? surface_info (fake, object, params)
                   : 0;
    case NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES:
        return channel_property (fake, client, params);
    case NVA06C_CTRL_CMD_GPFIFO_SCHEDULE:
    case NVA06F_CTRL_CMD_GPFIFO_SCHEDULE:
        start (fake, object);
        return 0;
    case NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE:
        return set_mode (fake, params);
    case NVA06C_CTRL_CMD_SET_TIMESLICE:
        fake->slice_calls++;
        object->slice = timeslice->timesliceUs;
        if (object->is_started)
            object->in_force = object->slice;
        return 0;
    case NVA06C_CTRL_CMD_GET_TIMESLICE:
        timeslice->timesliceUs = object->slice;
        return 0;
    case NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD:
        return export_only (fake, client, one->object.data.rmObject.hObject, one->fd);
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
