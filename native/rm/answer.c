/* Questions about memory and processes: the driver answers, then the share's numbers take the place of the GPU's. */
#include "state.h"

/* NV2080_CTRL_FB_INFO_INDEX_*: what a number tells, in KiB. */
enum meaning { OTHER, TOTAL, AVAILABLE, NOTHING };

static enum meaning meaning_of (uint32_t index)
{
    switch (index) {
    case 0x07: /* RAM_SIZE */
    case 0x08: /* TOTAL_RAM_SIZE */
    case 0x09: /* HEAP_SIZE */
    case 0x20: /* USABLE_RAM_SIZE */
        return TOTAL;
    case 0x12: /* LARGEST_FREE_REGION_SIZE */
    case 0x16: /* HEAP_FREE */
        return AVAILABLE;
    case 0x10: /* FB_TAX_SIZE */
        return NOTHING;
    default:
        return OTHER;
    }
}

/* Never more than the driver said: the GPU may be smaller than the share, or full of others' memory. */
static uint64_t total_of (const struct rm_numbers *numbers, uint64_t said)
{
    return numbers->limit < said ? numbers->limit : said;
}

static uint64_t free_of (const struct rm_numbers *numbers, uint64_t said)
{
    uint64_t left = numbers->limit > numbers->used ? numbers->limit - numbers->used : 0;

    return left < said ? left : said;
}

/* Pairs of index and value. */
static void answer_pairs (const struct rm_numbers *numbers, uint8_t *pairs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t said = (uint64_t) get32 (pairs, 8 * i + 4) << 10;

        switch (meaning_of (get32 (pairs, 8 * i))) {
        case TOTAL:
            set32 (pairs, 8 * i + 4, (uint32_t) (total_of (numbers, said) >> 10));
            break;
        case AVAILABLE:
            set32 (pairs, 8 * i + 4, (uint32_t) (free_of (numbers, said) >> 10));
            break;
        case NOTHING:
            set32 (pairs, 8 * i + 4, 0);
            break;
        case OTHER:
            break;
        }
    }
}

static uint32_t smaller (uint32_t a, uint32_t b) { return a < b ? a : b; }

/* 0 idType, 4 id, 8 count, 12 pids */
static void keep_own_pids (struct rm *rm, uint8_t *params, uint32_t size)
{
    uint32_t count = smaller (get32 (params, 8), (size - 12) / 4), kept = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t pid = get32 (params, 12 + 4 * i);

        if (rm->host->is_own_process (rm->context, pid))
            set32 (params, 12 + 4 * kept++, pid);
    }
    for (uint32_t i = kept; i < count; i++)
        set32 (params, 12 + 4 * i, 0);
    set32 (params, 8, kept);
}

/* 0 count, then from 8 on 72 bytes each: 0 pid, 4 index, 8 result, 16 data (48 bytes), 64 MIG instances */
static void hide_other_processes (struct rm *rm, uint8_t *params, uint32_t size)
{
    uint32_t count = smaller (get32 (params, 0), (size - 8) / 72);

    for (uint32_t i = 0; i < count; i++)
        if (!rm->host->is_own_process (rm->context, get32 (params, 8 + 72 * i)))
            __builtin_memset (params + 8 + 72 * i + 16, 0, 48);
}

bool rm_tells_numbers (const struct rm *rm, const struct rm_call *call)
{
    const struct rm_control *control = call->own.kind == CALL_CONTROL ? rm_abi_control (rm->abi, call->own.number) : NULL;

    return call->own.kind == CALL_HEAP ||
           (control != NULL && (control->kind == CONTROL_FB_INFO || control->kind == CONTROL_FB_INFO_LIST));
}

void answer_control (struct rm *rm, const struct rm_control *control, struct rm_call *call)
{
    int gpu = tracker_gpu_of (rm, get32 (call->head, 0), get32 (call->head, 4));
    uint32_t size = call->params_size; /* as control_begin found it: another thread may change what head says */
    struct rm_numbers numbers;

    if (control->kind == CONTROL_PIDS) {
        keep_own_pids (rm, call->params, size);
        return;
    }
    if (control->kind == CONTROL_PID_INFO) {
        hide_other_processes (rm, call->params, size);
        return;
    }
    if (gpu < 0)
        return;
    numbers = rm->host->numbers (rm->context, gpu);
    if (numbers.limit == 0)
        return;
    if (control->kind == CONTROL_FB_INFO && size >= 4)
        answer_pairs (&numbers, (uint8_t *) call->params + 4, smaller (get32 (call->params, 0), (size - 4) / 8));
    else if (control->kind == CONTROL_FB_INFO_LIST && call->list != NULL)
        answer_pairs (&numbers, call->list, smaller (get32 (call->params, 0), call->list_size / 8));
}

/* NVOS32: 24 total, 32 free; of INFO also 48 offset and 56 size of the largest free block. Bytes. */
void answer_heap (struct rm *rm, int gpu, void *head, bool is_info)
{
    struct rm_numbers numbers;

    if (gpu < 0)
        return;
    numbers = rm->host->numbers (rm->context, gpu);
    if (numbers.limit == 0)
        return;
    set64 (head, 24, total_of (&numbers, get64 (head, 24)));
    set64 (head, 32, free_of (&numbers, get64 (head, 32)));
    if (is_info)
        set64 (head, 56, free_of (&numbers, get64 (head, 56)));
}
