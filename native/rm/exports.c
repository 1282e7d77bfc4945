/* Memory that is handed on by a descriptor: the exporter pays until its handles are freed and the descriptor's file is
 * closed, as far as this tenant's files can be seen. Who imports pays nothing. */
#include "state.h"

#define IMPORT_OBJECTS 8u
#define IMPORT_MAX 128u
#define EXPORT_OBJECTS 76u
#define EXPORT_MAX 512u

/* More processes than export one piece. */
#define EXPORTERS_MAX 4u

/* 0: nobody knows. */
static uint64_t file_behind (struct rm *rm, uint32_t descriptor)
{
    return rm->host->file_of != NULL ? rm->host->file_of (rm->context, (int) descriptor) : 0;
}

/* Where nobody knows the descriptor's file the charge stays until the exporting file is closed: rather too long. For that
 * one record is enough, however often it is exported; and whoever is beyond all measure is charged for good. */
static void export_to_nobody (struct rm *rm, const struct rm_call *call, struct memory *memory, uint32_t slot)
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
    struct object *object = handle != 0 ? tracker_find (rm, get32 (call->head, 0), handle) : NULL;

    if (object == NULL || object->memory == NULL)
        return;
    if (file != 0)
        tracker_export (rm, file, object->memory, slot);
    else
        export_to_nobody (rm, call, object->memory, slot);
}

/* EXPORT_OBJECT: 0 type, 4 hDevice, 8 hParent, 12 hObject, 16 fd.
 * EXPORT_OBJECTS: 0 fd, 4 hDevice, 8 room, 10 metadata, 76 handles, 2124 count, 2126 first slot (16 bits each). */
void share_export (struct rm *rm, const struct rm_control *control, struct rm_call *call)
{
    const uint8_t *params = call->params;
    uint32_t count, first;
    uint64_t file;

    if (control->kind == CONTROL_EXPORT_OBJECT) {
        export_one (rm, call, file_behind (rm, get32 (params, 16)), get32 (params, 12), 0);
        return;
    }
    file = file_behind (rm, get32 (params, 0));
    count = get16 (params, 2124);
    first = get16 (params, 2126);
    for (uint32_t i = 0; i < count && i < EXPORT_MAX; i++)
        export_one (rm, call, file, get32 (params, EXPORT_OBJECTS + 4 * i), first + i);
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
    object = tracker_add (rm, call->file, get32 (call->head, 0), parent, handle, CLASS_PLAIN);
    while (export != NULL && export->slot != slot)
        export = export->next;
    if (object == NULL || export == NULL)
        return;
    object->kind = CLASS_VIDEO_MEMORY;
    object->memory = export->memory;
    object->memory->references++;
}

/* IMPORT_OBJECT: 0 fd, 4 type, 8 hDevice, 12 hParent, 16 hObject.
 * IMPORT_OBJECTS: 0 fd, 4 hParent, 8 handles, 520 types (a byte each), 648 count, 650 first slot. */
void share_import (struct rm *rm, const struct rm_control *control, struct rm_call *call)
{
    const uint8_t *params = call->params;
    uint64_t file = rm->host->file_of != NULL ? rm->host->file_of (rm->context, (int) get32 (params, 0)) : 0;
    uint32_t count, first;

    if (control->kind == CONTROL_IMPORT_OBJECT) {
        import_one (rm, call, file, get32 (params, 12), get32 (params, 16), 0);
        return;
    }
    count = get16 (params, 648);
    first = get16 (params, 650);
    for (uint32_t i = 0; i < count && i < IMPORT_MAX; i++)
        import_one (rm, call, file, get32 (params, 4), get32 (params, IMPORT_OBJECTS + 4 * i), first + i);
}
