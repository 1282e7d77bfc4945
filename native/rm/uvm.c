/* Managed memory: shared mappings of the UVM node, and which GPUs a tenant has registered there. */
#include "rm/managed.h"
#include "state.h"
#include "uvm_ioctl.h"

/* Ranges are kept sorted and apart; a process has few of them. Index of the first that ends behind `address`. */
static size_t first_behind (const struct rm *rm, uint64_t address)
{
    size_t low = 0, high = rm->range_count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (rm->ranges[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool make_room (struct rm *rm, size_t more)
{
    size_t capacity = rm->range_capacity == 0 ? 32 : rm->range_capacity * 2;
    struct range *ranges;

    if (rm->range_count + more <= rm->range_capacity)
        return true;
    ranges = rm->host->allocate (rm->context, capacity * sizeof (*ranges));
    if (ranges == NULL)
        return false;
    if (rm->ranges != NULL) {
        __builtin_memcpy (ranges, rm->ranges, rm->range_count * sizeof (*ranges));
        rm->host->release (rm->context, rm->ranges, rm->range_capacity * sizeof (*ranges));
    }
    rm->ranges = ranges;
    rm->range_capacity = capacity;
    return true;
}

static void insert (struct rm *rm, size_t at, const struct range *range)
{
    __builtin_memmove (rm->ranges + at + 1, rm->ranges + at, (rm->range_count - at) * sizeof (*range));
    rm->ranges[at] = *range;
    rm->range_count++;
}

static void delete (struct rm *rm, size_t at)
{
    rm->range_count--;
    __builtin_memmove (rm->ranges + at, rm->ranges + at + 1, (rm->range_count - at) * sizeof (*rm->ranges));
}

/* keep: bytes that each GPU is to stay charged for; NULL: none. */
static void refund_each (struct rm *rm, uint32_t gpus, uint64_t bytes, uint64_t *keep)
{
    for (int gpu = 0; gpus != 0; gpu++, gpus >>= 1) {
        uint64_t kept = keep == NULL ? 0 : keep[gpu] < bytes ? keep[gpu] : bytes;

        if ((gpus & 1) == 0)
            continue;
        if (keep != NULL)
            keep[gpu] -= kept;
        memory_refund (rm, gpu, bytes - kept);
    }
}

static uint32_t registered (const struct rm *rm)
{
    uint32_t gpus = 0;

    for (size_t i = 0; i < rm->files.capacity; i++)
        for (const struct link *at = rm->files.buckets[i]; at != NULL; at = at->next)
            gpus |= ((const struct file *) at)->gpus;
    return gpus;
}

/* Bytes of a GPU that are charged in [address, end). */
static uint64_t charged_in (const struct rm *rm, int gpu, uint64_t address, uint64_t end)
{
    uint64_t sum = 0;

    for (size_t at = first_behind (rm, address); at < rm->range_count && rm->ranges[at].start < end; at++) {
        const struct range *range = &rm->ranges[at];

        if (range->gpus & 1u << gpu)
            sum += (range->end < end ? range->end : end) - (range->start > address ? range->start : address);
    }
    return sum;
}

bool rm_mapping_begin (struct rm *rm, int gpu, uint64_t address, uint64_t length, struct rm_mapping *mapping)
{
    uint32_t gpus;

    __builtin_memset (mapping, 0, sizeof (*mapping));
    mapping->gpu = gpu;
    mapping->length = length;
    if (length == 0)
        return true;
    /* One record for it, and one more when it lies in the middle of another. */
    if (address + length < address || length > BYTES_MAX || gpu >= RM_MAX_GPUS || !make_room (rm, 2))
        return false;
    gpus = gpu < 0 ? registered (rm) : 1u << gpu;
    for (int at = 0; at < RM_MAX_GPUS; at++) {
        uint64_t more;

        if ((gpus & 1u << at) == 0)
            continue;
        more = length - charged_in (rm, at, address, address + length);
        if (!memory_reserve (rm, at, more)) {
            rm_mapping_refused (rm, mapping);
            return false;
        }
        mapping->reserved[at] = more;
    }
    return true;
}

void rm_mapping_refused (struct rm *rm, const struct rm_mapping *mapping)
{
    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++)
        memory_refund (rm, gpu, mapping->reserved[gpu]);
}

static void cut (struct rm *rm, uint64_t address, uint64_t length, uint64_t *keep);

void rm_mapping_made (struct rm *rm, const struct rm_mapping *mapping, uint64_t address)
{
    uint64_t length = mapping->length, keep[RM_MAX_GPUS] = { 0 }, had[RM_MAX_GPUS];
    struct range range = { address, address + length, 0, mapping->gpu < 0 };
    uint32_t gpus = mapping->gpu < 0 ? registered (rm) : 1u << mapping->gpu;

    if (length == 0)
        return;
    /* Without memory for the record the charge stays until the tenant is gone: too much rather than too little. */
    if (!make_room (rm, 2)) {
        cut (rm, address, length, NULL);
        return;
    }
    /* Since it began, others may have been unmapped there, and GPUs registered. */
    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++) {
        had[gpu] = mapping->reserved[gpu];
        if (gpus & 1u << gpu)
            had[gpu] += keep[gpu] = charged_in (rm, gpu, address, address + length);
    }
    cut (rm, address, length, keep);
    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++) {
        uint64_t wanted = gpus & 1u << gpu ? length : 0, more = 0;

        if (had[gpu] < wanted)
            memory_charge (rm, gpu, wanted - had[gpu], &more);
        if (had[gpu] + more >= wanted) {
            memory_refund (rm, gpu, had[gpu] + more - wanted);
            range.gpus |= gpus & 1u << gpu;
        } else {
            memory_refund (rm, gpu, had[gpu]);
        }
    }
    insert (rm, first_behind (rm, address), &range);
}

