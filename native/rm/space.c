/*
 * The address space in which a channel computes. A device has one by default, in which is everything that names none: that of another
 * client's device where hClientShare names that client, and one of all programs where it is 0 (device_share.c,
 * deviceInitClientShare_IMPL). The driver does not check that client's owner. CUDA's devices have none (vaMode); video decoding
 * computes in its own (seen on an H100, 580.159.04).
 *
 * A device is made by its process: the params that were looked at here can be others by then. So a default address space is used
 * only where the guard made the device, with params that no program can change; elsewhere every object has to name one.
 */
#include "nv_params.h"
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

bool space_is_named (const struct rm_call *call, const struct object *parent)
{
    const void *params = call->params;
    const NV_CHANNEL_ALLOC_PARAMS *channel = params;
    bool is_in_group = call->own.class->kind == CLASS_CHANNEL && parent != NULL && parent->kind == CLASS_GROUP;
    const struct object *holder = is_in_group || parent == NULL ? parent : parent->device;

    if (holder != NULL && holder->has_space)
        return true;
    if (params == NULL)
        return false;
    switch (call->own.class->kind) {
    case CLASS_GROUP:
        return ((const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *) params)->hVASpace != 0;
    case CLASS_CHANNEL:
        return channel->hContextShare != 0 || channel->hVASpace != 0;
    case CLASS_CONTEXT_SHARE:
        return ((const NV_CTXSHARE_ALLOCATION_PARAMETERS *) params)->hVASpace != 0;
    case CLASS_VIRTUAL_RANGE:
        return call->own.number == NV50_MEMORY_VIRTUAL ? ((const NV_MEMORY_ALLOCATION_PARAMS *) params)->hVASpace != 0
                                                       : ((const NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS *) params)->hVASpace != 0;
    default:
        return false;
    }
}

/* Of FERMI_VASPACE_A all are handles of one that is there already, but for a new one: the GPU's, of all programs, and others'. With IS_FLA the end
 * of a new one is taken for that of the GPU's, for NVLink (gpu_vaspace.c, _gvaspaceFlaVaspaceDestruct; source). */
static bool is_new (const struct rm_call *call, const struct object *parent)
{
    NV_VASPACE_ALLOCATION_PARAMETERS params = { 0 };
    uint32_t index;

    if (call->params != NULL)
        params = *(const NV_VASPACE_ALLOCATION_PARAMETERS *) call->params;
    index = params.index;
    if ((params.flags & NV_VASPACE_ALLOCATION_FLAGS_IS_FLA) != 0)
        return false;
    return index == NV_VASPACE_ALLOCATION_INDEX_GPU_NEW || (index == NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE && parent != NULL &&
                                                            parent->device != NULL && parent->device->has_space);
}

bool space_may_be_used (const struct rm_call *call, const struct object *parent)
{
    switch (call->own.class->kind) {
    case CLASS_CHANNEL:
    case CLASS_CONTEXT_SHARE:
    case CLASS_VIRTUAL_RANGE:
        return space_is_named (call, parent);
    default: /* a group without one has channels that name one: CUDA's */
        return call->own.number != FERMI_VASPACE_A || is_new (call, parent);
    }
}
