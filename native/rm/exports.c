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
static bool are_free (struct rm *rm, const struct rm_call *call, uint32_t client, const NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *imports)
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
    for (uint32_t i = 0; i < count && i < COUNT (many->objects); i++)
        export_one (rm, call, file, many->objects[i], first + i);
}

/* The new handle refers to memory of this tenant if the file is one that it exported to: no second charge, no refund
 * before it is gone too. */
static void import_one (struct rm *rm, const struct rm_call *call, uint64_t name, uint32_t parent, uint32_t handle,
                        uint32_t slot)
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
    uint32_t compared; /* pieces of the tenant's with what was imported */
    NvHandle handles[COUNT (((NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *) 0)->objects)];
};

uint32_t rm_import_again (const struct rm_import *import, uint32_t device, uint32_t parent, union rm_import_params *params, uint32_t *size)
{
    memset (params, 0, sizeof (*params));
    if (import->is_list) {
        params->list = (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS) {.fd = import->file, .hParent = parent, .numObjects = 1,
                                                                           .index = (uint16_t) import->slot};
        *size = sizeof (params->list);
        return NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD;
    }
    params->one = *(const NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *) import->params; /* its type */
    params->one.fd = import->file;
    params->one.object.data.rmObject.hDevice = device;
    params->one.object.data.rmObject.hParent = parent;
    params->one.object.data.rmObject.hObject = 0;
    *size = sizeof (params->one);
    return NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD;
}

uint32_t rm_imported (const struct rm_import *import, const union rm_import_params *params)
{
    return import->is_list ? params->list.objects[0] : params->one.object.data.rmObject.hObject;
}

static struct rm_import again (const struct rm_call *call, struct import *of)
{
    return (struct rm_import) {.params = call->params, .slot = of->slot, .file = call->named, .is_list = of->is_list,
                               .compared = &of->compared};
}

/* The same once more, into another client of the tenant's. The handle that the driver picks; 0: it does not. */
static uint32_t import_again (struct rm *rm, const struct rm_call *call, struct import *of, const struct object *parent)
{
    uint32_t client = (uint32_t) (parent->link.key >> 32), handle = (uint32_t) parent->link.key, size;
    struct rm_import import = again (call, of);
    union rm_import_params params;
    uint32_t command = rm_import_again (&import, parent->device != NULL ? (uint32_t) parent->device->link.key : handle, handle, &params, &size);

    return schedule_control (rm, parent->client->file->link.key, client, client, command, &params, size) == 0 ? rm_imported (&import, &params) : 0;
}

static void free_handle (struct rm *rm, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle)
{
    _Alignas (uint64_t) NVOS00_PARAMETERS head = {.hRoot = client, .hObjectParent = parent, .hObjectOld = handle};

    rm->host->ioctl (rm->context, file, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
}

/* Whether two handles of a client are handles of the same memory (memIsDuplicate). What the driver does not say is not. */
static bool is_same (struct rm *rm, const struct client *client, uint32_t handle, uint32_t other)
{
    _Alignas (uint64_t) NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS params = {.hObject1 = handle, .hObject2 = other};
    uint32_t root = (uint32_t) client->object->link.key;

    return schedule_control (rm, client->file->link.key, root, root, NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES, &params,
                             sizeof (params)) == 0 &&
           params.bDuplicates != 0;
}

static bool is_exported (const struct object *object, int gpu)
{
    return object->memory != NULL && object->memory->is_exported && object->memory->gpu == gpu;
}

/* The memory of an exported handle of this client that `handle`, which was imported into `by`, is another one of. */
static struct memory *find_in (struct rm *rm, const struct rm_call *call, struct import *of, const struct client *client,
                               const struct object *by, uint32_t handle)
{
    uint32_t own = client == by->client ? handle : 0;
    struct memory *found = NULL;
    const struct object *parent = NULL;

    for (struct object *at = client->object; at != NULL && found == NULL && of->compared < RM_COMPARED_MAX; at = tracker_next (client->object, at)) {
        if (!is_exported (at, tracker_gpu (rm, by)))
            continue;
        if (own == 0 && parent == NULL)
            own = import_again (rm, call, of, parent = at->parent);
        of->compared++;
        if (own != 0 && is_same (rm, client, own, (uint32_t) at->link.key))
            found = at->memory;
    }
    if (own != 0 && parent != NULL)
        free_handle (rm, client->file->link.key, (uint32_t) client->object->link.key, (uint32_t) parent->link.key, own);
    return found;
}

static struct memory *find_own (struct rm *rm, const struct rm_call *call, struct import *of, const struct object *by, uint32_t handle)
{
    struct memory *found = NULL;

    for (const struct client *client = rm->exported != 0 ? rm->clients : NULL; client != NULL && found == NULL; client = client->after)
        found = find_in (rm, call, of, client, by, handle);
    return found;
}

/* Its handles were freed after the export. It is charged until nothing holds it any more, this import included. */
static bool is_retained (struct rm *rm, const struct rm_call *call, struct import *of, const struct object *by)
{
    struct rm_import import = again (call, of);
    int gpu = tracker_gpu (rm, by);

    return rm->host->is_retained != NULL && gpu >= 0 && rm->host->is_retained (rm->context, gpu, &import);
}

/* false: it is beyond the quota, or the driver does not say what it is. */
static bool import_guarded (struct rm *rm, const struct rm_call *call, struct import *of, uint32_t handle)
{
    uint32_t client = ((const NVOS54_PARAMETERS *) call->head)->hClient;
    const struct object *parent = tracker_find (rm, client, of->parent);
    struct memory *memory = parent != NULL ? find_own (rm, call, of, parent, handle) : NULL;
    struct object *object;

    if (memory == NULL && parent != NULL && is_retained (rm, call, of, parent))
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
        return (struct import) {.parent = one->object.data.rmObject.hParent, .count = 1, .handles = {one->object.data.rmObject.hObject}};
    of = (struct import) {.parent = many->hParent, .slot = many->index, .is_list = true};
    of.count = many->numObjects < COUNT (of.handles) ? many->numObjects : COUNT (of.handles);
    /* NONE: the slot is empty, and what was given as its handle is no import. */
    for (uint32_t i = 0; i < of.count; i++)
        of.handles[i] = many->objectTypes[i] != NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_NONE ? many->objects[i] : 0;
    return of;
}

/* All of the call, or nothing: as if it had never been made. */
static void undo (struct rm *rm, const struct rm_call *call, const struct import *of)
{
    NVOS54_PARAMETERS *head = call->head;

    for (uint32_t i = 0; i < of->count; i++) {
        struct object *object = tracker_find (rm, head->hClient, of->handles[i]);

        free_handle (rm, call->file, head->hClient, of->parent, of->handles[i]);
        if (object != NULL)
            tracker_drop (rm, object);
    }
    note (rm, RM_OVER_QUOTA, NV01_MEMORY_LOCAL_USER);
    head->status = NV_ERR_NO_MEMORY;
}

static void import_all (struct rm *rm, const struct rm_control *control, const struct rm_call *call)
{
    struct import of = import_of (control, call);

    for (uint32_t i = 0; i < of.count; i++, of.slot++)
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
