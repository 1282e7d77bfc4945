/* Public entry points and dispatch: which handler a call goes to, and the life of a tenant. */
#include "nv_params.h"
#include "state.h"
#include "uvm_ioctl.h"

struct handler {
    enum rm_verdict (*begin) (struct rm *rm, struct rm_call *call);
    void (*end) (struct rm *rm, struct rm_call *call, bool done);
};

static const struct handler handlers[CALL_KINDS] = {
    [CALL_ALLOC] = { alloc_begin, alloc_end },
    [CALL_FREE] = { free_begin, free_end },
    [CALL_CONTROL] = { control_begin, control_end },
    [CALL_DUP] = { dup_begin, dup_end },
    [CALL_MEMORY] = { alloc_memory_begin, alloc_memory_end },
    [CALL_HEAP] = { heap_begin, heap_end },
    [CALL_UVM] = { uvm_begin, uvm_end },
    [CALL_SHARE] = { share_begin, NULL },
    [CALL_IDLE] = { idle_begin, idle_end },
    [CALL_MAPPING] = { mapping_begin, mapping_end },
};

static enum call_kind call_kind_of (const struct rm_escape *escape)
{
    switch (escape->kind) {
    case ESCAPE_ALLOC:
        return CALL_ALLOC;
    case ESCAPE_FREE:
        return CALL_FREE;
    case ESCAPE_CONTROL:
        return CALL_CONTROL;
    case ESCAPE_DUP:
        return CALL_DUP;
    case ESCAPE_MEMORY:
        return CALL_MEMORY;
    case ESCAPE_HEAP:
        return CALL_HEAP;
    case ESCAPE_IDLE:
        return CALL_IDLE;
    case ESCAPE_MAPPING:
        return CALL_MAPPING;
    default:
        return CALL_NONE;
    }
}

static uint32_t control_command (const void *head) { return ((const NVOS54_PARAMETERS *) head)->cmd; }

static bool is_of_interest (const struct rm_escape *escape) { return escape != NULL && escape->kind >= ESCAPE_FORBIDDEN; }

bool rm_is_interesting (const struct rm_abi *abi, enum rm_node node, uint32_t request)
{
    if (node == RM_NODE_UVM)
        return rm_abi_uvm (abi, request) != NULL;
    if (node != RM_NODE_CONTROL && node != RM_NODE_GPU)
        return false;
    return is_of_interest (rm_abi_escape (abi, rm_request_number (request)));
}

/* Controls that control_begin has something to do about for a tenant that is trusted. */
static bool is_control_of_interest (const struct rm_abi *abi, uint32_t number)
{
    const struct rm_control *control = rm_abi_control (abi, number);

    if (control == NULL)
        return true; /* it is counted */
    switch (control->kind) {
    case CONTROL_PLAIN:
    case CONTROL_POINTER:
    case CONTROL_DESCRIPTOR:
    case CONTROL_ANSWERED:
    case CONTROL_PREEMPT:
    case CONTROL_PREEMPTION:
    case CONTROL_SHARE_POLICY:
    case CONTROL_SCHEDULING:
        return false;
    default:
        return true;
    }
}

bool rm_shim_passes (const struct rm_abi *abi, uint32_t request, const void *head)
{
    const struct rm_escape *escape;

    if (rm_abi_uvm (abi, request) != NULL)
        return false;
    escape = rm_abi_escape (abi, rm_request_number (request));
    if (!is_of_interest (escape))
        return true;
    return escape->kind == ESCAPE_CONTROL && head != NULL && rm_abi_takes_size (escape, rm_request_size (request)) &&
           !is_control_of_interest (abi, control_command (head));
}

/* The row of a request on the control node or a GPU's, if the driver takes its size. */
static inline const struct rm_escape *sized_escape (const struct rm_abi *abi, enum rm_node node, uint32_t request)
{
    const struct rm_escape *escape = NULL;

    if (node == RM_NODE_CONTROL || node == RM_NODE_GPU)
        escape = rm_abi_escape (abi, rm_request_number (request));
    return escape != NULL && rm_abi_takes_size (escape, rm_request_size (request)) ? escape : NULL;
}

uint32_t rm_head_size (const struct rm_abi *abi, enum rm_node node, uint32_t request)
{
    if (node == RM_NODE_UVM) {
        const struct rm_uvm *row = rm_abi_uvm (abi, request);

        return row != NULL ? row->size : 0;
    }
    return sized_escape (abi, node, request) != NULL ? rm_request_size (request) : 0;
}

bool rm_is_answered (const struct rm_abi *abi, uint32_t request)
{
    const struct rm_escape *escape = sized_escape (abi, RM_NODE_CONTROL, request);

    return escape != NULL && escape->kind == ESCAPE_ANSWERED;
}

/* The driver takes no params longer than this (RMAPI_PARAM_COPY_MAX_PARAMS_SIZE). */
#define PARAMS_MAX (1u << 20)

static const struct rm_wanted nothing = { 0, 0 };

