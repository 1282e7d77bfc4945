/*
 * The node of managed memory. Its requests are plain numbers with nothing about sizes or directions in them; the status
 * is the last field of each struct (uvm_ioctl.h). Only what others depend on is kept: whether a file is initialised,
 * which GPUs it registered, what of its memory lies on them. The rest is taken and answered with success.
 */
#include "manager_state.h"

#include <string.h>

enum uvm_number {
    UVM_INITIALIZE = 0x30000001,
    UVM_DEINITIALIZE = 0x30000002,
    UVM_CREATE_RANGE_GROUP = 23,
    UVM_REGISTER_VASPACE = 25,
    UVM_UNREGISTER_VASPACE = 26,
    UVM_REGISTER_CHANNEL = 27,
    UVM_MAP_EXTERNAL = 33,
    UVM_REGISTER_GPU = 37,
    UVM_UNREGISTER_GPU = 38,
    UVM_PAGEABLE = 39,
    UVM_MM_INITIALIZE = 75,
};

struct uvm_row {
    uint32_t number, size, status;
};

static const struct uvm_row rows[] = {
    { UVM_INITIALIZE, 16, 8 },
    { UVM_DEINITIALIZE, 0, 0 },
    { 23, 16, 8 },      /* CREATE_RANGE_GROUP */
    { 24, 16, 8 },      /* DESTROY_RANGE_GROUP */
    { 25, 32, 28 },     /* REGISTER_GPU_VASPACE */
    { 26, 20, 16 },     /* UNREGISTER_GPU_VASPACE */
    { 27, 56, 48 },     /* REGISTER_CHANNEL */
    { 28, 28, 24 },     /* UNREGISTER_CHANNEL */
    { 29, 36, 32 },     /* ENABLE_PEER_ACCESS */
    { 30, 36, 32 },     /* DISABLE_PEER_ACCESS */
    { 31, 32, 24 },     /* SET_RANGE_GROUP */
    { 33, 9264, 9260 }, /* MAP_EXTERNAL_ALLOCATION */
    { 34, 24, 16 },     /* FREE */
    { 37, 40, 36 },     /* REGISTER_GPU */
    { 38, 20, 16 },     /* UNREGISTER_GPU */
    { 39, 8, 4 },       /* PAGEABLE_MEM_ACCESS */
    { 40, 272, 264 },   /* PREVENT_MIGRATION_RANGE_GROUPS */
    { 41, 272, 264 },   /* ALLOW_MIGRATION_RANGE_GROUPS */
    { 42, 40, 36 },     /* SET_PREFERRED_LOCATION */
    { 43, 24, 16 },     /* UNSET_PREFERRED_LOCATION */
    { 44, 24, 16 },     /* ENABLE_READ_DUPLICATION */
    { 45, 24, 16 },     /* DISABLE_READ_DUPLICATION */
    { 46, 40, 32 },     /* SET_ACCESSED_BY */
    { 47, 40, 32 },     /* UNSET_ACCESSED_BY */
    { 51, 80, 72 },     /* MIGRATE */
    { 53, 28, 24 },     /* MIGRATE_RANGE_GROUP */
    { 54, 20, 16 },     /* ENABLE_SYSTEM_WIDE_ATOMICS */
    { 55, 20, 16 },     /* DISABLE_SYSTEM_WIDE_ATOMICS */
    { 65, 40, 32 },     /* MAP_DYNAMIC_PARALLELISM_REGION */
    { 66, 40, 32 },     /* UNMAP_EXTERNAL */
    { 68, 9248, 9240 }, /* ALLOC_SEMAPHORE_POOL */
    { 71, 24, 20 },     /* POPULATE_PAGEABLE */
    { 72, 24, 16 },     /* VALIDATE_VA_RANGE */
    { 73, 24, 16 },     /* CREATE_EXTERNAL_RANGE */
    { 74, 40, 32 },     /* MAP_EXTERNAL_SPARSE */
    { 75, 8, 4 },       /* MM_INITIALIZE */
};

static const struct uvm_row *row_of (uint32_t number)
{
    for (size_t i = 0; i < sizeof (rows) / sizeof (rows[0]); i++) {
        if (rows[i].number == number)
            return &rows[i];
    }
    return NULL;
}

/* Bytes of the struct; UINT32_MAX: no such number. */
uint32_t uvm_size (uint32_t number)
{
    const struct uvm_row *row = row_of (number);

    return row != NULL ? row->size : UINT32_MAX;
}

int gpu_by_uuid (const struct manager *manager, const uint8_t *uuid)
{
    for (uint32_t i = 0; i < manager->gpus; i++) {
        if (memcmp (manager->uuids[i], uuid, 16) == 0)
            return (int) i;
    }
    return -1;
}

void uvm_forget (struct manager_file *file)
{
    for (uint32_t i = 0; i < MANAGER_MAX_GPUS; i++) {
        file->manager->used[i] -= file->resident[i];
        file->resident[i] = 0;
    }
    file->uvm_gpus = 0;
}

/* A client of the resource manager, named by a descriptor of its file and its handle. */
static struct client *named_client (struct request *request, size_t handle_at)
{
    struct client *client = client_find (request->manager, get32 (request->head, handle_at));

    return client != NULL && client->file == request->named ? client : NULL;
}

static enum status register_gpu (struct request *request)
{
    int gpu = gpu_by_uuid (request->manager, request->head);

    if (gpu < 0)
        return STATUS_GPU_UUID_NOT_FOUND;
    request->file->uvm_gpus |= UINT32_C (1) << gpu;
    put32 (request->head, 16, 0);
    put32 (request->head, 20, UINT32_MAX);
    return STATUS_OK;
}

static enum status serve (struct request *request)
{
    struct manager_file *file = request->file;
    struct client *client;

    if (request->number == UVM_INITIALIZE) {
        if (file->uvm_initialized)
            return STATUS_INVALID_STATE;
        file->uvm_initialized = true;
        return STATUS_OK;
    }
    if (request->number == UVM_MM_INITIALIZE) /* on a file of its own, which names the initialised one */
        return request->named != NULL && request->named->uvm_initialized ? STATUS_OK : STATUS_INVALID_ARGUMENT;
    if (!file->uvm_initialized)
        return STATUS_INVALID_STATE; /* the real one answers with another number of its own */
    switch (request->number) {
    case UVM_REGISTER_GPU:
        return register_gpu (request);
    case UVM_UNREGISTER_GPU:
        if (gpu_by_uuid (request->manager, request->head) < 0)
            return STATUS_GPU_UUID_NOT_FOUND;
        file->uvm_gpus &= ~(UINT32_C (1) << gpu_by_uuid (request->manager, request->head));
        return STATUS_OK;
    case UVM_REGISTER_VASPACE:
    case UVM_REGISTER_CHANNEL:
        return named_client (request, 20) != NULL ? STATUS_OK : STATUS_INVALID_CLIENT;
    case UVM_MAP_EXTERNAL:
        client = named_client (request, 9252);
        if (client == NULL)
            return STATUS_INVALID_CLIENT;
        return object_find (client, get32 (request->head, 9256)) != NULL ? STATUS_OK : STATUS_INVALID_OBJECT_HANDLE;
    case UVM_CREATE_RANGE_GROUP:
        put64 (request->head, 0, ++request->manager->next_number);
        return STATUS_OK;
    case UVM_PAGEABLE:
        request->head[0] = 0;
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

void uvm_call (struct request *request)
{
    const struct uvm_row *row = row_of (request->number);
    enum status status = serve (request);

    if (row->size != 0)
        put32 (request->head, row->status, (uint32_t) status);
}
