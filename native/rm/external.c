/*
 * Memory that UVM keeps. libcuda gives memory its addresses by MAP_EXTERNAL_ALLOCATION, for which UVM duplicates the
 * memory into a client of the kernel's own: a piece lives until its last handle is freed and its last mapping is gone
 * (uvm_map_external.c of the open kernel modules). A mapping ends with an unmap or whatever else is mapped there, with
 * its range's FREE, with its GPU's registration, or with the file.
 *
 * Mappings are kept in a tree by file, GPU and address (a treap: every allocation of CUDA makes one). Without memory
 * for a record the piece is given back with its last handle: too early, but no call fails.
 */
#include "state.h"
#include "uvm_ioctl.h"

/* Which range of addresses begins where, kept like a mapping: FREE of later drivers says no length. */
#define OF_RANGE UINT32_MAX

struct place {
    uint64_t file;
    uint32_t gpu; /* index into rm->uvm_gpus, or OF_RANGE */
    uint64_t start;
};

static bool is_of (const struct external *external, const struct place *place)
{
    return external->file == place->file && external->gpu == place->gpu;
}

static bool is_before (const struct external *external, const struct place *place)
{
    if (external->file != place->file)
        return external->file < place->file;
    if (external->gpu != place->gpu)
        return external->gpu < place->gpu;
    return external->start < place->start;
}

/* The first one of the same file and GPU that starts there or behind it. */
static struct external *first_from (const struct rm *rm, const struct place *place)
{
    struct external *found = NULL;

    for (struct external *at = rm->externals; at != NULL;) {
        bool is_lower = is_before (at, place);

        if (!is_lower)
            found = at;
        at = is_lower ? at->right : at->left;
    }
    return found != NULL && is_of (found, place) ? found : NULL;
}

/* The last one of the same file and GPU that starts before it. */
static struct external *last_before (const struct rm *rm, const struct place *place)
{
    struct external *found = NULL;

    for (struct external *at = rm->externals; at != NULL;) {
        bool is_lower = is_before (at, place);

        if (is_lower)
            found = at;
        at = is_lower ? at->right : at->left;
    }
    return found != NULL && is_of (found, place) ? found : NULL;
}

/* splitmix64: keys come in order, weights must not. */
static uint32_t weight (uint64_t serial)
{
    uint64_t mixed = serial * 0x9e3779b97f4a7c15u;

    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return (uint32_t) (mixed >> 32);
}

/* A record of a mapping, or (memory NULL) of a range. false: no memory. Nothing of the same kind lies there. */
static bool add (struct rm *rm, const struct place *place, uint64_t end, struct memory *memory)
{
    struct external *external = pool_take (rm, &rm->external_pool), **at = &rm->externals, *rest, **low, **high;

    if (external == NULL)
        return false;
    external->file = place->file;
    external->gpu = place->gpu;
    external->start = place->start;
    external->end = end;
    external->memory = memory;
    external->weight = weight (++rm->external_serial);
    if (memory != NULL)
        memory->references++;
    while (*at != NULL && (*at)->weight >= external->weight)
        at = is_before (*at, place) ? &(*at)->right : &(*at)->left;
    rest = *at;
    *at = external;
    for (low = &external->left, high = &external->right; rest != NULL;) {
        bool is_lower = is_before (rest, place);

        *(is_lower ? low : high) = rest;
        if (is_lower)
            low = &rest->right;
        else
            high = &rest->left;
        rest = is_lower ? rest->right : rest->left;
    }
    *low = *high = NULL;
    return true;
}

static void drop (struct rm *rm, struct external *external)
{
    const struct place place = { external->file, external->gpu, external->start };
    struct external **at = &rm->externals, *low = external->left, *high = external->right;

    while (*at != external)
        at = is_before (*at, &place) ? &(*at)->right : &(*at)->left;
    while (low != NULL && high != NULL) {
        bool is_low = low->weight >= high->weight;

        *at = is_low ? low : high;
        at = is_low ? &low->right : &high->left;
        if (is_low)
            low = low->right;
        else
            high = high->left;
    }
    *at = low != NULL ? low : high;
    memory_drop (rm, external->memory);
    pool_give (&rm->external_pool, external);
}

/* What is mapped from place->start to end goes; what reaches beyond stays there. false: the one in whose middle that is
 * stays as it was, for there is no memory for two. */
static bool cut (struct rm *rm, const struct place *place, uint64_t end)
{
    struct external *at = last_before (rm, place);

    if (end <= place->start)
        return false;
    if (at != NULL && at->end > end) {
        const struct place rest = { place->file, place->gpu, end };

        if (!add (rm, &rest, at->end, at->memory))
            return false;
    }
    if (at != NULL && at->end > place->start)
        at->end = place->start;
    while ((at = first_from (rm, place)) != NULL && at->start < end) {
        if (at->end > end) {
            at->start = end; /* still before the next one */
            break;
        }
        drop (rm, at);
    }
    return true;
}

