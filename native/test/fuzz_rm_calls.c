/*
 * Any calls with any structs, answered by a driver that writes any bytes: nothing is read or written outside the
 * structs, and what was charged is given back exactly. Calls run with both halves interleaved, as those of threads do.
 */
#include "fuzz.h"
#include "rm/abi.h"
#include "rm/bytes.h"

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
    uint8_t *params = (uint8_t *) (uintptr_t) get64 (argument, 16);
    uint32_t size = get32 (argument, 24);

    (void) file;
    (void) request;
    if (get32 (argument, 8) == 0x2080014a && size == 268) {
        set32 (params, 8, 16);
        memset (params + 12, (int) take (host->input, 1) % 3, 16);
    }
    set32 (argument, 28, take (host->input, 1) % 4 == 3);
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

static void host_charge (void *context, int gpu, uint64_t bytes)
{
    ((struct host *) context)->used[gpu] += bytes;
}

static struct rm_numbers host_numbers (void *context, int gpu)
{
    return (struct rm_numbers) {(uint64_t) 1 << 30, ((struct host *) context)->used[gpu]};
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

static bool host_is_own (void *context, uint32_t pid)
{
    (void) context;
    return pid % 2 == 0;
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
    host_allocate, host_release,   host_ioctl,     host_find_gpu, host_reserve, host_refund, host_charge,
    host_numbers,  host_file_of,   host_timeslice, host_is_own,   host_changed, host_note,
};

static const uint32_t classes[] = {0x40, 0x41, 0x80, 0x2080, 0xa06c, 0xc86f, 0x3e, 0xf8, 0xcbc0, 0x71, 0x90f1, 0xc2};
static const uint32_t controls[] = {0x20801303, 0x20801301, 0x2080018d, 0x2080018e, 0xa06c0103, 0xa06c0104, 0x2080110b,
                                    0x3d05,     0x3d06,     0x3d0b,     0x3d0c,     0x2080014a, 0x101,      0x20809064};
static const uint8_t escapes[] = {0x2b, 0x2b, 0x2b, 0x29, 0x2a, 0x2a, 0x34, 0x4a, 0x27};

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
    static const uint32_t uvm[] = {26, 33, 34, 37, 38, 39, 66, 73, 74, 33};
    const struct rm_escape *row;
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
    call->head = copy (input, call->head_size);
    if (call->head == NULL)
        abort ();
    few_handles (input, call->head, call->head_size);
    if (call->node == RM_NODE_UVM && call->request == UVM_MAP_EXTERNAL && call->head_size > 64) {
        set64 (call->head, call->head_size - 24, take (input, 1) % 4);
        set32 (call->head, call->head_size - 12, take (input, 1) % 6);
        set32 (call->head, call->head_size - 8, take (input, 1) % 6);
    }
    if (escape == 0x2b && call->head_size >= 24 && choice != 19)
        set32 (call->head, 12, PICK (input, classes));
    if (escape == 0x2a && call->head_size >= 32 && choice != 19) {
        set32 (call->head, 8, PICK (input, controls));
        row = rm_abi_escape (abi, 0x2a);
        set32 (call->head, 24, choice % 5 == 0 ? take (input, 2) : (uint32_t[]) {1028, 16, 3812, 14408, 8, 24, 652,
                                                                                 2128}[choice % 8]);
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
    static const char *const versions[] = {"535.104.05", "550.54.14", "560.35.03", "570.86.15", "580.159.04",
                                           "590.48.01", "595.45.04"};
    struct input input = {data, size};
    struct host host = {&input, {0, 0}};
    const struct rm_abi *abi = rm_abi_find (PICK (&input, versions));
    struct rm *rm = rm_create (abi, take (&input, 1) % 2 ? RM_POSTURE_GUARD : RM_POSTURE_SHIM, &fuzz_host, &host);
    struct rm_call calls[OPEN_CALLS];
    bool is_open[OPEN_CALLS] = {false};
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
            enum rm_verdict verdict;

            prepare (&calls[slot], &input, abi);
            verdict = rm_begin (rm, &calls[slot]);
            is_open[slot] = verdict == RM_CONTINUE || verdict == RM_PERFORM;
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
