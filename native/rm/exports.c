/*
 * Memory that is handed on by a descriptor: the exporter pays until its handles are freed and the descriptor's file is closed, as far as this
 * tenant's files can be seen; a guard's cannot. An import of the tenant's own memory is another handle of it. A guard charges one of memory
 * that is not the tenant's like a duplicate of it.
 */
#include "imports.h"
#include "nv_params.h"
#include "state.h"

#include <string.h>

#define COUNT(array) (sizeof (array) / sizeof ((array)[0]))

/* 0: unknown. */
static uint64_t file_behind (struct rm *rm, int descriptor)
{
    return rm->host->file_of != NULL ? rm->host->file_of (rm->context, descriptor) : 0;
}

static void export_one (struct rm *rm, const struct rm_call *call, uint64_t file, uint32_t handle, uint32_t slot)
{
    struct object *object = handle != 0 ? tracker_find (rm, ((const NVOS54_PARAMETERS *) call->head)->hClient, handle) : NULL;

    if (object == NULL || object->memory == NULL)
        return;
    /* Where the descriptor's file is unknown the charge stays until the exporting file is closed: rather too long. A guard asks the
     * driver for other holders when the last handle is freed, and when the process ends (guard/retained.c): such a file is one. */
    rm->exported += !object->memory->is_exported;
    object->memory->is_exported = true;
    if (file != 0 || !is_guard (rm))
        tracker_export (rm, file != 0 ? file : call->file, object->memory, slot);
}

/* Of a slot that is empty the driver leaves the handle as it was given, and frees it all the same where a later one cannot be imported
 * (osapi.c, cliresCtrlCmdOsUnixImportObjectsFromFd): an object that is there would be freed past all that a FREE is looked at for. */
static bool are_free (struct rm *rm, const struct rm_call *call, uint32_t client,
                      const NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *imports)
{
    for (uint32_t i = 0; is_guard (rm) && i < imports->numObjects && i < COUNT (imports->objects); i++)
        if (imports->objects[i] != 0 && evidence_of (rm, call, client, imports->objects[i]) != EVIDENCE_NONE)
            return false;
    return true;
}

bool share_is_known (struct rm *rm, const struct rm_control *control, const struct rm_call *call)
{
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *import = call->params;
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *imports = call->params;
    const NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS *one = call->params;
    const NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS *many = call->params;
    uint32_t client = ((const NVOS54_PARAMETERS *) call->head)->hClient;

    switch (control->kind) {
    case CONTROL_IMPORT_OBJECT:
        return evidence_has (rm, call, client, import->object.data.rmObject.hParent);
    case CONTROL_IMPORT_OBJECTS:
        return evidence_has (rm, call, client, imports->hParent) && are_free (rm, call, client, imports);
    case CONTROL_EXPORT_OBJECT:
        return evidence_has (rm, call, client, one->object.data.rmObject.hObject);
    default:
        for (uint32_t i = 0; i < many->numObjects && i < COUNT (many->objects); i++)
            if (many->objects[i] != 0 && !evidence_has (rm, call, client, many->objects[i]))
                return false;
        return true;
    }
}

void share_export (struct rm *rm, const struct rm_control *control, struct rm_call *call)
{
    const NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS *one = call->params;
    const NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS *many = call->params;
    uint32_t count, first;
    uint64_t file;

    if (control->kind == CONTROL_EXPORT_OBJECT) {
        export_one (rm, call, file_behind (rm, one->fd), one->object.data.rmObject.hObject, 0);
        return;
    }
    file = file_behind (rm, many->fd);
    count = many->numObjects;
    first = many->index;
    for (uint32_t i = 0; i < count && i < COUNT (many->objects); i++) {
        if (file != 0)
            tracker_unexport (rm, file, first + i); /* what was there; the other form takes an unused file only */
        export_one (rm, call, file, many->objects[i], first + i);
    }
}

/* The new handle refers to memory of this tenant if the file is one that it exported to: no second charge, no refund
 * before it is gone too. */
static void import_one (struct rm *rm, const struct rm_call *call, uint64_t name, uint32_t parent, uint32_t handle, uint32_t slot)
{
    const struct file *file = name != 0 ? tracker_file (rm, name, false) : NULL;
    const struct export *export = file != NULL ? file->exports : NULL;
    struct object *object;

    if (handle == 0)
        return;
    object = tracker_add (rm, call->file, ((const NVOS54_PARAMETERS *) call->head)->hClient, parent, handle, CLASS_PLAIN);
    while (export != NULL && export->slot != slot)
        export = export->next;
    if (object == NULL || export == NULL)
        return;
    object->kind = CLASS_VIDEO_MEMORY;
    export->memory->references++;
    memory_join (rm, object, export->memory);
}

