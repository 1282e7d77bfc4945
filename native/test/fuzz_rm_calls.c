/*
 * Any calls with any structs, answered by a driver that writes any bytes: nothing is read or written outside the
 * structs, and what was charged is given back exactly. Calls run with both halves interleaved, as those of threads do.
 */
#include "fuzz.h"
#include "rm/abi.h"
#include "rm/bytes.h"
#include "rm/nv_params.h"
#include "rm/uvm_ioctl.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_CALLS 4

struct input {
    const uint8_t *data;
    size_t size;
};

struct host {
    struct input *input;
    uint64_t used[2];
};

static uint32_t take (struct input *input, unsigned bytes)
{
    uint32_t value = 0;

    while (bytes-- > 0) {
        value = value << 8 | (input->size > 0 ? *input->data : 0);
        if (input->size > 0) {
            input->data++;
            input->size--;
        }
    }
    return value;
}

static void *host_allocate (void *context, size_t size)
{
    struct host *host = context;

    return host->input != NULL && take (host->input, 1) == 0xee ? NULL : calloc (1, size);
}

static void host_release (void *context, void *memory, size_t size)
{
    (void) context;
    (void) size;
    free (memory);
}

static long host_ioctl (void *context, uint64_t file, uint32_t request, void *argument)
{
    struct host *host = context;
    NVOS54_PARAMETERS *head = argument;
    NV2080_CTRL_GPU_GET_GID_INFO_PARAMS *params;

    (void) file;
    if (rm_request_number (request) != NV_ESC_RM_CONTROL) {
        ((NVOS00_PARAMETERS *) argument)->status = take (host->input, 1) % 4 == 3;
        return 0;
    }
    params = (void *) (uintptr_t) head->params;
    if (head->cmd == NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO) {
        static const uint32_t found[] = { NV01_DEVICE_0,
                                          NV20_SUBDEVICE_0,
                                          NV01_MEMORY_LOCAL_USER,
                                          KEPLER_CHANNEL_GROUP_A,
                                          HOPPER_CHANNEL_GPFIFO_A,
                                          NV_MEMORY_FABRIC,
                                          NV01_ROOT,
                                          0x1234,
                                          1,
                                          2,
                                          3,
                                          4,
                                          5 };
        NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS *info = (void *) (uintptr_t) head->params;

        info->data.hResult = found[take (host->input, 1) % (sizeof (found) / sizeof (found[0]))];
    } else if (head->cmd == NV0041_CTRL_CMD_GET_SURFACE_INFO) {
        const NV0041_CTRL_GET_SURFACE_INFO_PARAMS *info = (void *) (uintptr_t) head->params;

        ((NV0041_CTRL_SURFACE_INFO *) (uintptr_t) info->surfaceInfoList)->data = take (host->input, 2);
    }
    if (head->cmd == NV2080_CTRL_CMD_GPU_GET_GID_INFO && head->paramsSize == sizeof (*params)) {
        params->length = 16;
        memset (params->data, (int) take (host->input, 1) % 3, 16);
    }
    head->status = take (host->input, 1) % 4 == 3;
    return 0;
}

static int host_find_gpu (void *context, const uint8_t uuid[16])
{
    (void) context;
    return uuid[15] < 2 ? uuid[15] : RM_NO_GPU;
}

static bool host_reserve (void *context, int gpu, uint64_t bytes)
{
    struct host *host = context;

    if (bytes > UINT64_MAX / 2 || host->used[gpu] > UINT64_MAX / 2)
        return false;
    host->used[gpu] += bytes;
    return true;
}

static void host_refund (void *context, int gpu, uint64_t bytes)
{
    struct host *host = context;

    if (bytes > host->used[gpu])
        abort ();
    host->used[gpu] -= bytes;
}

static void host_charge (void *context, int gpu, uint64_t bytes) { ((struct host *) context)->used[gpu] += bytes; }

static struct rm_numbers host_numbers (void *context, int gpu)
{
    return (struct rm_numbers) { (uint64_t) 1 << 30, ((struct host *) context)->used[gpu] };
}

static uint64_t host_file_of (void *context, int descriptor)
{
    (void) context;
    return (uint64_t) (unsigned) descriptor % 5;
}

static uint32_t host_timeslice (void *context, int gpu)
{
    (void) context;
    return gpu == 0 ? 1000 : 0;
}

/* Both ways: some are the tenant's, some are not. */
static uint32_t host_other_pid (void *context, uint32_t pid)
{
    (void) context;
    return pid % 2 == 0 ? pid ^ 0x10 : 0;
}

static void host_changed (void *context, int gpu)
{
    (void) context;
    (void) gpu;
}

static void host_note (void *context, enum rm_reason reason, uint32_t number)
{
    (void) context;
    (void) number;
    if (reason <= RM_OK || reason >= RM_REASONS)
        abort ();
}

