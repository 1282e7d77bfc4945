#include "rm_fake.h"
#include "rm/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const uint8_t fake_uuid[FAKE_GPUS][16] = { { 0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
                                           { 0xb0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
                                           { 0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 } };

/* --- the host --- */

static void *host_allocate (void *context, size_t size)
{
    struct fake *fake = context;

    if (fake->allocate_fail > 0 && --fake->allocate_fail == 0)
        return NULL;
    fake->blocks++;
    return calloc (1, size);
}

static void host_release (void *context, void *memory, size_t size)
{
    struct fake *fake = context;

    (void) size;
    fake->blocks--;
    free (memory);
}

static long host_ioctl (void *context, uint64_t file, uint32_t request, void *argument)
{
    struct fake *fake = context;
    void *params = (void *) (uintptr_t) ((const NVOS54_PARAMETERS *) argument)->params;

    fake->own_calls++;
    return fake_driver (fake, file, request, argument, params, NULL);
}

static int host_find_gpu (void *context, const uint8_t uuid[16])
{
    (void) context;
    for (int gpu = 0; gpu < 2; gpu++)
        if (memcmp (uuid, fake_uuid[gpu], 16) == 0)
            return gpu;
    return RM_NO_GPU;
}

static bool host_reserve (void *context, int gpu, uint64_t bytes)
{
    struct fake *fake = context;

    if (fake->limit[gpu] != 0 && (fake->used[gpu] > fake->limit[gpu] || bytes > fake->limit[gpu] - fake->used[gpu]))
        return false;
    fake->used[gpu] += bytes;
    return true;
}

static void host_refund (void *context, int gpu, uint64_t bytes)
{
    struct fake *fake = context;

    if (bytes > fake->used[gpu])
        abort (); /* more came back than was taken */
    fake->used[gpu] -= bytes;
}

static void host_charge (void *context, int gpu, uint64_t bytes) { ((struct fake *) context)->used[gpu] += bytes; }

static struct rm_numbers host_numbers (void *context, int gpu)
{
    const struct fake *fake = context;

    return (struct rm_numbers) { fake->limit[gpu], fake->used[gpu] };
}

static uint64_t host_file_of (void *context, int descriptor)
{
    (void) context;
    return descriptor >= 1000 ? (uint64_t) descriptor : 0; /* descriptors from 1000 on are their own files */
}

static uint32_t host_timeslice (void *context, int gpu) { return ((const struct fake *) context)->slice[gpu]; }

/* Even ones are the tenant's. */
static uint32_t host_shown_pid (void *context, uint32_t pid)
{
    return pid % 2 == 0 ? pid - ((const struct fake *) context)->pids : 0;
}

static uint32_t host_driver_pid (void *context, uint32_t pid)
{
    return pid % 2 == 0 ? pid + ((const struct fake *) context)->pids : 0;
}

static void host_changed (void *context, int gpu) { ((struct fake *) context)->changed[gpu]++; }

static void host_note (void *context, enum rm_reason reason, uint32_t number)
{
    struct fake *fake = context;

    fake->notes[reason]++;
    fake->last_noted = number;
}

const struct rm_host fake_host = {
    .allocate = host_allocate,
    .release = host_release,
    .ioctl = host_ioctl,
    .find_gpu = host_find_gpu,
    .reserve = host_reserve,
    .refund = host_refund,
    .charge = host_charge,
    .numbers = host_numbers,
    .file_of = host_file_of,
    .timeslice = host_timeslice,
    .shown_pid = host_shown_pid,
    .driver_pid = host_driver_pid,
    .groups_changed = host_changed,
    .note = host_note,
    .hold = fake_hold,
    .let_go = fake_let_go,
    .is_held = fake_is_held,
    .is_retained = fake_is_retained,
    .give_back = fake_give_back,
};

struct fake *fake_open (const char *version, enum rm_posture posture)
{
    struct fake *fake = calloc (1, sizeof (*fake));

    if (fake == NULL)
        abort ();
    fake->granule = 1;
    fake->next_client = 0xc1d00000;
    fake->next_handle = 0x5c000000;
    fake->rm = rm_create (rm_abi_find (version), posture, &fake_host, fake);
    if (fake->rm == NULL)
        abort ();
    return fake;
}

