/*
 * Which other clients may duplicate an object: RM_SHARE (NVOS57) and CLIENT_SET_INHERITED_SHARE_POLICY. The driver lets UVM map what is shared with
 * all clients for any process, by a call that no guard sees. So it gets no policy that reaches beyond the tenant's own clients: the
 * ledger has it, and a client of the tenant that duplicates the object is given the right then.
 */
#include "nv_params.h"
#include "state.h"

enum share_type {
    SHARE_NONE,
    SHARE_ALL,
    SHARE_TOKEN,
    SHARE_CLIENT,
    SHARE_PID
}; /* RS_SHARE_TYPE_*; then partition, GPU, fabric manager */
#define ACTION_REVOKE 1u /* RS_SHARE_ACTION_FLAG_* */
#define ACTION_REQUIRE 2u
#define ACTION_COMPOSE 4u
#define MAY_DUPLICATE 1u /* RS_ACCESS_DUP_OBJECT */

/* The nearest object, itself or above it, of which a policy was set: the driver looks there. */
static enum policy policy_of (const struct object *object)
{
    while (object->policy == POLICY_INHERITED && object->parent != NULL)
        object = object->parent;
    return (enum policy) object->policy;
}

/* Kernel clients, UVM's too, are clients of no tenant. */
static bool is_wide (const struct rm *rm, const RS_SHARE_POLICY *policy)
{
    if ((policy->action & (ACTION_REVOKE | ACTION_REQUIRE)) != 0 || policy->type == SHARE_NONE || policy->type == SHARE_PID)
        return false;
    return policy->type != SHARE_CLIENT || tracker_find (rm, policy->target, policy->target) == NULL;
}

/* Whether the driver is to get it. */
static bool record (const struct rm *rm, struct object *object, const RS_SHARE_POLICY *policy)
{
    bool is_composed = (policy->action & ACTION_COMPOSE) != 0, wide = is_wide (rm, policy);
    bool ends = (policy->action & ACTION_REVOKE) != 0 && policy->type == SHARE_ALL && (policy->accessMask & MAY_DUPLICATE) != 0;

    if (wide && (policy->accessMask & MAY_DUPLICATE) != 0)
        object->policy = POLICY_WIDE;
    else if (!is_composed || ends)
        object->policy = POLICY_NARROW;
    else
        object->policy = policy_of (object);
    return !wide;
}

enum rm_verdict share_begin (struct rm *rm, struct rm_call *call)
{
    NVOS57_PARAMETERS *head = call->head;
    struct object *object;

    if (!evidence_has (rm, call, head->hClient, head->hObject)) {
        note (rm, RM_UNKNOWN_OBJECT, rm_request_number (call->request));
        head->status = NV_ERR_OBJECT_NOT_FOUND;
        return RM_REFUSED;
    }
    object = tracker_find (rm, head->hClient, head->hObject);
    if (object == NULL || record (rm, object, &head->sharePolicy))
        return RM_PASS;
    head->status = NV_OK;
    return RM_ANSWERED;
}

bool policy_inherited (struct rm *rm, const struct rm_call *call)
{
    uint32_t client = ((const NVOS54_PARAMETERS *) call->head)->hClient;
    struct object *object = evidence_has (rm, call, client, client) ? tracker_find (rm, client, client) : NULL;

    return object != NULL ? record (rm, object, call->params) : !is_wide (rm, call->params);
}

void policy_give (struct rm *rm, const struct object *source, uint32_t client)
{
    _Alignas (uint64_t) NVOS57_PARAMETERS head = {
        .hClient = (uint32_t) (source->link.key >> 32),
        .hObject = (uint32_t) source->link.key,
        .sharePolicy = { .target = client, .accessMask = MAY_DUPLICATE, .type = SHARE_CLIENT, .action = ACTION_COMPOSE },
    };

    if (is_guard (rm) && head.hClient != client && policy_of (source) == POLICY_WIDE)
        (void) rm->host->ioctl (rm->context, source->client->file->link.key, NV_REQUEST (NV_ESC_RM_SHARE, sizeof (head)), &head);
}