static const struct rm_host fuzz_host = {
    host_allocate, host_release, host_ioctl,     host_find_gpu,  host_reserve,   host_refund,  host_charge,
    host_numbers,  host_file_of, host_timeslice, host_other_pid, host_other_pid, host_changed, host_note,
    NULL,          NULL,         NULL,           NULL,           NULL,
};

static const uint32_t classes[] = {
    NV01_MEMORY_LOCAL_USER,  NV01_ROOT_CLIENT,           NV01_DEVICE_0,    NV20_SUBDEVICE_0, KEPLER_CHANNEL_GROUP_A,
    HOPPER_CHANNEL_GPFIFO_A, NV01_MEMORY_SYSTEM,         NV_MEMORY_FABRIC, HOPPER_COMPUTE_A, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
    FERMI_VASPACE_A,         NV01_MEMORY_LOCAL_PHYSICAL,
};
static const uint32_t controls[] = {
    NV2080_CTRL_CMD_FB_GET_INFO_V2,
    NV2080_CTRL_CMD_FB_GET_INFO,
    NV2080_CTRL_CMD_GPU_GET_PIDS,
    NV2080_CTRL_CMD_GPU_GET_PID_INFO,
    NVA06C_CTRL_CMD_SET_TIMESLICE,
    NVA06C_CTRL_CMD_GET_TIMESLICE,
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
    NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
    NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
    NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
    NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
    NV2080_CTRL_CMD_GPU_GET_GID_INFO,
    NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION,
    0x20809064 /* of the old kind */,
};
static const uint8_t escapes[] = { NV_ESC_RM_ALLOC,       NV_ESC_RM_ALLOC,   NV_ESC_RM_ALLOC,      NV_ESC_RM_FREE,
                                   NV_ESC_RM_CONTROL,     NV_ESC_RM_CONTROL, NV_ESC_RM_DUP_OBJECT, NV_ESC_RM_VID_HEAP_CONTROL,
                                   NV_ESC_RM_ALLOC_MEMORY };

#define PICK(input, list) ((list)[take (input, 1) % (sizeof (list) / sizeof ((list)[0]))])

static uint8_t *copy (struct input *input, uint32_t size)
{
    uint8_t *bytes = malloc (size > 0 ? size : 1);

    for (uint32_t i = 0; bytes != NULL && i < size; i++)
        bytes[i] = i < 64 ? (uint8_t) take (input, 1) : (uint8_t) (i % 3 == 0);
    return bytes;
}

/* Handles from a small set, so that calls meet. */
static void few_handles (struct input *input, uint8_t *head, uint32_t size)
{
    for (uint32_t at = 0; at < 12 && at + 4 <= size; at += 4)
        set32 (head, at, take (input, 1) % 6);
}

static void prepare (struct rm_call *call, struct input *input, const struct rm_abi *abi)
{
    static const uint32_t uvm[] = {
        UVM_UNREGISTER_GPU_VASPACE, UVM_MAP_EXTERNAL_ALLOCATION, UVM_FREE,           UVM_REGISTER_GPU,
        UVM_UNREGISTER_GPU,         UVM_PAGEABLE_MEM_ACCESS,     UVM_UNMAP_EXTERNAL, UVM_CREATE_EXTERNAL_RANGE,
        UVM_MAP_EXTERNAL_SPARSE,    UVM_MAP_EXTERNAL_ALLOCATION,
    };
    static const uint32_t sizes[] = { 1028, 16, 3812, 14408, 8, 24, 652, 2128 }; /* of params of the controls above */
    const struct rm_escape *row;
    NVOS54_PARAMETERS *control;
    struct rm_wanted wanted;
    uint32_t choice = take (input, 1), escape = choice < 16 ? take (input, 1) : PICK (input, escapes), size;

    memset (call, 0, sizeof (*call));
    call->node = choice % 8 == 0 ? (enum rm_node) (take (input, 1) % 4) : RM_NODE_CONTROL;
    call->file = take (input, 1) % 4;
    row = rm_abi_escape (abi, escape);
    size = row != NULL && row->size != 0 && choice != 17 ? row->size : take (input, 1);
    if (row != NULL && row->other != 0 && choice % 3 == 0)
        size = row->other;
    call->request = call->node == RM_NODE_UVM ? uvm[choice / 8 % 10] : size << 16 | escape;
    call->head_size = call->node == RM_NODE_UVM ? rm_head_size (abi, RM_NODE_UVM, call->request) : size;
    if (choice == 18 && call->head_size > 0)
        call->head_size--;
    control = call->head = copy (input, call->head_size);
    if (call->head == NULL)
        abort ();
    few_handles (input, call->head, call->head_size);
    if (call->node == RM_NODE_UVM && call->request == UVM_MAP_EXTERNAL_ALLOCATION && call->head_size > 64) {
        uvm_map_external_allocation_end *tail = (void *) ((uint8_t *) call->head + call->head_size - sizeof (*tail));

        tail->gpuAttributesCount = take (input, 1) % 4;
        tail->hClient = take (input, 1) % 6;
        tail->hMemory = take (input, 1) % 6;
    }
    if (escape == NV_ESC_RM_ALLOC && call->head_size >= 24 && choice != 19)
        ((NVOS21_PARAMETERS *) call->head)->hClass = PICK (input, classes);
    if (escape == NV_ESC_RM_CONTROL && call->head_size >= sizeof (*control) && choice != 19) {
        control->cmd = PICK (input, controls);
        control->paramsSize = choice % 5 == 0 ? take (input, 2) : sizes[choice % 8];
    }
    if (call->head_size < rm_request_size (call->request))
        return;
    wanted = rm_params_wanted (abi, call->node, call->request, call->head);
    if (wanted.size != 0 && choice != 20) {
        call->params_size = wanted.size;
        call->params = copy (input, call->params_size);
        if (call->params == NULL)
            abort ();
        wanted = rm_list_wanted (abi, call->node, call->request, call->head, call->params);
        if (wanted.size != 0) {
            call->list_size = wanted.size;
            call->list = copy (input, call->list_size);
        }
    }
}

