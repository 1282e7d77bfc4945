/* Memory that is handed on by a descriptor: the exporter pays until its handles are freed and the descriptor's file is
 * closed, as far as this tenant's files can be seen; a guard's cannot. An import is not charged. */
#include "nv_params.h"
#include "state.h"

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
    object->memory->is_exported = true;
    if (file != 0 || !is_guard (rm))
        tracker_export (rm, file != 0 ? file : call->file, object->memory, slot);
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
        return evidence_has (rm, call, client, imports->hParent);
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

void share_import (struct rm *rm, const struct rm_control *control, struct rm_call *call)
{
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS *one = call->params;
    const NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS *many = call->params;
    uint64_t file = file_behind (rm, one->fd); /* both begin with it */
    uint32_t count, first;

    if (control->kind == CONTROL_IMPORT_OBJECT) {
        import_one (rm, call, file, one->object.data.rmObject.hParent, one->object.data.rmObject.hObject, 0);
        return;
    }
    count = many->numObjects;
    first = many->index;
    for (uint32_t i = 0; i < count && i < COUNT (many->objects); i++)
        import_one (rm, call, file, many->hParent, many->objects[i], first + i);
}