bool fake_close (struct fake *fake)
{
    bool is_clean;

    rm_destroy (fake->rm);
    is_clean = fake->used[0] == 0 && fake->used[1] == 0 && fake->blocks == 0;
    free (fake);
    return is_clean;
}

long fake_call (struct fake *fake, enum rm_node node, uint64_t file, uint32_t request, void *head, void *params,
                uint32_t params_size, void *list, uint32_t list_size)
{
    struct rm_call call = { .node = node,
                            .file = file,
                            .request = request,
                            .head = head,
                            .head_size = node == RM_NODE_UVM ? 64 : rm_request_size (request),
                            .params = params,
                            .params_size = params_size,
                            .list = list,
                            .list_size = list_size };
    long result;

    if (params != NULL && params_size >= sizeof (call.named))
        call.named = (int32_t) get32 (params, 0); /* where imports name a file */
    fake->decision = rm_begin (fake->rm, &call);
    if (fake->decision == RM_ANSWERED || fake->decision == RM_REFUSED)
        return 0;
    if (fake->decision == RM_UNKNOWN)
        return -ENOTTY;
    fake->performed++;
    result = node == RM_NODE_UVM ? 0 : fake_driver (fake, file, request, head, params, list);
    if (fake->decision == RM_CONTINUE && is_guard (fake->rm))
        rm_forget_call (fake->rm, &call); /* its outcome is not seen */
    else if (fake->decision != RM_PASS)
        rm_end (fake->rm, &call, result);
    return result;
}

void fake_race (struct fake *fake, uint64_t file, NVOS64_PARAMETERS *seen, void *seen_params, uint32_t params_size,
                NVOS64_PARAMETERS *made, void *made_params)
{
    struct rm_call call = { .node = RM_NODE_CONTROL,
                            .file = file,
                            .request = ALLOC_REQUEST,
                            .head = seen,
                            .head_size = sizeof (*seen),
                            .params = seen_params,
                            .params_size = params_size };

    fake->decision = rm_begin (fake->rm, &call);
    if (fake->decision != RM_CONTINUE)
        return;
    fake_driver (fake, file, ALLOC_REQUEST, made, made_params, NULL);
    rm_forget_call (fake->rm, &call);
}

uint64_t fake_bytes (const struct fake *fake, uint32_t instance)
{
    uint64_t sum = 0;

    for (int i = 0; i < FAKE_MEMORIES; i++)
        if (fake->memories[i].references > 0 && fake->memories[i].instance == instance)
            sum += fake->memories[i].bytes;
    return sum;
}

uint64_t fake_charged (const struct fake *fake, int gpu)
{
    struct rm_totals totals;

    rm_totals (fake->rm, &totals);
    return totals.bytes[gpu] == fake->used[gpu] ? totals.bytes[gpu] : UINT64_MAX;
}

uint32_t fake_alloc (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t class,
                     void *params, uint32_t params_size)
{
    NVOS64_PARAMETERS head = {
        .hRoot = client,
        .hObjectParent = parent,
        .hObjectNew = *handle,
        .hClass = class,
        .pAllocParms = (NvP64) (uintptr_t) params,
    };

    if (fake_call (fake, RM_NODE_CONTROL, file, ALLOC_REQUEST, &head, params, params_size, NULL, 0) != 0)
        return NO_ANSWER;
    *handle = head.hObjectNew;
    return head.status;
}

uint32_t fake_client (struct fake *fake, uint64_t file)
{
    uint32_t handle = 0;

    return fake_alloc (fake, file, 0, 0, &handle, NV01_ROOT_CLIENT, NULL, 0) == 0 ? handle : 0;
}

uint32_t fake_device (struct fake *fake, uint64_t file, uint32_t client, uint32_t instance)
{
    NV0080_ALLOC_PARAMETERS params = { .deviceId = instance, .hClientShare = client };
    uint32_t handle = 0;

    return fake_alloc (fake, file, client, client, &handle, NV01_DEVICE_0, &params, sizeof (params)) == 0 ? handle : 0;
}

