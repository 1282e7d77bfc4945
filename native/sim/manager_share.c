/* Memory with more than one handle: duplicates, share policies, exports into an open file and imports out of it. Runs
 * as manager.c, under manager->lock. */
#include "device.h"
#include "manager_state.h"

#include <stdlib.h>
#include <string.h>

/* RS_SHARE_TYPE_* and RS_SHARE_ACTION_FLAG_REVOKE (rs_access.h). */
enum share_type {
    SHARE_NONE = 0,
    SHARE_ALL = 1,
    SHARE_TOKEN = 2,
    SHARE_CLIENT = 3,
    SHARE_PROCESS = 4,
    SHARE_PARTITION = 5,
    SHARE_GPU = 6
};
#define SHARE_REVOKE 1
#define SHARE_COMPOSE 4
/* NV0000_CTRL_OS_UNIX_{EXPORT_OBJECTS_TO,IMPORT_OBJECTS_FROM}_FD_PARAMS, 2128 and 652 bytes. */
#define EXPORT_MAX 512
#define IMPORT_MAX 128
enum import_type { IMPORT_NONE = 0, IMPORT_VIDEO = 1, IMPORT_SYSTEM = 2 };

/* RS_SHARE_POLICY: target, access mask, type, action. With COMPOSE beside what is allowed already: one client, the last one, for guards make
 * such policies, and libcuda none. */
static void set_policy (struct object *object, const uint8_t *policy)
{
    uint16_t type = (uint16_t) (get32 (policy, 8) & 0xffff);
    uint8_t action = policy[10];

    if ((action & SHARE_COMPOSE) && (action & SHARE_REVOKE) == 0 && type == SHARE_CLIENT) {
        object->composed_target = get32 (policy, 0);
        return;
    }
    object->has_policy = true;
    object->composed_target = 0;
    object->share_target = get32 (policy, 0);
    object->share_type = action & SHARE_REVOKE ? SHARE_NONE : type;
}

enum status memory_share (struct request *request)
{
    const uint8_t *head = request->head;
    uint32_t handle = get32 (head, 0), type = get32 (head, 16) & 0xffff;
    /* To one client: of any file's client (_serverShareResourceAccessClient does not validate it; seen on an H100, 580.159.04). */
    struct client *client = type == SHARE_CLIENT ? client_find (request->manager, handle) : client_of (request, handle);
    struct object *object;

    if (client == NULL)
        return client_error (request, handle);
    if (type == SHARE_CLIENT && get32 (head, 8) != UVM_CLIENT && client_find (request->manager, get32 (head, 8)) == NULL)
        return STATUS_INVALID_OBJECT_HANDLE;
    object = object_find (client, get32 (head, 4));
    if (object == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    set_policy (object, head + 8);
    return STATUS_OK;
}

/* A policy that the client's objects inherit which have none of their own. */
enum status control_inherited_share (struct request *request, struct object *object)
{
    set_policy (&object->client->root, request->params);
    return STATUS_OK;
}

/* All processes here are one user's and use one GPU, without MIG. */
static bool is_for_all (uint16_t type)
{
    return type == SHARE_ALL || type == SHARE_TOKEN || type == SHARE_PARTITION || type == SHARE_GPU;
}

/* A process may always duplicate its own objects (the default policy is RS_SHARE_TYPE_PID). */
bool may_duplicate (const struct object *source, const struct client *client, uint32_t process)
{
    const struct object *owner = source;

    if (source->client == client || source->client->process == process)
        return true;
    if (client != NULL && source->composed_target == client->root.handle)
        return true;
    while (!owner->has_policy && owner->parent != NULL)
        owner = owner->parent;
    return is_for_all (owner->share_type) ||
           (owner->share_type == SHARE_CLIENT && owner->share_target == (client != NULL ? client->root.handle : UVM_CLIENT));
}

/* Below a device what is below one, below a subdevice likewise (memCopyConstruct_IMPL); address spaces anywhere (seen on an H100). */
static uint32_t parents_of_duplicate (const struct object *source)
{
    if (source->kind == KIND_MEMORY)
        return source->parent->kind == KIND_SUBDEVICE ? KIND_SUBDEVICE : KIND_DEVICE;
    return source->kind == KIND_GROUP ? KIND_DEVICE : KIND_ANY;
}

enum status memory_duplicate (struct request *request)
{
    uint8_t *head = request->head;
    struct client *client = client_of (request, get32 (head, 0));
    struct client *owner = client_find (request->manager, get32 (head, 12));
    struct object *parent, *source, *object;
    enum status status;

