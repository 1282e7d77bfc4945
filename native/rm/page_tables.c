/*
 * The driver reserves page tables in video memory for the length of a mapping (RM_MAP_MEMORY_DMA) and of a range (NV50_MEMORY_VIRTUAL, as which
 * VID_HEAP_CONTROL makes one too) before it looks at bounds: 1/512 of it, as for pages of 4 KiB (serverInterMap_Prologue, virtmemConstruct_IMPL,
 * gvaspaceReserveMempool_IMPL). They are in a pool of the whole GPU, which each call fills up to what it needs, and which shrinks at the next end of
 * any page table: a mapping of 1 TiB, refused by the driver, took 2 GiB of an H100 (580.159.04).
 *
 * A range that is neither LAZY, EXTERNALLY_MANAGED nor SPARSE keeps tables for all of it (gvaspaceAlloc_IMPL); so does its duplicate
 * (_virtmemCopyConstruct). NV01_MEMORY_VIRTUAL (0x70) has none before something is mapped.
 */
#include "page_tables.h"

/* Of a range, and of a mapping of what is no piece in the ledger: system memory, registers, objects. 128 MiB of tables. The longest seen were 4 GiB and
 * 256 MiB: Vulkan's. */
#define LENGTH_MAX ((uint64_t) 64 << 30)

static uint64_t tables_of (uint64_t bytes) { return (bytes / 512 + RM_PAGE - 1) & ~(RM_PAGE - 1); }

bool tables_may_map (const struct rm *rm, const NVOS46_PARAMETERS *head)
{
    const struct object *object = tracker_find (rm, head->hClient, head->hMemory);
    uint64_t bytes = object != NULL && object->memory != NULL ? object->memory->bytes : 0;

    if (bytes == 0)
        return head->length <= LENGTH_MAX;
    return head->offset <= bytes && head->length <= bytes - head->offset;
}

bool tables_reserve (struct rm *rm, struct rm_call *call, uint32_t flags, uint64_t bytes)
{
    /* The driver clears LAZY there (stdmemValidateParams, from 560 on). */
    if ((flags & NVOS32_ALLOC_FLAGS_SPARSE) != 0)
        flags &= ~NVOS32_ALLOC_FLAGS_LAZY;
    if ((flags & (NVOS32_ALLOC_FLAGS_LAZY | NVOS32_ALLOC_FLAGS_EXTERNALLY_MANAGED)) != 0)
        return true;
    if (bytes > LENGTH_MAX)
        return false;
    if ((flags & NVOS32_ALLOC_FLAGS_SPARSE) != 0)
        return true;
    if (!memory_reserve (rm, call->own.gpu, tables_of (bytes)))
        return false;
    call->own.reserved = call->own.gpu >= 0 ? tables_of (bytes) : 0;
    return true;
}

/* The driver rounds up to pages. */
void tables_made (struct rm *rm, const struct rm_call *call, struct object *object, uint64_t bytes)
{
    uint64_t taken = call->own.reserved, more = 0;

    if (object == NULL || taken == 0)
        return;
    if (bytes <= BYTES_MAX && tables_of (bytes) > taken)
        memory_charge (rm, call->own.gpu, tables_of (bytes) - taken, &more);
    object->context_bytes = taken + more;
    object->context_gpu = call->own.gpu;
}

bool tables_duplicate (struct rm *rm, struct rm_call *call, const struct object *source)
{
    if (source == NULL || source->context_bytes == 0 || source->kind == CLASS_GROUP || source->kind == CLASS_CHANNEL)
        return true;
    if (!memory_reserve (rm, source->context_gpu, source->context_bytes))
        return false;
    call->own.gpu = source->context_gpu;
    call->own.reserved = source->context_bytes;
    return true;
}
