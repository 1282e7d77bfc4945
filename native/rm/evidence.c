/*
 * Objects that the ledger does not have, of a guard's tenant. A call that was continued may have made them, or another one than was
 * looked at: so what it was said to make is in no record. The driver is asked what is there (GET_HANDLE_INFO, a question on the
 * client that every client may ask: rmapi/client_resource.c), and what it reports enters, with its class and its parents.
 */
#include "nv_params.h"
#include "state.h"

/* The driver's own objects lie no deeper: client, device, group, channel, engine object, event. */
#define DEPTH_MAX 8u

struct found {
    uint32_t handle, class;
};

static bool ask (struct rm *rm, uint64_t file, uint32_t client, uint32_t handle, uint32_t index, uint32_t *result)
{
    _Alignas (uint64_t) NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS params = { .hObject = handle, .index = index };

    if (schedule_control (rm, file, client, client, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, &params, sizeof (params)) != 0)
        return false;
    *result = params.data.hResult;
    return true;
}

/* Bytes of a piece of memory; 0: the driver does not say. */
static uint64_t ask_size (struct rm *rm, uint64_t file, uint32_t client, uint32_t handle)
{
    _Alignas (uint64_t) NV0041_CTRL_SURFACE_INFO entry = { .index = NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE };
    _Alignas (uint64_t) NV0041_CTRL_GET_SURFACE_INFO_PARAMS params = {
        .surfaceInfoListSize = 1,
        .surfaceInfoList = (NvP64) (uintptr_t) &entry,
    };

    if (schedule_control (rm, file, client, handle, NV0041_CTRL_CMD_GET_SURFACE_INFO, &params, sizeof (params)) != 0)
        return 0;
    return (uint64_t) entry.data * SURFACE_UNIT;
}

/* Memory of unknown size or GPU would be charged nothing. Memory beyond the quota was won by a raced call, and ends a process (reconcile.c). Both
 * stay unknown, and are charged as what the driver reports beyond the ledger. */
static bool enter_memory (struct rm *rm, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle, uint32_t class)
{
    int gpu = tracker_gpu_of (rm, client, parent);
    uint64_t bytes, taken;
    struct object *object;

    if (class == NV_MEMORY_FABRIC)
        return tracker_add (rm, file, client, parent, handle, CLASS_VIDEO_MEMORY) != NULL;
    bytes = ask_size (rm, file, client, handle);
    taken = memory_footprint (rm, bytes);
    if (bytes == 0 || gpu == GPU_UNKNOWN || !memory_reserve (rm, gpu, taken))
        return false;
    object = tracker_add (rm, file, client, parent, handle, CLASS_VIDEO_MEMORY);
    if (object != NULL)
        memory_commit (rm, object, gpu, gpu >= 0 ? taken : 0, bytes);
    else
        memory_refund (rm, gpu, taken);
    return object != NULL;
}

/* What has a context is charged for it, whatever call made it. */
static void confirm_object (struct rm *rm, uint32_t client, const struct found *found)
{
    const struct object *object = tracker_find (rm, client, found->handle);

    if (object->context_bytes != 0)
        rm->found_contexts += rm->found_contexts < rm->unconfirmed;
    else
        outcome_found (rm, 0, client, found->handle, found->class); /* one call makes one object */
}

/* As if it had never been made: kernels on it would not stop in time. */
static void take_back (struct rm *rm, uint64_t file, uint32_t client, struct object *object, uint32_t class)
{
    _Alignas (uint64_t) NVOS00_PARAMETERS head = { .hRoot = client, .hObjectOld = (uint32_t) object->link.key };

    note (rm, RM_SCHEDULING_CONTROL, class);
    (void) rm->host->ioctl (rm->context, file, NV_REQUEST (NV_ESC_RM_FREE, sizeof (head)), &head);
    tracker_drop (rm, object);
}

static bool enter (struct rm *rm, uint64_t file, uint32_t client, uint32_t parent, const struct found *found)
{
    const struct rm_class *class = rm_abi_class (rm->abi, found->class);
    uint8_t kind = class != NULL ? class->kind : CLASS_PLAIN;
    struct object *object;

    if (kind == CLASS_VIDEO_MEMORY)
        return enter_memory (rm, file, client, parent, found->handle, found->class);
    /* What nothing could stop stays unknown, and nothing can be done with it, as where such a one is made (alloc.c). */
    if ((kind == CLASS_GROUP || kind == CLASS_CHANNEL) && !schedule_reaches (rm, tracker_find (rm, client, parent)))
        return false;
    object = tracker_add (rm, file, client, parent, found->handle, kind);
    if (object == NULL)
        return false;
    if (kind == CLASS_DEVICE)
        object->instance = RM_MAX_GPUS; /* not known: its subdevice tells which GPU it is */
    else if (kind == CLASS_SUBDEVICE)
        tracker_add_subdevice (rm, file, object);
    else if (!schedule_found (rm, object)) {
        take_back (rm, file, client, object, found->class);
        return false;
    }
    return true;
}