    if (client == NULL || owner == NULL)
        return client_error (request, get32 (head, owner == NULL ? 12 : 0));
    parent = object_find (client, get32 (head, 4));
    source = object_find (owner, get32 (head, 16));
    /* In the order of serverCopyResource. */
    if (source == NULL || parent == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    if (source->kind != KIND_MEMORY && source->kind != KIND_GROUP && source->class_number != CLASS_SPACE)
        return STATUS_INVALID_ARGUMENT;
    if (get32 (head, 8) != 0 && object_find (client, get32 (head, 8)) != NULL)
        return STATUS_INSERT_DUPLICATE_NAME;
    if (!(parent->kind & parents_of_duplicate (source)))
        return STATUS_INVALID_OBJECT_PARENT;
    if (!may_duplicate (source, client, client->process))
        return STATUS_INSUFFICIENT_PERMISSIONS;
    status = object_create (client, parent, get32 (head, 8), source->kind, &object);
    if (status != STATUS_OK)
        return status;
    object->class_number = source->class_number;
    if (source->kind == KIND_GROUP)
        group_duplicate (object, source);
    if (source->memory.piece != NULL)
        piece_hold (&object->memory, &source->memory);
    put32 (head, 8, object->handle);
    return STATUS_OK;
}

/* NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES: two handles, and the answer. */
enum status memory_are_duplicates (struct request *request, struct object *object)
{
    const struct object *first = object_find (object->client, get32 (request->params, 0));
    const struct object *second = object_find (object->client, get32 (request->params, 4));

    if (first == NULL || second == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    if (first->kind != KIND_MEMORY || second->kind != KIND_MEMORY)
        return STATUS_NOT_SUPPORTED;
    request->params[8] = first->memory.piece != NULL && first->memory.piece == second->memory.piece;
    request->params_changed = true;
    return STATUS_OK;
}

/* The first export into a file says how many slots it has, and the data beside them (_initializeExportObjectFd). */
static enum status export_begin (struct manager_file *file, struct client *client, const uint8_t *params)
{
    uint32_t device = get32 (params, 4), count = get32 (params, 8) & 0xffff;
    const struct object *found = device != 0 ? object_find (client, device) : NULL;

    if (count == 0)
        return STATUS_INVALID_PARAMETER;
    if (device != 0 && found == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    if (found != NULL && found->kind != KIND_DEVICE)
        return STATUS_INVALID_PARAMETER;
    file->exports = calloc (count, sizeof (file->exports[0]));
    if (file->exports == NULL)
        return STATUS_NO_MEMORY;
    file->export_count = count;
    memcpy (file->export_metadata, params + 10, sizeof (file->export_metadata));
    return STATUS_OK;
}

static void export_drop (struct manager *manager, struct holder *holder)
{
    if (holder != NULL)
        piece_drop (manager, holder);
    free (holder);
}

/* The file named must be one of the manager's; the export lives as long as that open file, or until another one takes its slot. */
enum status memory_export (struct request *request, struct object *object)
{
    const uint8_t *params = request->params;
    uint32_t count = get32 (params, 2124) & 0xffff, index = get32 (params, 2124) >> 16, done = 0;
    struct manager_file *target = request->named;
    struct holder *made[EXPORT_MAX] = { NULL };
    bool is_first = target != NULL && target->exports == NULL;
    enum status status = is_first ? export_begin (target, object->client, params) : STATUS_OK;