static struct rm_wanted params_of (const struct rm_abi *abi, const struct rm_escape *escape, const void *head)
{
    const NVOS54_PARAMETERS *control = head;
    const NVOS21_PARAMETERS *alloc = head; /* NVOS64 is the same so far */
    const struct rm_class *class;
    struct rm_wanted wanted = nothing;

    if (escape->kind == ESCAPE_CONTROL) {
        wanted.address = control->params;
        wanted.size = control->paramsSize;
    } else if (escape->kind == ESCAPE_ALLOC) {
        class = rm_abi_class (abi, alloc->hClass);
        wanted.address = alloc->pAllocParms;
        wanted.size = class != NULL ? class->size : 0;
    }
    return wanted.address == 0 || wanted.size == 0 || wanted.size > PARAMS_MAX ? nothing : wanted;
}

struct rm_wanted rm_params_wanted (const struct rm_abi *abi, enum rm_node node, uint32_t request, const void *head)
{
    const struct rm_escape *escape = sized_escape (abi, node, request);

    return escape != NULL && rm_request_size (request) != 0 && head != NULL ? params_of (abi, escape, head) : nothing;
}

/* The driver's own bound on a list of FB_GET_INFO. */
#define LIST_MAX 256u

struct rm_wanted rm_list_wanted (const struct rm_abi *abi, enum rm_node node, uint32_t request, const void *head,
                                 const void *params)
{
    const struct rm_escape *escape = sized_escape (abi, node, request);
    const NV2080_CTRL_FB_GET_INFO_PARAMS *info = params;
    const struct rm_control *control;
    struct rm_wanted wanted;
    uint32_t count;

    if (params == NULL || head == NULL || escape == NULL || escape->kind != ESCAPE_CONTROL)
        return nothing;
    control = rm_abi_control (abi, control_command (head));
    wanted = params_of (abi, escape, head);
    if (control == NULL || control->kind != CONTROL_FB_INFO_LIST || wanted.size < control->size)
        return nothing;
    count = info->fbInfoListSize;
    wanted.size = count > LIST_MAX ? 0 : count * (uint32_t) sizeof (NV2080_CTRL_FB_INFO);
    wanted.address = wanted.size != 0 ? info->fbInfoList : 0;
    return wanted.address != 0 ? wanted : nothing;
}

static enum rm_verdict unknown (struct rm *rm, enum rm_reason reason, uint32_t number)
{
    note (rm, reason, number);
    return RM_UNKNOWN;
}

enum rm_verdict rm_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t number = rm_request_number (call->request);
    const struct rm_escape *escape;
    enum call_kind kind;

    __builtin_memset (&call->own, 0, sizeof (call->own));
    call->own.gpu = GPU_UNKNOWN;
    if (call->node == RM_NODE_UVM) {
        kind = CALL_UVM;
    } else {
        if (call->node != RM_NODE_CONTROL && call->node != RM_NODE_GPU)
            return RM_PASS;
        escape = rm_abi_escape (rm->abi, number);
        if (escape == NULL)
            return unknown (rm, RM_UNKNOWN_ESCAPE, number);
        if (escape->kind == ESCAPE_FORBIDDEN)
            return unknown (rm, RM_FORBIDDEN_ESCAPE, number);
        if (!rm_abi_takes_size (escape, rm_request_size (call->request)))
            return unknown (rm, RM_BAD_SIZE, number);
        if (escape->kind == ESCAPE_ANSWERED && is_guard (rm))
            return RM_ANSWERED;
        kind = number == NV_ESC_RM_SHARE && is_guard (rm) ? CALL_SHARE : call_kind_of (escape);
        if (kind == CALL_NONE)
            return escape->kind == ESCAPE_DESCRIPTOR && is_guard (rm) ? RM_CONTINUE : RM_PASS;
        if (call->head == NULL || call->head_size < rm_request_size (call->request))
            return unknown (rm, RM_BAD_POINTER, number);
        call->head_size = rm_request_size (call->request);
    }
    if (rm->unconfirmed != 0 && kind != CALL_UVM)
        outcome_look (rm, call);
    call->own.decision = handlers[kind].begin (rm, call);
    if (call->own.decision == RM_CONTINUE || call->own.decision == RM_PERFORM)
        call->own.kind = kind;
    schedule_tell (rm);
    return call->own.decision;
}

void rm_end (struct rm *rm, struct rm_call *call, long result)
{
    if (call->own.kind == CALL_NONE || call->own.kind >= CALL_KINDS)
        return;
    handlers[call->own.kind].end (rm, call, result == 0);
    call->own.kind = CALL_NONE;
    schedule_tell (rm);
}