uint32_t fake_subdevice (struct fake *fake, uint64_t file, uint32_t client, uint32_t device)
{
    NV2080_ALLOC_PARAMETERS params = { 0 };
    uint32_t handle = 0;

    return fake_alloc (fake, file, client, device, &handle, NV20_SUBDEVICE_0, &params, sizeof (params)) == 0 ? handle : 0;
}

uint32_t fake_memory (struct fake *fake, uint64_t file, uint32_t client, uint32_t device, uint32_t *handle, uint64_t *bytes)
{
    struct fake_memory_params params = { .common.size = *bytes };
    uint32_t status;

    status = fake_alloc (fake, file, client, device, handle, NV01_MEMORY_LOCAL_USER, &params, sizeof (params));
    *bytes = params.common.size;
    return status;
}

uint32_t fake_free (struct fake *fake, uint64_t file, uint32_t client, uint32_t handle)
{
    NVOS00_PARAMETERS head = { .hRoot = client, .hObjectOld = handle };
    long result = fake_call (fake, RM_NODE_CONTROL, file, FREE_REQUEST, &head, NULL, 0, NULL, 0);

    return result == 0 ? head.status : NO_ANSWER;
}

uint32_t fake_dup (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t from_client,
                   uint32_t from)
{
    NVOS55_PARAMETERS head = {
        .hClient = client,
        .hParent = parent,
        .hObject = *handle,
        .hClientSrc = from_client,
        .hObjectSrc = from,
    };
    long result = fake_call (fake, RM_NODE_CONTROL, file, DUP_REQUEST, &head, NULL, 0, NULL, 0);

    *handle = head.hObject;
    return result == 0 ? head.status : NO_ANSWER;
}

uint32_t fake_control (struct fake *fake, uint64_t file, uint32_t client, uint32_t object, uint32_t number, void *params,
                       uint32_t size)
{
    NVOS54_PARAMETERS head = fake_control_head (client, object, number, params, size);
    long result = fake_call (fake, RM_NODE_CONTROL, file, CONTROL_REQUEST, &head, params, size, NULL, 0);

    return result == 0 ? head.status : NO_ANSWER;
}

uint32_t fake_group (struct fake *fake, uint64_t file, uint32_t client, uint32_t device, uint32_t engine)
{
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS params = { .engineType = engine };
    uint32_t handle = 0, status;

    status = fake_alloc (fake, file, client, device, &handle, KEPLER_CHANNEL_GROUP_A, &params, sizeof (params));
    return status == 0 ? handle : 0;
}

uint32_t fake_channel_in (struct fake *fake, uint64_t file, uint32_t client, uint32_t group, uint32_t share)
{
    uint8_t params[FAKE_CHANNEL_PARAMS] = { 0 };
    uint32_t handle = 0, status;

    ((NV_CHANNEL_ALLOC_PARAMS *) params)->hContextShare = share;
    status = fake_alloc (fake, file, client, group, &handle, HOPPER_CHANNEL_GPFIFO_A, params, sizeof (params));
    return status == 0 ? handle : 0;
}

uint32_t fake_channel (struct fake *fake, uint64_t file, uint32_t client, uint32_t group)
{
    return fake_channel_in (fake, file, client, group, 0);
}

uint32_t fake_space (struct fake *fake, uint64_t file, uint32_t client, uint32_t device)
{
    uint8_t params[56] = { 0 };
    uint32_t handle = 0;

    return fake_alloc (fake, file, client, device, &handle, FERMI_VASPACE_A, params, sizeof (params)) == 0 ? handle : 0;
}

uint32_t fake_share (struct fake *fake, uint64_t file, uint32_t client, uint32_t device, uint32_t group)
{
    NV_CTXSHARE_ALLOCATION_PARAMETERS params = { .hVASpace = fake_space (fake, file, client, device) };
    uint32_t handle = 0, status;

    status = fake_alloc (fake, file, client, group, &handle, FERMI_CONTEXT_SHARE_A, &params, sizeof (params));
    return status == 0 ? handle : 0;
}
