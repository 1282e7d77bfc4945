/* Questions about memory and processes: the driver answers, then the share's numbers take the place of the GPU's. */
#include "nv_params.h"
#include "state.h"

/* What an entry of FB_GET_INFO is about. */
enum meaning { OTHER, TOTAL, AVAILABLE, NOTHING };

static enum meaning meaning_of (uint32_t index)
{
    switch (index) {
    case NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE:
    case NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE:
    case NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE:
    case NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE:
        return TOTAL;
    case NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_SIZE_KB:
    case NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE:
        return AVAILABLE;
    case NV2080_CTRL_FB_INFO_INDEX_FB_TAX_SIZE_KB:
        return NOTHING;
    default:
        return OTHER;
    }
}

/* Never more than the driver said: the GPU may be smaller than the share, or full of others' memory. */
static uint64_t total_of (const struct rm_numbers *numbers, uint64_t said) { return numbers->limit < said ? numbers->limit : said; }

static uint64_t free_of (const struct rm_numbers *numbers, uint64_t said)
{
    uint64_t left = numbers->limit > numbers->used ? numbers->limit - numbers->used : 0;

    return left < said ? left : said;
}

static void answer_info (const struct rm_numbers *numbers, NV2080_CTRL_FB_INFO *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t said = (uint64_t) list[i].data << 10;

        switch (meaning_of (list[i].index)) {
        case TOTAL:
            list[i].data = (uint32_t) (total_of (numbers, said) >> 10);
            break;
        case AVAILABLE:
            list[i].data = (uint32_t) (free_of (numbers, said) >> 10);
            break;
        case NOTHING:
            list[i].data = 0;
            break;
        case OTHER:
            break;
        }
    }
}

static uint32_t at_most (uint32_t count, uint32_t limit) { return count < limit ? count : limit; }

/* Elements of an array that begins at `at`: as many as are said, and as there are in params of `size` bytes. */
static uint32_t count_in (uint32_t said, uint32_t size, size_t at, size_t element)
{
    return at_most (said, (uint32_t) ((size - at) / element));
}

/* The elements that an array was declared with: a caller's params may be longer than the struct. */
#define ELEMENTS(array) ((uint32_t) (sizeof (array) / sizeof ((array)[0])))

static void keep_own_pids (struct rm *rm, NV2080_CTRL_GPU_GET_PIDS_PARAMS *params, uint32_t size)
{
    uint32_t count = count_in (at_most (params->pidTblCount, ELEMENTS (params->pidTbl)), size,
                               offsetof (NV2080_CTRL_GPU_GET_PIDS_PARAMS, pidTbl), sizeof (params->pidTbl[0]));
    uint32_t kept = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t pid = rm->host->shown_pid (rm->context, params->pidTbl[i]);

        if (pid != 0)
            params->pidTbl[kept++] = pid;
    }
    for (uint32_t i = kept; i < count; i++)
        params->pidTbl[i] = 0;
    params->pidTblCount = kept;
}

/* What the driver is asked about in place of a process that is none of the tenant's: no process has such a number
 * (PID_MAX_LIMIT is 2^22), and the caller's own can be told from it. */
#define NO_PROCESS 0x80000000u

static uint32_t infos_in (const NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *params, uint32_t size)
{
    return count_in (at_most (params->pidInfoListCount, ELEMENTS (params->pidInfoList)), size,
                     offsetof (NV2080_CTRL_GPU_GET_PID_INFO_PARAMS, pidInfoList), sizeof (params->pidInfoList[0]));
}

void answer_ask_driver_pids (struct rm *rm, void *params, uint32_t size)
{
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *list = params;

    for (uint32_t i = 0, count = infos_in (list, size); rm->host->driver_pid != NULL && i < count; i++) {
        uint32_t pid = list->pidInfoList[i].pid, other = rm->host->driver_pid (rm->context, pid);

        list->pidInfoList[i].pid = other != 0 ? other : pid | NO_PROCESS;
    }
}

void answer_show_pids (struct rm *rm, void *params, uint32_t size)
{
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *list = params;

    for (uint32_t i = 0, count = infos_in (list, size); rm->host->driver_pid != NULL && i < count; i++) {
        uint32_t pid = list->pidInfoList[i].pid;

        list->pidInfoList[i].pid = pid & NO_PROCESS ? pid & ~NO_PROCESS : rm->host->shown_pid (rm->context, pid);
    }
}

static void hide_other_processes (struct rm *rm, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *params, uint32_t size)
{
    for (uint32_t i = 0, count = infos_in (params, size); i < count; i++) {
        NV2080_CTRL_GPU_PID_INFO *info = &params->pidInfoList[i];

        if (rm->host->shown_pid (rm->context, info->pid) == 0)
            __builtin_memset (&info->data, 0, sizeof (info->data));
    }
}

bool rm_tells_numbers (const struct rm *rm, const struct rm_call *call)
{
    const struct rm_control *control = call->own.kind == CALL_CONTROL ? rm_abi_control (rm->abi, call->own.number) : NULL;

    return call->own.kind == CALL_HEAP ||
           (control != NULL && (control->kind == CONTROL_FB_INFO || control->kind == CONTROL_FB_INFO_LIST));
}

void answer_control (struct rm *rm, const struct rm_control *control, struct rm_call *call)
{
    const NVOS54_PARAMETERS *head = call->head;
    NV2080_CTRL_FB_GET_INFO_V2_PARAMS *info = call->params; /* FB_GET_INFO begins with the same number */
    int gpu = tracker_gpu_of (rm, head->hClient, head->hObject);
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
    if (control->kind == CONTROL_FB_INFO && size >= sizeof (*info))
        answer_info (&numbers, info->fbInfoList,
                     count_in (info->fbInfoListSize, size, sizeof (*info), sizeof (info->fbInfoList[0])));
    else if (control->kind == CONTROL_FB_INFO_LIST && call->list != NULL)
        answer_info (&numbers, call->list, count_in (info->fbInfoListSize, call->list_size, 0, sizeof (info->fbInfoList[0])));
}

void answer_heap (struct rm *rm, int gpu, NVOS32_PARAMETERS *head, bool is_info)
{
    struct rm_numbers numbers;

    if (gpu < 0)
        return;
    numbers = rm->host->numbers (rm->context, gpu);
    if (numbers.limit == 0)
        return;
    head->total = total_of (&numbers, head->total);
    head->free = free_of (&numbers, head->free);
    if (is_info)
        head->data.Info.size = free_of (&numbers, head->data.Info.size);
}
