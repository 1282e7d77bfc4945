/* Memory that is handed on by a descriptor: the exporter pays until its handles are freed and the descriptor's file is
 * closed, as far as this tenant's files can be seen. An import is not charged. */
#include "nv_params.h"
#include "state.h"

#define COUNT(array) (sizeof (array) / sizeof ((array)[0]))

/* More processes than export one piece. */
#define EXPORTERS_MAX 4u

/* 0: unknown. */
static uint64_t file_behind (struct rm *rm, int descriptor)
{
    return rm->host->file_of != NULL ? rm->host->file_of (rm->context, descriptor) : 0;
}

/* Where the descriptor's file is unknown the charge stays until the exporting file is closed: rather too long. For that
 * one record is enough, however often it is exported; a piece that more files export is charged for good. */
static void export_to_unknown (struct rm *rm, const struct rm_call *call, struct memory *memory, uint32_t slot)
{
    if (memory->exporter == call->file || memory->exporters > EXPORTERS_MAX)
        return;
    memory->exporter = call->file;
    if (memory->exporters++ < EXPORTERS_MAX)
        tracker_export (rm, call->file, memory, slot);
    else
        memory->references++;
}

static void export_one (struct rm *rm, const struct rm_call *call, uint64_t file, uint32_t handle, uint32_t slot)
{
    struct object *object = handle != 0 ? tracker_find (rm, ((const NVOS54_PARAMETERS *) call->head)->hClient, handle) : NULL;

    if (object == NULL || object->memory == NULL)
        return;
    if (file != 0)
        tracker_export (rm, file, object->memory, slot);
    else
        export_to_unknown (rm, call, object->memory, slot);
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
    object->memory = export->memory;
    object->memory->references++;
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
