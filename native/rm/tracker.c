/* The tenant's objects: files have clients, clients have trees of objects, objects may refer to memory. */
#include "nv_params.h"
#include "state.h"

#define UUID_SIZE 16u

struct object *tracker_find (const struct rm *rm, uint32_t client, uint32_t handle)
{
    return (struct object *) table_find (&rm->objects, object_key (client, handle));
}

bool rm_has_object (const struct rm *rm, uint32_t client, uint32_t handle) { return tracker_find (rm, client, handle) != NULL; }

bool tracker_may_be_foreign (const struct rm *rm, const struct rm_call *call, uint32_t client)
{
    const struct object *root = tracker_find (rm, client, client);

    return client != 0 && client != get32 (call->head, 0) && (root == NULL || root->kind != CLASS_CLIENT || !root->client->is_held);
}

struct file *tracker_file (struct rm *rm, uint64_t name, bool create)
{
    struct file *file = (struct file *) table_find (&rm->files, name);

    if (file != NULL || !create)
        return file;
    file = pool_take (rm, &rm->file_pool);
    if (file == NULL)
        return NULL;
    file->link.key = name;
    if (!table_add (rm, &rm->files, &file->link)) {
        pool_give (&rm->file_pool, file);
        return NULL;
    }
    return file;
}

struct object *tracker_new (struct rm *rm, uint32_t client, uint32_t handle, uint8_t kind)
{
    struct object *object = pool_take (rm, &rm->object_pool);

    if (object == NULL)
        return NULL;
    object->link.key = object_key (client, handle);
    object->kind = kind;
    object->gpu = GPU_UNKNOWN;
    object->serial = ++rm->serial;
    if (!table_add (rm, &rm->objects, &object->link)) {
        pool_give (&rm->object_pool, object);
        return NULL;
    }
    return object;
}

static void leave_file (struct client *client)
{
    if (client->file_before != NULL)
        client->file_before->file_after = client->file_after;
    else
        client->file->clients = client->file_after;
    if (client->file_after != NULL)
        client->file_after->file_before = client->file_before;
    client->file_before = client->file_after = NULL;
}

static void join_file (struct client *client, struct file *file)
{
    client->file = file;
    client->file_after = file->clients;
    if (file->clients != NULL)
        file->clients->file_before = client;
    file->clients = client;
}

/* A client is a handle that was seen to work on a file: its allocation need not have been seen. */
struct client *tracker_client (struct rm *rm, uint64_t name, uint32_t handle)
{
    struct object *object = tracker_find (rm, handle, handle);
    struct client *client;
    struct file *file;

    if (object != NULL)
        return object->kind == CLASS_CLIENT ? object->client : NULL;
    file = tracker_file (rm, name, true);
    client = file != NULL ? pool_take (rm, &rm->client_pool) : NULL;
    if (client == NULL)
        return NULL;
    object = tracker_new (rm, handle, handle, CLASS_CLIENT);
    if (object == NULL) {
        pool_give (&rm->client_pool, client);
        return NULL;
    }
    object->client = client;
    client->object = object;
    client->maker = name;
    client->after = rm->clients;
    if (rm->clients != NULL)
        rm->clients->before = client;
    rm->clients = client;
    join_file (client, file);
    rm->client_count++;
    return client;
}

struct object *tracker_add (struct rm *rm, uint64_t file, uint32_t client_handle, uint32_t parent_handle, uint32_t handle,
                            uint8_t kind)
{
    struct client *client = tracker_client (rm, file, client_handle);
    struct object *object, *parent;

    /* No client lies below another one; NVOS02 of a client's class would make one, were it not refused. */
    if (client == NULL || handle == 0 || handle == client_handle || kind == CLASS_CLIENT)
        return NULL;
    /* The driver gave the handle to something new, so what had it is gone, and its freeing is on its way to us. */
    object = tracker_find (rm, client_handle, handle);
    if (object != NULL)
        tracker_drop (rm, object);
    parent = tracker_find (rm, client_handle, parent_handle);
    if (parent == NULL)
        parent = client->object;
    object = tracker_new (rm, client_handle, handle, kind);
    if (object == NULL)
        return NULL;
    object->client = client;
    object->parent = parent;
    object->after = parent->child;
    if (parent->child != NULL)
        parent->child->before = object;
    parent->child = object;
    object->device = kind == CLASS_DEVICE ? object : parent->device;
    return object;
}