/* The index of a GPU by its UUID; OF_RANGE: none, and (is_new) no room for it. */
static uint32_t gpu_of (struct rm *rm, const uint8_t *uuid, bool is_new)
{
    uint32_t gpu = 0;

    while (gpu < rm->uvm_gpu_count && __builtin_memcmp (rm->uvm_gpus[gpu], uuid, sizeof (rm->uvm_gpus[gpu])) != 0)
        gpu++;
    if (gpu < rm->uvm_gpu_count)
        return gpu;
    if (!is_new || gpu == RM_MAX_GPUS)
        return OF_RANGE;
    __builtin_memcpy (rm->uvm_gpus[gpu], uuid, sizeof (rm->uvm_gpus[gpu]));
    rm->uvm_gpu_count++;
    return gpu;
}

static void cut_of_gpu (struct rm *rm, const struct rm_call *call, const uint8_t *uuid, uint64_t start, uint64_t end)
{
    const struct place place = { call->file, gpu_of (rm, uuid, false), start };

    if (place.gpu != OF_RANGE)
        cut (rm, &place, end);
}

static void free_range (struct rm *rm, const struct rm_call *call, uint64_t start, uint64_t end)
{
    struct place place = { call->file, OF_RANGE, start };

    if (rm_abi_has_ranges (rm->abi)) {
        struct external *range = first_from (rm, &place);

        if (range == NULL || range->start != start)
            return;
        end = range->end;
        drop (rm, range);
    }
    for (place.gpu = 0; place.gpu < rm->uvm_gpu_count; place.gpu++)
        cut (rm, &place, end);
}

/* Can the FREE that ends this mapping be told? */
static bool is_in_range (const struct rm *rm, uint64_t file, uint64_t start, uint64_t end)
{
    const struct place place = { file, OF_RANGE, start + 1 };
    const struct external *range = rm_abi_has_ranges (rm->abi) ? last_before (rm, &place) : NULL;

    return !rm_abi_has_ranges (rm->abi) || (range != NULL && range->end >= end);
}

static struct memory *taken (const struct rm_call *call) { return (struct memory *) (uintptr_t) call->own.serial; }

/* What follows the array of GPUs, whose length is the branch's. */
static const uvm_map_external_allocation_end *map_end (const struct rm_call *call)
{
    return (const void *) ((const uint8_t *) call->head + call->head_size - sizeof (uvm_map_external_allocation_end));
}

static void mapped (struct rm *rm, const struct rm_call *call, uint64_t start, uint64_t end)
{
    const uvm_map_external_allocation_begin *head = call->head;
    size_t most = (call->head_size - sizeof (*head) - sizeof (*map_end (call))) / sizeof (head->perGpuAttributes[0]);
    uint64_t count = map_end (call)->gpuAttributesCount;
    bool is_kept = taken (call) != NULL && is_in_range (rm, call->file, start, end);

    for (size_t i = 0; i < most && i < count; i++) {
        const struct place place = { call->file, gpu_of (rm, head->perGpuAttributes[i].gpuUuid.uuid, is_kept), start };

        if (place.gpu != OF_RANGE && cut (rm, &place, end) && is_kept)
            add (rm, &place, end, taken (call));
    }
}

/* The memory is held before UVM takes its duplicate: another thread may free the handle meanwhile. */
void external_begin (struct rm *rm, struct rm_call *call)
{
    struct object *source;

    if (call->own.number != UVM_MAP_EXTERNAL_ALLOCATION)
        return;
    source = tracker_find (rm, map_end (call)->hClient, map_end (call)->hMemory);
    if (source == NULL || source->memory == NULL)
        return;
    source->memory->references++;
    call->own.serial = (uint64_t) (uintptr_t) source->memory;
}

/* A call that failed may have ended what lay there: it stays charged until its range is freed, at the latest. */
void external_end (struct rm *rm, struct rm_call *call, bool is_good)
{
    const UVM_UNMAP_EXTERNAL_PARAMS *head = call->head; /* all but UNREGISTER_* begin like it */
    uint64_t start = head->base, end = start + head->length;
    const struct place place = { call->file, OF_RANGE, start };

    switch (is_good ? call->own.number : 0) {
    case UVM_UNREGISTER_GPU_VASPACE:
    case UVM_UNREGISTER_GPU:
        cut_of_gpu (rm, call, ((const UVM_UNREGISTER_GPU_PARAMS *) call->head)->gpu_uuid.uuid, 0, UINT64_MAX);
        break;
    case UVM_FREE:
        free_range (rm, call, start, end);
        break;
    case UVM_CREATE_EXTERNAL_RANGE:
        if (end > start && cut (rm, &place, end))
            add (rm, &place, end, NULL);
        break;
    case UVM_MAP_EXTERNAL_ALLOCATION:
        mapped (rm, call, start, end);
        break;
    case UVM_UNMAP_EXTERNAL:
    case UVM_MAP_EXTERNAL_SPARSE:
        cut_of_gpu (rm, call, head->gpuUuid.uuid, start, end);
        break;
    default:
        break;
    }
    memory_drop (rm, taken (call));
}

void external_file_closed (struct rm *rm, uint64_t file)
{
    struct place place = { file, OF_RANGE, 0 };

    cut (rm, &place, UINT64_MAX);
    for (place.gpu = 0; place.gpu < rm->uvm_gpu_count; place.gpu++)
        cut (rm, &place, UINT64_MAX);
}