void rm_forget_call (struct rm *rm, struct rm_call *call)
{
    const struct rm_control *control = NULL;

    if (call->own.kind == CALL_NONE || call->own.kind >= CALL_KINDS)
        return;
    if (call->own.kind == CALL_CONTROL)
        control = rm_abi_control (rm->abi, call->own.number);
    if (call->own.decision == RM_PERFORM)
        handlers[call->own.kind].end (rm, call, false);
    else if (control != NULL && (control->kind == CONTROL_EXPORT_OBJECT || control->kind == CONTROL_EXPORT_OBJECTS))
        /* The memory may live on behind a descriptor: better charged too long than not at all. */
        share_export (rm, control, call);
    else if (call->own.kind == CALL_UVM && call->own.number == UVM_REGISTER_GPU)
        uvm_registered (rm, call->file, ((const UVM_REGISTER_GPU_PARAMS *) call->head)->gpu_uuid.uuid, true);
    else if (call->own.kind == CALL_ALLOC && is_guard (rm))
        outcome_expect (rm, call);
    call->own.kind = CALL_NONE;
    schedule_tell (rm);
}

static void drop_exports (struct rm *rm, struct file *file)
{
    while (file->exports != NULL) {
        struct export *export = file->exports;

        file->exports = export->next;
        memory_drop (rm, export->memory);
        pool_give (&rm->export_pool, export);
    }
}

void rm_drop_clients (struct rm *rm, uint64_t name)
{
    struct file *file = tracker_file (rm, name, false);

    while (file != NULL && file->clients != NULL)
        tracker_drop_client (rm, file->clients);
    schedule_tell (rm);
}

void rm_close_file (struct rm *rm, uint64_t name)
{
    struct file *file = tracker_file (rm, name, false);

    external_file_closed (rm, name);
    if (file == NULL)
        return;
    while (file->clients != NULL)
        tracker_drop_client (rm, file->clients);
    drop_exports (rm, file);
    uvm_file_closed (rm, file);
    table_remove (&rm->files, &file->link);
    rm->ended -= file->is_ended;
    pool_give (&rm->file_pool, file);
    schedule_tell (rm);
}

struct rm *rm_create (const struct rm_abi *abi, enum rm_posture posture, const struct rm_host *host, void *context)
{
    struct rm *rm = host->allocate (context, sizeof (*rm));

    if (rm == NULL)
        return NULL;
    rm->abi = abi;
    rm->host = host;
    rm->context = context;
    rm->posture = posture;
    pool_prepare (&rm->object_pool, POOL_OBJECTS, sizeof (struct object));
    pool_prepare (&rm->client_pool, POOL_CLIENTS, sizeof (struct client));
    pool_prepare (&rm->memory_pool, POOL_MEMORIES, sizeof (struct memory));
    pool_prepare (&rm->file_pool, POOL_FILES, sizeof (struct file));
    pool_prepare (&rm->export_pool, POOL_EXPORTS, sizeof (struct export));
    pool_prepare (&rm->external_pool, POOL_EXTERNALS, sizeof (struct external));
    for (int i = 0; i < RM_MAX_GPUS; i++)
        rm->gpu_of_instance[i] = GPU_UNKNOWN;
    return rm;
}

void rm_destroy (struct rm *rm)
{
    const struct rm_host *host;
    void *context;

    if (rm == NULL)
        return;
    host = rm->host;
    context = rm->context;
    uvm_release (rm);
    /* Objects need not be taken apart one by one: all that they hold is in these sums. */
    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++)
        memory_refund (rm, gpu, rm->bytes[gpu]);
    table_release (rm, &rm->objects);
    table_release (rm, &rm->files);
    pool_release (rm, &rm->object_pool);
    pool_release (rm, &rm->client_pool);
    pool_release (rm, &rm->memory_pool);
    pool_release (rm, &rm->file_pool);
    pool_release (rm, &rm->export_pool);
    pool_release (rm, &rm->external_pool);
    host->release (context, rm, sizeof (*rm));
}

uint64_t rm_reported (const struct rm *rm, uint64_t name, int gpu)
{
    const struct file *file = (const struct file *) table_find (&rm->files, name);

    return file != NULL && gpu >= 0 && gpu < RM_MAX_GPUS ? file->reported[gpu] : 0;
}

uint64_t rm_reported_falls (const struct rm *rm) { return rm->reported_falls; }

void rm_totals (const struct rm *rm, struct rm_totals *totals)
{
    totals->clients = rm->client_count;
    totals->objects = rm->objects.count;
    totals->memories = rm->memory_count;
    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++)
        totals->bytes[gpu] = rm->bytes[gpu];
}

const char *rm_reason_word (enum rm_reason reason)
{
    static const char words[RM_REASONS][20] = {
        "ok",
        "over-quota",
        "unknown-escape",
        "unknown-class",
        "unknown-control",
        "forbidden-escape",
        "forbidden-class",
        "forbidden-control",
        "scheduling-control",
        "bad-size",
        "bad-pointer",
        "too-many",
        "unreachable",
        "toctou-killed",
        "unresponsive",
        "foreign-process",
        "edge-late",
        "unknown-object",
        "no-memory",
        "unknown-outcome",
        "foreign-file",
    };

    return reason < RM_REASONS ? words[reason] : "unknown-reason";
}