bool rm_map_managed (struct rm *rm, int gpu, uint64_t address, uint64_t length)
{
    struct rm_mapping mapping;

    if (!rm_mapping_begin (rm, gpu, address, length, &mapping))
        return false;
    rm_mapping_made (rm, &mapping, address);
    return true;
}

static void cut (struct rm *rm, uint64_t address, uint64_t length, uint64_t *keep)
{
    uint64_t end = address + length < address ? UINT64_MAX : address + length;
    size_t at = first_behind (rm, address);

    while (at < rm->range_count && rm->ranges[at].start < end) {
        struct range *range = &rm->ranges[at];

        if (range->start >= address && range->end <= end) {
            refund_each (rm, range->gpus, range->end - range->start, keep);
            delete (rm, at);
        } else if (range->start < address && range->end > end) {
            struct range rest = *range;

            /* A hole in the middle needs another record. Without memory for it the charge stays as it is. */
            if (!make_room (rm, 1))
                return;
            refund_each (rm, rest.gpus, end - address, keep);
            rm->ranges[at].end = address;
            rest.start = end;
            insert (rm, at + 1, &rest);
            return;
        } else if (range->start < address) {
            refund_each (rm, range->gpus, range->end - address, keep);
            range->end = address;
            at++;
        } else {
            refund_each (rm, range->gpus, end - range->start, keep);
            range->start = end;
            return;
        }
    }
}

void rm_unmap (struct rm *rm, uint64_t address, uint64_t length) { cut (rm, address, length, NULL); }

uint64_t rm_managed_from (const struct rm *rm, uint64_t address, uint64_t length)
{
    uint64_t end = address + length < address ? UINT64_MAX : address + length;
    size_t at = first_behind (rm, address);

    if (at == rm->range_count || rm->ranges[at].start >= end)
        return UINT64_MAX;
    return rm->ranges[at].start > address ? rm->ranges[at].start : address;
}

bool rm_has_managed (const struct rm *rm) { return rm->range_count > 0; }

