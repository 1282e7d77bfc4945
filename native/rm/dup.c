/* RM_FREE (NVOS00), RM_DUP_OBJECT (NVOS55): the end of objects, and their further handles. */
#include "nv_params.h"
#include "page_tables.h"
#include "space.h"
#include "state.h"

static enum rm_verdict refuse (struct rm *rm, struct rm_call *call, size_t at, uint32_t status, enum rm_reason reason)
{
    note (rm, reason, rm_request_number (call->request));
    set32 (call->head, at, status);
    return RM_REFUSED;
}

/* Some programs leave hRoot out when a client frees itself. */
static struct object *to_free (const struct rm *rm, const NVOS00_PARAMETERS *head)
{
    return tracker_find (rm, head->hRoot != 0 ? head->hRoot : head->hObjectOld, head->hObjectOld);
}

enum rm_verdict free_begin (struct rm *rm, struct rm_call *call)
{
    const NVOS00_PARAMETERS *head = call->head;
    struct object *object = to_free (rm, head);
    enum evidence evidence;

    if (object == NULL && is_guard (rm) && head->hRoot != 0) {
        /* What is freed is looked at before: memory that no record had can have other holders. */
        evidence = evidence_of (rm, call, head->hRoot, head->hObjectOld);
        if (evidence == EVIDENCE_UNUSABLE)
            return refuse (rm, call, offsetof (NVOS00_PARAMETERS, status), NV_ERR_INSUFFICIENT_RESOURCES, RM_UNKNOWN_OBJECT);
        object = to_free (rm, head);
    }
    if (object == NULL)
        return is_guard (rm) ? RM_PERFORM : RM_PASS;
    if (is_guard (rm) && schedule_needs (rm, object))
        return refuse (rm, call, offsetof (NVOS00_PARAMETERS, status), NV_ERR_IN_USE, RM_SCHEDULING_CONTROL);
    call->own.serial = object->serial;
    space_leaves (object);
    return RM_PERFORM;
}

void free_end (struct rm *rm, struct rm_call *call, bool done)
{
    const NVOS00_PARAMETERS *head = call->head;
    struct object *object;

    if (!done || head->status != 0 || call->own.serial == 0)
        return;
    object = to_free (rm, head);
    /* Between the driver's freeing and now another thread may have got the same handle for something new. */
    if (object != NULL && object->serial == call->own.serial)
        tracker_drop (rm, object);
}

static struct memory *taken (const struct rm_call *call) { return (struct memory *) (uintptr_t) call->own.serial; }

/* A source that is not of this tenant's clients is another tenant's, or the host's: the driver decides by what its owner shared. */
static bool is_foreign (const struct rm *rm, const NVOS55_PARAMETERS *head)
{
    return tracker_find (rm, head->hClientSrc, head->hClientSrc) == NULL;
}

static const struct object *parent_of (const struct rm *rm, const NVOS55_PARAMETERS *head)
{
    return tracker_find (rm, head->hClient, head->hParent != 0 ? head->hParent : head->hClient);
}

enum rm_verdict dup_begin (struct rm *rm, struct rm_call *call)
{
    const NVOS55_PARAMETERS *head = call->head;
    const struct object *source;