/* What an import asked for, in the one form of the call or the other. */
struct import {
    uint32_t parent, slot, count;
    bool is_list;
    NvHandle handles[COUNT (((NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *) 0)->objects)];
};

uint32_t rm_import_again (const struct rm_source *source, uint32_t device, union rm_import_params *params, uint32_t *size)
{
    memset (params, 0, sizeof (*params));
    if (source->is_list) {
        params->list = (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS) {
            .fd = source->file, .hParent = device, .numObjects = 1, .index = (uint16_t) source->slot
        };
        *size = sizeof (params->list);
        return NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD;
    }
    params->one = *(const NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *) source->params; /* its type */
    params->one.fd = source->file;
    params->one.object.data.rmObject.hDevice = device;
    params->one.object.data.rmObject.hParent = device;
    params->one.object.data.rmObject.hObject = 0;
    *size = sizeof (params->one);
    return NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD;
}

uint32_t rm_imported (const struct rm_source *source, const union rm_import_params *params)
{
    return source->is_list ? params->list.objects[0] : params->one.object.data.rmObject.hObject;
}

/* The tenant's memory that the guard has a duplicate of. Those of the same size first: it is mostly one of them. */
static struct memory *find_own (struct rm *rm, int gpu, uint64_t bytes)
{
    uint32_t compared = 0;

    for (unsigned pass = 0; rm->exported != 0 && pass < 2; pass++)
        for (const struct client *client = rm->clients; client != NULL; client = client->after)
            for (struct object *at = client->object; at != NULL && compared < RM_COMPARED_MAX;
                 at = tracker_next (client->object, at)) {
                struct memory *memory = at->memory;

                if (memory == NULL || !memory->is_exported || memory->gpu != gpu ||
                    (memory->bytes == memory_footprint (rm, bytes)) != (pass == 0))
                    continue;
                compared++;
                if (rm->host->is_held (rm->context, (uint32_t) client->object->link.key, (uint32_t) at->link.key))
                    return memory;
            }
    return NULL;
}

/* Before the call is made: what it would give is looked at where the tenant cannot reach it. Beyond the quota it is refused, and UVM never had an
 * object to map. What another process puts there until the call is made is looked at again afterwards, and only then. */
static bool has_room_for (struct rm *rm, int gpu, const struct rm_source *source, uint64_t *reserved)
{
    uint64_t bytes = 0;
    bool has_room;

    if (rm->host->hold == NULL || gpu < 0 || !rm->host->hold (rm->context, gpu, source, &bytes))
        return true;
    bytes = memory_footprint (rm, bytes);
    has_room = memory_reserve (rm, gpu, bytes);
    if (has_room)
        *reserved += bytes;
    else
        has_room = find_own (rm, gpu, bytes) != NULL || rm->host->is_retained (rm->context);
    rm->host->let_go (rm->context);
    return has_room;
}

/* Memory below a device of which the GPU is not known would be charged to nothing. */
static bool is_lost (const struct rm *rm, const struct object *parent)
{
    return parent != NULL && (parent->kind == CLASS_DEVICE || parent->kind == CLASS_SUBDEVICE) &&
           tracker_gpu (rm, parent) == GPU_UNKNOWN;
}

bool share_may_take (struct rm *rm, const struct object *parent, const struct rm_source *sources, uint32_t count)
{
    int gpu = parent != NULL ? tracker_gpu (rm, parent) : GPU_UNKNOWN;
    uint64_t reserved = 0;
    bool may = !is_lost (rm, parent);

    for (uint32_t i = 0; i < count && may; i++)
        may = has_room_for (rm, gpu, &sources[i], &reserved);
    memory_refund (rm, gpu, reserved);
    return may;
}