/* Mappings for every registered GPU follow what is registered: the first file to name a GPU and the last to drop it. */
static void follow (struct rm *rm, uint32_t before)
{
    uint32_t now = registered (rm);

    for (int gpu = 0; gpu < RM_MAX_GPUS; gpu++) {
        uint32_t bit = 1u << gpu;

        if (((before ^ now) & bit) == 0)
            continue;
        for (size_t i = 0; i < rm->range_count; i++) {
            struct range *range = &rm->ranges[i];
            uint64_t charged, length = range->end - range->start;

            if (!range->is_for_every)
                continue;
            if ((now & bit) != 0 && (range->gpus & bit) == 0) {
                memory_charge (rm, gpu, length, &charged);
                if (charged != 0)
                    range->gpus |= bit;
            } else if ((now & bit) == 0 && (range->gpus & bit) != 0) {
                range->gpus &= ~bit;
                memory_refund (rm, gpu, length);
            }
        }
    }
}

void uvm_registered (struct rm *rm, uint64_t name, const uint8_t *uuid, bool on)
{
    int gpu = rm->host->find_gpu (rm->context, uuid);
    uint32_t before = registered (rm);
    struct file *file;

    if (gpu < 0 || gpu >= RM_MAX_GPUS)
        return;
    file = tracker_file (rm, name, on);
    if (file == NULL)
        return;
    file->gpus = on ? file->gpus | 1u << gpu : file->gpus & ~(1u << gpu);
    follow (rm, before);
}

void uvm_file_closed (struct rm *rm, struct file *file)
{
    uint32_t before = registered (rm);

    if (file->gpus == 0)
        return;
    file->gpus = 0;
    follow (rm, before);
}

void uvm_release (struct rm *rm)
{
    while (rm->range_count > 0) {
        struct range *last = &rm->ranges[rm->range_count - 1];

        refund_each (rm, last->gpus, last->end - last->start, NULL);
        rm->range_count--;
    }
    if (rm->ranges != NULL)
        rm->host->release (rm->context, rm->ranges, rm->range_capacity * sizeof (*rm->ranges));
    rm->ranges = NULL;
    rm->range_capacity = 0;
}

enum rm_verdict uvm_begin (struct rm *rm, struct rm_call *call)
{
    const struct rm_uvm *row = rm_abi_uvm (rm->abi, call->request);
    uint32_t size = row != NULL ? row->size : 0;

    /* The guard queries the driver for what UVM retains and does not follow mappings. */
    if (is_guard (rm) && call->request != UVM_REGISTER_GPU && call->request != UVM_UNREGISTER_GPU)
        size = 0;
    if (size == 0) {
        if (rm_abi_knows_uvm (rm->abi, call->request))
            return RM_PASS;
        note (rm, RM_UNKNOWN_ESCAPE, call->request);
        return RM_UNKNOWN;
    }
    if (call->head == NULL || call->head_size < size) {
        note (rm, RM_BAD_POINTER, call->request);
        return RM_UNKNOWN;
    }
    call->own.number = call->request;
    call->head_size = size;
    if (is_full (rm) && call->request == UVM_REGISTER_GPU) {
        set32 (call->head, row->status, NV_ERR_INSUFFICIENT_RESOURCES);
        note (rm, RM_TOO_MANY, call->request);
        return RM_REFUSED;
    }
    if (!is_guard (rm))
        external_begin (rm, call);
    return RM_CONTINUE; /* it names a descriptor of the caller, and the driver takes hold of the caller's memory */
}

void uvm_end (struct rm *rm, struct rm_call *call, bool done)
{
    const struct rm_uvm *row = rm_abi_uvm (rm->abi, call->own.number);
    bool on = call->own.number == UVM_REGISTER_GPU, is_good = done && get32 (call->head, row->status) == 0;

    if (is_good && (on || call->own.number == UVM_UNREGISTER_GPU))
        uvm_registered (rm, call->file, ((const UVM_UNREGISTER_GPU_PARAMS *) call->head)->gpu_uuid.uuid, on);
    if (!is_guard (rm))
        external_end (rm, call, is_good);
}