bool evidence_client (struct rm *rm, const struct rm_call *call, uint64_t file, uint32_t client)
{
    bool is_known = tracker_find (rm, client, client) != NULL;
    struct client *entered = tracker_client (rm, file, client);

    if (entered != NULL && !is_known)
        outcome_found_client (rm, entered, call->file, call->descriptor);
    return entered != NULL;
}

/* What the driver has under a handle, and above it up to what the ledger has: handles and classes, the handle's own first.
 * 0: it has nothing there, or does not say. */
static unsigned look_up (struct rm *rm, uint64_t file, uint32_t client, uint32_t handle, struct found *found, uint32_t *top)
{
    unsigned depth = 0;

    for (; handle != client && tracker_find (rm, client, handle) == NULL; depth++) {
        if (depth == DEPTH_MAX || handle == 0)
            return 0;
        found[depth].handle = handle;
        if (!ask (rm, file, client, handle, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID, &found[depth].class))
            return 0;
        if (found[depth].class == NV01_DEVICE_0)
            handle = client; /* a device lies below nothing else */
        else if (!ask (rm, file, client, handle, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT, &handle))
            return 0;
    }
    *top = handle;
    return depth;
}

enum evidence evidence_of (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t handle)
{
    const struct object *root = tracker_find (rm, client, client);
    struct found found[DEPTH_MAX];
    uint64_t file = call->file;
    uint32_t parent, class;
    unsigned depth;

    if (tracker_find (rm, client, handle) != NULL)
        return EVIDENCE_OBJECT;
    if (client == 0 || handle == 0)
        return EVIDENCE_NONE;
    if (root != NULL && root->kind == CLASS_CLIENT)
        file = root->client->file->link.key;
    else if (root != NULL || call->node != RM_NODE_CONTROL)
        return EVIDENCE_NONE; /* the other nodes serve clients of another file */
    if (handle == client) {
        if (!ask (rm, file, client, client, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID, &class))
            return EVIDENCE_NONE;
        return evidence_client (rm, call, file, client) ? EVIDENCE_OBJECT : EVIDENCE_UNUSABLE;
    }
    depth = look_up (rm, file, client, handle, found, &parent);
    if (depth == 0)
        return EVIDENCE_NONE;
    if (!evidence_client (rm, call, file, client) || is_full (rm))
        return EVIDENCE_UNUSABLE;
    for (; depth > 0; parent = found[depth].handle) {
        if (!enter (rm, file, client, parent, &found[--depth]))
            return EVIDENCE_UNUSABLE;
        confirm_object (rm, client, &found[depth]);
    }
    return EVIDENCE_OBJECT;
}

enum evidence evidence_import (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t parent, uint32_t handle)
{
    const struct object *root = tracker_find (rm, client, client);
    uint64_t file = root != NULL && root->kind == CLASS_CLIENT ? root->client->file->link.key : call->file;
    const struct object *object;
    uint32_t class;
    uint64_t bytes;
    int gpu;

    if (!ask (rm, file, client, handle, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID, &class))
        return EVIDENCE_UNUSABLE;
    if (class != NV01_MEMORY_LOCAL_USER)
        return evidence_of (rm, call, client, handle);
    bytes = ask_size (rm, file, client, handle);
    gpu = tracker_gpu_of (rm, client, parent);
    if (bytes == 0 || gpu == GPU_UNKNOWN || !memory_reserve (rm, gpu, memory_footprint (rm, bytes)))
        return EVIDENCE_UNUSABLE;
    memory_refund (rm, gpu, memory_footprint (rm, bytes));
    if (evidence_of (rm, call, client, handle) != EVIDENCE_OBJECT)
        return EVIDENCE_UNUSABLE;
    object = tracker_find (rm, client, handle);
    if (object->memory != NULL)
        object->memory->is_foreign = true;
    return EVIDENCE_OBJECT;
}

bool evidence_has (struct rm *rm, const struct rm_call *call, uint32_t client, uint32_t handle)
{
    return !is_guard (rm) || evidence_of (rm, call, client, handle) == EVIDENCE_OBJECT;
}
