/* Managed memory: shared mappings of the UVM node, and which GPUs a tenant has registered there. */
#include "state.h"

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

static bool make_room (struct rm *rm)
{
    size_t capacity = rm->range_capacity == 0 ? 32 : rm->range_capacity * 2;
    struct range *ranges;

    if (rm->range_count < rm->range_capacity)
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

static void refund_each (struct rm *rm, uint32_t gpus, uint64_t bytes)
{
    for (int gpu = 0; gpus != 0; gpu++, gpus >>= 1)
        if (gpus & 1)
            memory_refund (rm, gpu, bytes);
}

static uint32_t registered (const struct rm *rm)
{
    uint32_t gpus = 0;

    for (size_t i = 0; i < rm->files.capacity; i++)
        for (const struct link *at = rm->files.buckets[i]; at != NULL; at = at->next)
            gpus |= ((const struct file *) at)->gpus;
    return gpus;
}

bool rm_map_managed (struct rm *rm, int gpu, uint64_t address, uint64_t length)
{
    struct range range = {address, address + length, 0, gpu < 0};
    uint32_t gpus;

    if (length == 0)
        return true;
    if (range.end < address || length > BYTES_MAX || gpu >= RM_MAX_GPUS || !make_room (rm))
        return false;
    gpus = gpu < 0 ? registered (rm) : 1u << gpu;
    for (int at = 0; at < RM_MAX_GPUS; at++) {
        if ((gpus & 1u << at) == 0)
            continue;
        if (!memory_reserve (rm, at, length)) {
            refund_each (rm, range.gpus, length);
            return false;
        }
        range.gpus |= 1u << at;
    }
    /* What was mapped there before is gone: a mapping at a fixed address takes the place of others. */
    rm_unmap (rm, address, length);
    if (!make_room (rm)) {
        refund_each (rm, range.gpus, length);
        return false;
    }
    insert (rm, first_behind (rm, address), &range);
    return true;
}

void rm_unmap (struct rm *rm, uint64_t address, uint64_t length)
{
    uint64_t end = address + length < address ? UINT64_MAX : address + length;
    size_t at = first_behind (rm, address);

    while (at < rm->range_count && rm->ranges[at].start < end) {
        struct range *range = &rm->ranges[at];

        if (range->start >= address && range->end <= end) {
            refund_each (rm, range->gpus, range->end - range->start);
            delete (rm, at);
        } else if (range->start < address && range->end > end) {
            struct range rest = *range;

            /* A hole in the middle needs another record. Without memory for it the charge stays as it is. */
            if (!make_room (rm))
                return;
            refund_each (rm, rest.gpus, end - address);
            rm->ranges[at].end = address;
            rest.start = end;
            insert (rm, at + 1, &rest);
            return;
        } else if (range->start < address) {
            refund_each (rm, range->gpus, range->end - address);
            range->end = address;
            at++;
        } else {
            refund_each (rm, range->gpus, end - range->start);
            range->start = end;
            return;
        }
    }
}

bool rm_has_managed (const struct rm *rm)
{
    return rm->range_count > 0;
}

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

        refund_each (rm, last->gpus, last->end - last->start);
        rm->range_count--;
    }
    if (rm->ranges != NULL)
        rm->host->release (rm->context, rm->ranges, rm->range_capacity * sizeof (*rm->ranges));
    rm->ranges = NULL;
    rm->range_capacity = 0;
}

enum rm_verdict uvm_begin (struct rm *rm, struct rm_call *call)
{
    uint32_t size = rm_head_size (rm->abi, RM_NODE_UVM, call->request);

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
    return RM_CONTINUE; /* it names a descriptor of the caller, and the driver takes hold of the caller's memory */
}

void uvm_end (struct rm *rm, struct rm_call *call, bool done)
{
    bool on = call->own.number == UVM_REGISTER_GPU;

    if (done && get32 (call->head, on ? UVM_REGISTER_GPU_STATUS : UVM_UNREGISTER_GPU_STATUS) == 0)
        uvm_registered (rm, call->file, call->head, on);
}