/* One object without children. */
static void drop_leaf (struct rm *rm, struct object *object)
{
    schedule_removed (rm, object);
    if (object->kind == CLASS_SUBDEVICE)
        tracker_remove_role (&object->client->subdevices, object);
    if (object->parent != NULL) {
        if (object->before != NULL)
            object->before->after = object->after;
        else
            object->parent->child = object->after;
        if (object->after != NULL)
            object->after->before = object->before;
    }
    memory_leave (rm, object);
    memory_refund (rm, object->context_gpu, object->context_bytes);
    table_remove (&rm->objects, &object->link);
    pool_give (&rm->object_pool, object);
}

/* An object and all below it, leaves first and without recursion: a tenant decides how deep its tree is. */
void tracker_drop (struct rm *rm, struct object *object)
{
    struct object *at = object;

    if (object->kind == CLASS_CLIENT) {
        tracker_drop_client (rm, object->client);
        return;
    }
    for (;;) {
        struct object *parent;

        while (at->child != NULL)
            at = at->child;
        parent = at->parent;
        drop_leaf (rm, at);
        if (at == object)
            return;
        at = parent;
    }
}

void tracker_drop_client (struct rm *rm, struct client *client)
{
    while (client->object->child != NULL)
        tracker_drop (rm, client->object->child);
    drop_leaf (rm, client->object);
    if (client->before != NULL)
        client->before->after = client->after;
    else
        rm->clients = client->after;
    if (client->after != NULL)
        client->after->before = client->before;
    leave_file (client);
    rm->client_count--;
    pool_give (&rm->client_pool, client);
}

void rm_move_client (struct rm *rm, uint32_t handle, uint64_t name)
{
    struct object *object = tracker_find (rm, handle, handle);
    struct file *file = object != NULL && object->kind == CLASS_CLIENT ? tracker_file (rm, name, true) : NULL;

    if (file == NULL || file == object->client->file)
        return;
    leave_file (object->client);
    join_file (object->client, file);
}

size_t rm_clients_of (const struct rm *rm, uint64_t file, uint32_t *clients, size_t capacity)
{
    size_t count = 0;

    for (const struct client *client = rm->clients; client != NULL; client = client->after) {
        if (client->maker != file && client->file->link.key != file)
            continue;
        if (count < capacity)
            clients[count] = (uint32_t) client->object->link.key;
        count++;
    }
    return count;
}

size_t rm_reported_clients (const struct rm *rm, uint64_t file, uint32_t *clients, size_t capacity)
{
    size_t count = 0;

    for (const struct client *client = rm->clients; client != NULL; client = client->after) {
        if (client->maker != file || client->counted == 0)
            continue;
        if (count < capacity)
            clients[count] = (uint32_t) client->object->link.key;
        count++;
    }
    return count;
}

int tracker_gpu (const struct rm *rm, const struct object *object)
{
    const struct object *device = object->device;

    if (device == NULL)
        return GPU_UNKNOWN;
    if (device->gpu != GPU_UNKNOWN || device->instance >= RM_MAX_GPUS)
        return device->gpu;
    /* Another device object of the same instance may have said it. */
    return rm->gpu_of_instance[device->instance];
}

int tracker_gpu_of (const struct rm *rm, uint32_t client, uint32_t handle)
{
    const struct object *object = tracker_find (rm, client, handle);

    return object != NULL ? tracker_gpu (rm, object) : GPU_UNKNOWN;
}

