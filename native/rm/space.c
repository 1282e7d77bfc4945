/*
 * The address space in which a channel computes. A device has one by default, in which is everything that names none: that of another
 * client's device where hClientShare names that client, and one of all programs where it is 0 (device_share.c,
 * deviceInitClientShare_IMPL). The driver does not check that client's owner. CUDA's devices have none (vaMode); video decoding
 * computes in its own (seen on an H100, 580.159.04).
 *
 * What its process makes may have other params by then than were looked at here: a device, or whatever a raced ALLOC made. So an object is in the
 * tenant's own address space only by what the guard itself made: it names such a one, or a context share in one, or nothing below a device with such a
 * one or in such a group. The driver frees these objects with the one that they name (refAddDependant), and their handles may be used again: so
 * each is known by its serial.
 */
#include "nv_params.h"
#include "page_tables.h"
#include "space.h"
#include "state.h"

static NV0080_ALLOC_PARAMETERS device_params (const struct rm_call *call)
{
    NV0080_ALLOC_PARAMETERS params = { 0 };

    if (call->params != NULL && call->params_size >= sizeof (params))
        params = *(const NV0080_ALLOC_PARAMETERS *) call->params;
    return params;
}

bool space_may_be_shared (const struct rm *rm, const struct rm_call *call)
{
    NV0080_ALLOC_PARAMETERS params = device_params (call);
    uint32_t client = params.hClientShare;

    return (client == 0 || tracker_find (rm, client, client) != NULL) && params.hTargetClient == 0 && params.hTargetDevice == 0;
}

bool space_is_private (const struct rm_call *call)
{
    NV0080_ALLOC_PARAMETERS params = device_params (call);

    return params.hClientShare == ((const NVOS21_PARAMETERS *) call->head)->hRoot &&
           params.vaMode != NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES;
}

/* The handle by which an object names its address space, and what has to be there; 0: it names none. A channel names no two
 * (kchannelConstruct_IMPL). */
struct name {
    uint32_t handle;
    uint8_t kind;
};

static struct name name_in (const struct rm_call *call)
{
    const void *params = call->params;
    const NV_CHANNEL_ALLOC_PARAMS *channel = params;
    struct name named = { 0, CLASS_SPACE };

    if (params == NULL)
        return named;
    switch (call->own.class->kind) {
    case CLASS_GROUP:
        named.handle = ((const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *) params)->hVASpace;
        break;
    case CLASS_CHANNEL:
        named.handle = channel->hContextShare != 0 ? channel->hContextShare : channel->hVASpace;
        named.kind = channel->hContextShare != 0 ? CLASS_CONTEXT_SHARE : CLASS_SPACE;
        break;
    case CLASS_CONTEXT_SHARE:
        named.handle = ((const NV_CTXSHARE_ALLOCATION_PARAMETERS *) params)->hVASpace;
        break;
    case CLASS_VIRTUAL_RANGE:
        named.handle = call->own.number == NV50_MEMORY_VIRTUAL ? ((const NV_MEMORY_ALLOCATION_PARAMS *) params)->hVASpace
                                                               : ((const NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS *) params)->hVASpace;
        break;
    default:
        break;
    }
    return named;
}

/* By what it is: an object that is looked at comes after it, so this ends. */
bool space_is_own (const struct rm *rm, const struct object *object)
{
    while (object != NULL && object->space_serial != 0 && object->space_serial != SPACE_ITSELF) {
        const struct object *by = tracker_find (rm, (uint32_t) (object->link.key >> 32), object->space);

        /* A group goes with the one that it names, and a context share with its group. */
        if (by == NULL || by->serial != object->space_serial ||
            (object->kind == CLASS_CONTEXT_SHARE && object->parent->space_serial != 0 && !space_is_own (rm, object->parent)))
            return false;
        object = by;
    }
    return object != NULL && object->space_serial != 0;
}

static bool remember (const struct rm *rm, struct rm_call *call, const struct object *by)
{
    if (!space_is_own (rm, by))
        return false;
    call->own.space = (uint32_t) by->link.key;
    call->own.space_serial = by->serial;
    return true;
}

static bool remember_named (const struct rm *rm, struct rm_call *call, uint32_t client, struct name named)
{
    const struct object *by = tracker_find (rm, client, named.handle);

    return by != NULL && by->kind == named.kind && remember (rm, call, by);
}

/* Of FERMI_VASPACE_A all are handles of one that is there already, but for a new one: the GPU's, of all programs, and others'. With IS_FLA the end
 * of a new one is taken for that of the GPU's, for NVLink (gpu_vaspace.c, _gvaspaceFlaVaspaceDestruct; source). */
static bool begin_space (const struct rm *rm, struct rm_call *call, const struct object *parent)
{
    NV_VASPACE_ALLOCATION_PARAMETERS params = { 0 };

    if (call->params != NULL)
        params = *(const NV_VASPACE_ALLOCATION_PARAMETERS *) call->params;
    if ((params.flags & NV_VASPACE_ALLOCATION_FLAGS_IS_FLA) != 0)
        return false;
    if (params.index == NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE)
        return parent != NULL && remember (rm, call, parent->device);
    call->own.space_serial = SPACE_ITSELF;
    return params.index == NV_VASPACE_ALLOCATION_INDEX_GPU_NEW;
}

bool space_look_range (const struct rm *rm, struct rm_call *call, uint32_t client, uint32_t named, const struct object *parent)
{
    if (named != 0)
        return remember_named (rm, call, client, (struct name) { named, CLASS_SPACE });
    return parent != NULL && remember (rm, call, parent->device);
}