    if (is_full (rm))
        return refuse (rm, call, offsetof (NVOS55_PARAMETERS, status), NV_ERR_INSUFFICIENT_RESOURCES, RM_TOO_MANY);
    if (!evidence_has (rm, call, head->hClient, head->hParent != 0 ? head->hParent : head->hClient) ||
        (!is_foreign (rm, head) && !evidence_has (rm, call, head->hClientSrc, head->hObjectSrc)))
        return refuse (rm, call, offsetof (NVOS55_PARAMETERS, status), NV_ERR_OBJECT_NOT_FOUND, RM_UNKNOWN_OBJECT);
    source = tracker_find (rm, head->hClientSrc, head->hObjectSrc);
    if (is_guard (rm) && source != NULL && source->kind == CLASS_GROUP && !schedule_reaches (rm, parent_of (rm, head)))
        return refuse (rm, call, offsetof (NVOS55_PARAMETERS, status), NV_ERR_OBJECT_NOT_FOUND, RM_UNKNOWN_OBJECT);
    call->own.number = is_guard (rm) && source == NULL;
    if (call->own.number != 0) {
        const struct rm_source theirs = { .client = head->hClientSrc, .handle = head->hObjectSrc };

        if (!share_may_take (rm, parent_of (rm, head), &theirs, 1))
            return refuse (rm, call, offsetof (NVOS55_PARAMETERS, status), NV_ERR_NO_MEMORY, RM_OVER_QUOTA);
    }
    if (is_guard (rm) && !tables_duplicate (rm, call, source))
        return refuse (rm, call, offsetof (NVOS55_PARAMETERS, status), NV_ERR_NO_MEMORY, RM_OVER_QUOTA);
    if (source != NULL)
        policy_give (rm, source, head->hClient);
    call->own.space_serial = is_guard (rm) && space_is_own (rm, source) ? SPACE_ITSELF : 0;
    call->own.looked_at = source != NULL ? source->serial : 0;
    /* A reference, taken before the driver takes its own: it must not be refunded in between. */
    if (source != NULL && source->memory != NULL) {
        source->memory->references++;
        call->own.serial = (uint64_t) (uintptr_t) source->memory;
    }
    return RM_PERFORM;
}

/* Whatever the driver says it is; memory only within the quota. What no record could be made of is given back. */
static void add_foreign (struct rm *rm, const struct rm_call *call)
{
    NVOS55_PARAMETERS *head = call->head;

    if (evidence_import (rm, call, head->hClient, head->hParent, head->hObject) == EVIDENCE_OBJECT) {
        tracker_find (rm, head->hClient, head->hObject)->is_foreign = true;
        return;
    }
    share_give_back (rm, call, head->hClient, head->hParent, head->hObject);
    note (rm, RM_OVER_QUOTA, NV01_MEMORY_LOCAL_USER);
    head->status = NV_ERR_NO_MEMORY;
}

/* The object that was looked at, if it is there still: it can be freed meanwhile and its handle used again, by the duplicate too. */
static struct object *looked_at (const struct rm *rm, const struct rm_call *call)
{
    const NVOS55_PARAMETERS *head = call->head;
    struct object *source = tracker_find (rm, head->hClientSrc, head->hObjectSrc);

    return source != NULL && source->serial == call->own.looked_at ? source : NULL;
}

void dup_end (struct rm *rm, struct rm_call *call, bool done)
{
    NVOS55_PARAMETERS *head = call->head;
    struct object *source = tracker_find (rm, head->hClientSrc, head->hObjectSrc);
    struct memory *memory = taken (call);
    struct object *object = NULL;
    uint8_t kind = CLASS_PLAIN;

    if (done && head->status == 0 && call->own.number != 0) {
        add_foreign (rm, call);
        return;
    }
    if (memory != NULL)
        kind = CLASS_VIDEO_MEMORY;
    else if (is_guard (rm) && source != NULL &&
             (source->kind == CLASS_GROUP || source->kind == CLASS_SPACE || source->kind == CLASS_CONTEXT_SHARE))
        kind = source->kind;
    if (done && head->status == 0 && (call->node == RM_NODE_CONTROL || tracker_find (rm, head->hClient, head->hClient) != NULL))
        object = tracker_add (rm, call->file, head->hClient, head->hParent, head->hObject, kind);
    source = looked_at (rm, call);
    if (object != NULL && kind != CLASS_PLAIN && kind != CLASS_VIDEO_MEMORY)
        space_duplicated (rm, call, object, source);
    if (!done || head->status != 0)
        memory_refund (rm, call->own.gpu, call->own.reserved);
    else
        tables_made (rm, call, object, 0);
    if (object != NULL && memory != NULL)
        memory_join (rm, object, memory);
    else if (object != NULL && kind == CLASS_GROUP && source != NULL)
        schedule_duplicated (rm, object, source);
    else if (object != NULL && kind == CLASS_GROUP) {
        /* Of which group it is, is not known. */
        share_give_back (rm, call, head->hClient, head->hParent, head->hObject);
        note (rm, RM_SCHEDULING_CONTROL, rm_request_number (call->request));
        head->status = NV_ERR_INVALID_STATE;
    } else
        memory_drop (rm, memory);
}