struct object *tracker_next (const struct object *top, struct object *at)
{
    if (at->child != NULL)
        return at->child;
    while (at != top && at->after == NULL)
        at = at->parent;
    return at == top ? NULL : at->after;
}

/* Memory below a device whose GPU was not known was not charged; now it can be. */
static void charge_waiting (struct rm *rm, struct object *device, int gpu)
{
    for (struct object *at = device; at != NULL; at = tracker_next (device, at)) {
        uint64_t charged;

        if (at->memory == NULL || at->memory->gpu != GPU_UNKNOWN)
            continue;
        memory_charge (rm, gpu, at->memory->bytes, &charged);
        at->memory->gpu = gpu;
        at->memory->bytes = charged;
    }
}

void tracker_set_device_gpu (struct rm *rm, struct object *device, int gpu)
{
    bool is_known = device->gpu == gpu;

    device->gpu = gpu;
    if (!is_known)
        charge_waiting (rm, device, gpu);
    if (device->instance >= RM_MAX_GPUS || rm->gpu_of_instance[device->instance] == gpu)
        return;
    /* Known for the first time: other devices of the same instance may have memory that waits. */
    rm->gpu_of_instance[device->instance] = gpu;
    for (struct client *client = rm->clients; client != NULL; client = client->after)
        for (struct object *at = client->object->child; at != NULL; at = at->after)
            if (at->kind == CLASS_DEVICE && at->instance == device->instance && at->gpu == GPU_UNKNOWN)
                charge_waiting (rm, at, gpu);
}

/* Which of the share's GPUs a subdevice is: the driver reports its UUID. */
void tracker_add_subdevice (struct rm *rm, uint64_t file, struct object *subdevice)
{
    _Alignas (uint64_t) NV2080_CTRL_GPU_GET_GID_INFO_PARAMS params = {
        .flags = NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY,
    };
    struct object *device = subdevice->device;
    int gpu;

    tracker_add_role (&subdevice->client->subdevices, subdevice);
    if (device == NULL || schedule_control (rm, file, (uint32_t) (subdevice->link.key >> 32), (uint32_t) subdevice->link.key,
                                            NV2080_CTRL_CMD_GPU_GET_GID_INFO, &params, sizeof (params)) != 0)
        return;
    if (params.length != UUID_SIZE)
        return;
    gpu = rm->host->find_gpu (rm->context, params.data);
    tracker_set_device_gpu (rm, device, gpu >= 0 && gpu < RM_MAX_GPUS ? gpu : RM_NO_GPU);
}

void tracker_add_role (struct object **list, struct object *object)
{
    object->role_before = NULL;
    object->role_after = *list;
    if (*list != NULL)
        (*list)->role_before = object;
    *list = object;
}

void tracker_remove_role (struct object **list, struct object *object)
{
    if (object->role_before != NULL)
        object->role_before->role_after = object->role_after;
    else if (*list == object)
        *list = object->role_after;
    else
        return; /* never in it */
    if (object->role_after != NULL)
        object->role_after->role_before = object->role_before;
    object->role_before = object->role_after = NULL;
}

void tracker_unexport (struct rm *rm, uint64_t name, uint32_t slot)
{
    struct file *file = tracker_file (rm, name, false);

    for (struct export **at = file != NULL ? &file->exports : NULL; at != NULL && *at != NULL; at = &(*at)->next) {
        struct export *export = *at;

        if (export->slot != slot)
            continue;
        *at = export->next;
        memory_drop (rm, export->memory);
        pool_give (&rm->export_pool, export);
        return;
    }
}

void tracker_export (struct rm *rm, uint64_t name, struct memory *memory, uint32_t slot)
{
    struct file *file = tracker_file (rm, name, true);
    struct export *export = file != NULL ? pool_take (rm, &rm->export_pool) : NULL;

    memory->references++; /* without a record it is never refunded: too much rather than too little */
    if (export == NULL)
        return;
    export->memory = memory;
    export->file = name;
    export->slot = slot;
    export->next = file->exports;
    file->exports = export;
}