    if (target == NULL || count > EXPORT_MAX)
        return STATUS_INVALID_PARAMETER;
    if (status != STATUS_OK)
        return status;
    if (index + count > target->export_count)
        status = STATUS_OUT_OF_RANGE;
    for (; status == STATUS_OK && done < count; done++) {
        uint32_t handle = get32 (params, 76 + 4 * (size_t) done);
        struct object *each = object_find (object->client, handle);

        if (handle == 0)
            continue;
        if (each == NULL)
            status = STATUS_OBJECT_NOT_FOUND;
        else if (each->kind != KIND_MEMORY || each->memory.piece == NULL)
            status = STATUS_INVALID_ARGUMENT;
        else if ((made[done] = calloc (1, sizeof (*made[done]))) == NULL)
            status = STATUS_NO_MEMORY;
        else
            piece_hold (made[done], &each->memory);
    }
    for (uint32_t i = 0; i < count; i++) {
        export_drop (request->manager, status != STATUS_OK ? made[i] : target->exports[index + i]);
        if (status == STATUS_OK)
            target->exports[index + i] = made[i];
    }
    if (status != STATUS_OK && is_first) {
        free (target->exports);
        target->exports = NULL;
        target->export_count = 0;
    }
    return status;
}

/* Nothing is imported of an empty slot, and its handle stays as it was given: it is freed too where a later slot fails
 * (cliresCtrlCmdOsUnixImportObjectsFromFd_IMPL). */
enum status memory_import (struct request *request, struct object *object)
{
    uint8_t *params = request->params;
    uint32_t count = get32 (params, 648) & 0xffff, index = get32 (params, 648) >> 16, done = 0;
    struct manager_file *source = request->named;
    struct object *parent = object_find (object->client, get32 (params, 4));
    enum status status = STATUS_OK;

    if (source == NULL || source->exports == NULL || count > IMPORT_MAX)
        return STATUS_INVALID_PARAMETER;
    if (index + count > source->export_count)
        return STATUS_OUT_OF_RANGE;
    for (; done < count && status == STATUS_OK; done++) {
        struct holder *holder = source->exports[index + done];
        uint32_t handle = get32 (params, 8 + 4 * (size_t) done);
        struct object *made = NULL;

        params[520 + done] = holder == NULL ? IMPORT_NONE : holder->piece->video ? IMPORT_VIDEO : IMPORT_SYSTEM;
        if (holder == NULL)
            continue;
        status = parent == NULL ? STATUS_OBJECT_NOT_FOUND
                 : !(parent->kind & (KIND_DEVICE | KIND_SUBDEVICE))
                     ? STATUS_INVALID_OBJECT_PARENT
                     : object_create (object->client, parent, handle, KIND_MEMORY, &made);
        if (status != STATUS_OK)
            break;
        made->class_number = holder->piece->video ? 0x40 : 0x3E;
        piece_hold (&made->memory, holder);
        put32 (params, 8 + 4 * (size_t) done, made->handle);
    }
    while (status != STATUS_OK && done > 0) {
        struct object *undone = object_find (object->client, get32 (params, 8 + 4 * (size_t) --done));

        if (undone != NULL && undone->kind != KIND_CLIENT)
            object_destroy (undone);
    }
    request->params_changed = status == STATUS_OK;
    return status;
}

/* NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS, 80 bytes; 76 without the MIG instance. */
enum status memory_export_info (struct request *request, struct object *object)
{
    (void) object;
    struct manager_file *source = request->named;
    struct holder *first = NULL;

    if (source == NULL)
        return STATUS_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < source->export_count && first == NULL; i++)
        first = source->exports[i];
    if (first == NULL)
        return STATUS_INVALID_ARGUMENT;
    put32 (request->params, 4, first->piece->gpu);
    size_t rest = request->params_size - 68;
    if (rest == 12)
        put32 (request->params, 8, UINT32_MAX); /* no MIG instance */
    put16 (request->params, rest, (uint16_t) (source->export_count < UINT16_MAX ? source->export_count : UINT16_MAX));
    memcpy (request->params + rest + 2, source->export_metadata, sizeof (source->export_metadata));
    request->params_changed = true;
    return STATUS_OK;
}