bool space_look (const struct rm *rm, struct rm_call *call, const struct object *parent)
{
    uint8_t kind = call->own.class->kind;
    struct name named = name_in (call);

    if (kind == CLASS_SPACE)
        return begin_space (rm, call, parent);
    if (kind != CLASS_GROUP && kind != CLASS_CHANNEL && kind != CLASS_CONTEXT_SHARE && kind != CLASS_VIRTUAL_RANGE)
        return true;
    /* Below what the ledger takes for another kind the driver may have a group that a raced ALLOC made, in any address space. */
    if (kind == CLASS_CHANNEL && parent != NULL && parent->kind != CLASS_GROUP && parent->kind != CLASS_DEVICE)
        return false;
    if (named.handle != 0)
        return remember_named (rm, call, ((const NVOS21_PARAMETERS *) call->head)->hRoot, named);
    if (parent == NULL)
        return kind == CLASS_GROUP;
    /* a group without one has channels that name one: CUDA's */
    return remember (rm, call, kind == CLASS_CHANNEL && parent->kind == CLASS_GROUP ? parent : parent->device) ||
           kind == CLASS_GROUP;
}

bool space_made (const struct rm *rm, const struct rm_call *call, struct object *object)
{
    object->space = call->own.space;
    object->space_serial = call->own.space_serial;
    return object->space_serial == 0 || space_is_own (rm, object);
}

void space_leaves (struct object *object)
{
    for (struct object *at = object; at != NULL; at = tracker_next (object, at))
        at->space_serial = 0;
}

bool rm_has_space (const struct rm *rm, uint32_t client, uint32_t handle)
{
    const struct object *object = tracker_find (rm, client, handle);

    return object != NULL && object->space_serial != 0;
}

void rm_client_held (struct rm *rm, uint32_t client, bool is_held)
{
    struct object *root = tracker_find (rm, client, client);

    if (root == NULL || root->kind != CLASS_CLIENT)
        return;
    root->client->is_held = is_held;
    if (!is_held)
        space_leaves (root);
}

void space_duplicated (const struct rm *rm, const struct rm_call *call, struct object *object, const struct object *source)
{
    object->space_serial = source != NULL && call->own.space_serial != 0 && space_is_own (rm, source) ? SPACE_ITSELF : 0;
}

static enum rm_verdict refuse (struct rm *rm, struct rm_call *call, uint32_t status, enum rm_reason reason)
{
    note (rm, reason, rm_request_number (call->request));
    set32 (call->head, call->head_size - 8, status);
    return RM_REFUSED;
}

/*
 * RM_MAP_MEMORY_DMA (NVOS46), RM_UNMAP_MEMORY_DMA (NVOS47): the driver looks a range's address space up again: by the handle that the range named, or
 * where it named none by the call's device, not the range's (virtmemMapTo_IMPL, virtmemUnmapFrom_IMPL).
 */
static bool is_mapped_in_own (const struct rm *rm, const struct object *range, const struct object *device)
{
    const struct object *by;

    if (range->kind != CLASS_VIRTUAL_RANGE || (device->kind != CLASS_DEVICE && device->kind != CLASS_SUBDEVICE) ||
        !space_is_own (rm, range))
        return false;
    by = tracker_find (rm, (uint32_t) (range->link.key >> 32), range->space);
    return by != NULL && (by->kind == CLASS_SPACE || by == device->device);
}

enum rm_verdict mapping_begin (struct rm *rm, struct rm_call *call)
{
    const NVOS46_PARAMETERS *head = call->head; /* the four handles are the same in all */
    bool is_map = rm_request_number (call->request) == NV_ESC_RM_MAP_MEMORY_DMA;
    const struct object *range;

    if (!is_guard (rm))
        return RM_PASS;
    /* What is undone need not name its memory: Vulkan does not. */
    if (!evidence_has (rm, call, head->hClient, head->hDevice) || !evidence_has (rm, call, head->hClient, head->hDma) ||
        (is_map && !evidence_has (rm, call, head->hClient, head->hMemory)))
        return refuse (rm, call, NV_ERR_OBJECT_NOT_FOUND, RM_UNKNOWN_OBJECT);
    range = tracker_find (rm, head->hClient, head->hDma);
    if (!is_mapped_in_own (rm, range, tracker_find (rm, head->hClient, head->hDevice)))
        return refuse (rm, call, NV_ERR_INVALID_STATE, RM_FORBIDDEN_ESCAPE);
    if (is_map && !tables_may_map (rm, head))
        return refuse (rm, call, NV_ERR_INVALID_LIMIT, RM_FORBIDDEN_ESCAPE);
    call->own.number = is_map;
    call->own.serial = range->serial;
    return RM_PERFORM;
}

/* What another thread freed meanwhile may be another range now: it goes, and the mapping with it. */
void mapping_end (struct rm *rm, struct rm_call *call, bool done)
{
    const NVOS46_PARAMETERS *head = call->head;
    const struct object *range = tracker_find (rm, head->hClient, head->hDma);

    if (!done || call->own.number == 0 || get32 (call->head, call->head_size - 8) != 0 ||
        (range != NULL && range->serial == call->own.serial && space_is_own (rm, range)))
        return;
    share_give_back (rm, call, head->hClient, 0, head->hDma);
    (void) refuse (rm, call, NV_ERR_INVALID_STATE, RM_FORBIDDEN_ESCAPE);
}