/* false: it is beyond the quota, or the driver does not say what it is. */
static bool import_guarded (struct rm *rm, const struct rm_call *call, const struct import *of, uint32_t handle)
{
    uint32_t client = ((const NVOS54_PARAMETERS *) call->head)->hClient;
    const struct object *parent = tracker_find (rm, client, of->parent);
    const struct rm_source made = { .is_own = true, .client = client, .handle = handle };
    int gpu = parent != NULL ? tracker_gpu (rm, parent) : GPU_UNKNOWN;
    struct memory *memory = NULL;
    struct object *object;
    bool is_retained = false;
    uint64_t bytes;

    if (rm->host->hold != NULL && gpu >= 0 && rm->host->hold (rm->context, gpu, &made, &bytes)) {
        memory = find_own (rm, gpu, bytes);
        is_retained = memory == NULL && rm->host->is_retained (rm->context);
        rm->host->let_go (rm->context);
    }
    /* Its handles were freed after the export. It is charged until nothing holds it any more, this import included. */
    if (is_retained)
        return tracker_add (rm, call->file, client, of->parent, handle, CLASS_PLAIN) != NULL;
    if (memory == NULL)
        return evidence_import (rm, call, client, of->parent, handle) == EVIDENCE_OBJECT;
    object = tracker_add (rm, call->file, client, of->parent, handle, CLASS_VIDEO_MEMORY);
    if (object == NULL)
        return false;
    memory->references++;
    memory_join (rm, object, memory);
    return true;
}

static struct import import_of (const struct rm_control *control, const struct rm_call *call)
{
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *one = call->params;
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *many = call->params;
    struct import of;

    if (control->kind == CONTROL_IMPORT_OBJECT)
        return (struct import) { .parent = one->object.data.rmObject.hParent,
                                 .count = 1,
                                 .handles = { one->object.data.rmObject.hObject } };
    of = (struct import) { .parent = many->hParent, .slot = many->index, .is_list = true };
    of.count = many->numObjects < COUNT (of.handles) ? many->numObjects : COUNT (of.handles);
    /* NONE: the slot is empty, and what was given as its handle is no import. */
    for (uint32_t i = 0; i < of.count; i++)
        of.handles[i] = many->objectTypes[i] != NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_NONE ? many->objects[i] : 0;
    return of;
}

void share_give_back (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t parent, uint32_t handle)
{
    struct object *object = tracker_find (rm, client, handle);
    const struct object *above = tracker_find (rm, client, parent);
    _Alignas (uint64_t) NVOS00_PARAMETERS head = { .hRoot = client, .hObjectParent = parent, .hObjectOld = handle };

    /* UVM may have it by now. What is known to be the tenant's own is charged, or will be examined, as such. */
    if (rm->host->give_back != NULL && above != NULL && (object == NULL || (object->memory != NULL && object->memory->is_foreign)))
        rm->host->give_back (rm->context, tracker_gpu (rm, above), call->file, client, parent, handle);
    else
        rm->host->ioctl (rm->context, call->file, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
    if (object != NULL)
        tracker_drop (rm, object);
}

/* All of the call, or nothing. */
static void undo (struct rm *rm, const struct rm_call *call, const struct import *of)
{
    NVOS54_PARAMETERS *head = call->head;

    for (uint32_t i = 0; i < of->count; i++)
        if (of->handles[i] != 0)
            share_give_back (rm, call, head->hClient, of->parent, of->handles[i]);
    note (rm, RM_OVER_QUOTA, NV01_MEMORY_LOCAL_USER);
    head->status = NV_ERR_NO_MEMORY;
}

bool share_may_import (struct rm *rm, const struct rm_control *control, const struct rm_call *call)
{
    struct rm_source sources[COUNT (((NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *) 0)->objects)];
    struct import of = import_of (control, call);

    for (uint32_t i = 0; i < of.count; i++)
        sources[i] = (struct rm_source) { .params = call->params, .file = call->named, .slot = of.slot + i, .is_list = of.is_list };
    return share_may_take (rm, tracker_find (rm, ((const NVOS54_PARAMETERS *) call->head)->hClient, of.parent), sources, of.count);
}

static void import_all (struct rm *rm, const struct rm_control *control, const struct rm_call *call)
{
    struct import of = import_of (control, call);

    for (uint32_t i = 0; i < of.count; i++)
        if (of.handles[i] != 0 && !import_guarded (rm, call, &of, of.handles[i])) {
            undo (rm, call, &of);
            return;
        }
}

void share_import (struct rm *rm, const struct rm_control *control, struct rm_call *call)
{
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *one = call->params;
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *many = call->params;
    uint64_t file = file_behind (rm, one->fd); /* both begin with it */
    uint32_t count, first;

    if (is_guard (rm)) {
        import_all (rm, control, call);
        return;
    }
    if (control->kind == CONTROL_IMPORT_OBJECT) {
        import_one (rm, call, file, one->object.data.rmObject.hParent, one->object.data.rmObject.hObject, 0);
        return;
    }
    count = many->numObjects;
    first = many->index;
    for (uint32_t i = 0; i < count && i < COUNT (many->objects); i++)
        import_one (rm, call, file, many->hParent, many->objects[i], first + i);
}