/* The driver writes what it likes, as long as it is in the structs. */
static void answer (struct rm_call *call, struct input *input)
{
    uint8_t *head = call->head, *params = call->params;
    uint32_t choice = take (input, 1);

    for (uint32_t i = 0; i < choice % 4 && call->params_size > 0; i++)
        params[take (input, 2) % call->params_size] = (uint8_t) take (input, 1);
    if (choice % 8 != 0)
        for (uint32_t at = 12; at + 4 <= call->head_size; at += 4)
            if (at == call->head_size - 4 || at == 40 || at == 24 || at == 28 || (at == 20 && call->head_size == 184))
                set32 (head, at, 0); /* a status, most likely */
    if (call->head_size >= 12 && get32 (head, 8) == 0)
        set32 (head, 8, take (input, 1) % 6);
}

static void done (struct rm_call *call)
{
    free (call->head);
    free (call->params);
    free (call->list);
    memset (call, 0, sizeof (*call));
}

int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
    static const char *const versions[] = { "535.104.05", "550.54.14", "560.35.03", "570.86.15",
                                            "580.159.04", "590.48.01", "595.45.04" };
    struct input input = { data, size };
    struct host host = { &input, { 0, 0 } };
    const struct rm_abi *abi = rm_abi_find (PICK (&input, versions));
    struct rm *rm = rm_create (abi, take (&input, 1) % 2 ? RM_POSTURE_GUARD : RM_POSTURE_SHIM, &fuzz_host, &host);
    struct rm_call calls[OPEN_CALLS];
    bool is_open[OPEN_CALLS] = { false };
    struct rm_channel channels[4];
    struct rm_totals totals;

    if (rm == NULL)
        return 0;
    while (input.size > 0) {
        uint32_t choice = take (&input, 1), slot = choice % OPEN_CALLS;

        if (choice >= 0xf8) {
            uint64_t address = (uint64_t) take (&input, 1) << 20, length = (uint64_t) take (&input, 1) << 18;

            rm_freeze (rm, (int) (choice % 3) - 1, choice % 2);
            rm_set_timeslice (rm, (int) (choice % 2), choice);
            rm_channels (rm, channels, 4);
            rm_groups (rm, 0);
            rm_map_managed (rm, (int) (choice % 3) - 1, address, length);
            rm_unmap (rm, address / 2, length);
            if (choice == 0xff)
                rm_close_file (rm, take (&input, 1) % 5);
        } else if (is_open[slot]) {
            answer (&calls[slot], &input);
            if (choice % 32 == 31)
                rm_forget_call (rm, &calls[slot]);
            else
                rm_end (rm, &calls[slot], choice % 16 == 15 ? -14 : 0);
            done (&calls[slot]);
            is_open[slot] = false;
        } else {
            enum rm_verdict decision;

            prepare (&calls[slot], &input, abi);
            decision = rm_begin (rm, &calls[slot]);
            is_open[slot] = decision == RM_CONTINUE || decision == RM_PERFORM;
            if (!is_open[slot])
                done (&calls[slot]);
        }
        rm_totals (rm, &totals);
        if (totals.bytes[0] != host.used[0] || totals.bytes[1] != host.used[1])
            abort ();
    }
    for (int slot = 0; slot < OPEN_CALLS; slot++)
        if (is_open[slot]) {
            rm_forget_call (rm, &calls[slot]);
            done (&calls[slot]);
        }
    host.input = NULL;
    rm_destroy (rm);
    if (host.used[0] != 0 || host.used[1] != 0)
        abort ();
    return 0;
}
