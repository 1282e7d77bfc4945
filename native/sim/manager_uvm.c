/*
 * The UVM node. Its requests are plain numbers without size and direction; the status is the last field of each struct
 * (uvm_ioctl.h). Recorded is only what affects other calls: how a file is initialised, its registered GPUs, its
 * resident memory on them. All other calls succeed without effect. Runs as manager.c, under manager->lock.
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
    UVM_FREE = 34,
    UVM_REGISTER_GPU = 37,
    UVM_UNREGISTER_GPU = 38,
    UVM_PAGEABLE = 39,
    UVM_UNMAP_EXTERNAL = 66,
    UVM_CREATE_EXTERNAL = 73,
    UVM_DYNAMIC_PARALLELISM = 65,
    UVM_SEMAPHORE_POOL = 68,
    UVM_MM_INITIALIZE = 75,
};

/* Flags of INITIALIZE (uvm_types.h): HMM disabled for this file; file shared by several processes, without their mm. */
#define NO_HMM 1u
#define NO_PROCESS 2u

struct uvm_row {
    uint32_t number, size, status;
    int since, until; /* releases; 0: no bound */
};

/* Compiled from uvm_ioctl.h of 535.104.05, 545.29.06, 550.163.01, 560.35.03, 570.148.08, 575.64.05, 580.142, 590.48.01
 * and 595.45.04. */
static const struct uvm_row rows[] = {
    { UVM_INITIALIZE, 16, 8, 0, 0 },
    { UVM_DEINITIALIZE, 0, 0, 0, 0 },
    { 23, 16, 8, 0, 0 },       /* CREATE_RANGE_GROUP */
    { 24, 16, 8, 0, 0 },       /* DESTROY_RANGE_GROUP */
    { 25, 32, 28, 0, 0 },      /* REGISTER_GPU_VASPACE */
    { 26, 20, 16, 0, 0 },      /* UNREGISTER_GPU_VASPACE */
    { 27, 56, 48, 0, 0 },      /* REGISTER_CHANNEL */
    { 28, 28, 24, 0, 590 },    /* UNREGISTER_CHANNEL */
    { 28, 12, 8, 590, 0 },
    { 29, 36, 32, 0, 0 },      /* ENABLE_PEER_ACCESS */
    { 30, 36, 32, 0, 0 },      /* DISABLE_PEER_ACCESS */
    { 31, 32, 24, 0, 0 },      /* SET_RANGE_GROUP */
    { 33, 1200, 1196, 0, 550 }, /* MAP_EXTERNAL_ALLOCATION */
    { 33, 9264, 9260, 550, 0 },
    { 34, 24, 16, 0, 590 },    /* FREE */
    { 34, 16, 8, 590, 0 },
    { 37, 40, 36, 0, 0 },      /* REGISTER_GPU */
    { 38, 20, 16, 0, 0 },      /* UNREGISTER_GPU */
    { 39, 8, 4, 0, 0 },        /* PAGEABLE_MEM_ACCESS */
    { 40, 272, 264, 0, 0 },    /* PREVENT_MIGRATION_RANGE_GROUPS */
    { 41, 272, 264, 0, 0 },    /* ALLOW_MIGRATION_RANGE_GROUPS */
    { 42, 40, 32, 0, 550 },    /* SET_PREFERRED_LOCATION */
    { 42, 40, 36, 550, 0 },
    { 43, 24, 16, 0, 0 },      /* UNSET_PREFERRED_LOCATION */
    { 44, 24, 16, 0, 0 },      /* ENABLE_READ_DUPLICATION */
    { 45, 24, 16, 0, 0 },      /* DISABLE_READ_DUPLICATION */
    { 46, 40, 32, 0, 0 },      /* SET_ACCESSED_BY */
    { 47, 40, 32, 0, 0 },      /* UNSET_ACCESSED_BY */
    { 51, 80, 72, 0, 0 },      /* MIGRATE */
    { 53, 32, 24, 0, 0 },      /* MIGRATE_RANGE_GROUP */
    { 54, 20, 16, 0, 595 },    /* ENABLE_SYSTEM_WIDE_ATOMICS */
    { 55, 20, 16, 0, 595 },    /* DISABLE_SYSTEM_WIDE_ATOMICS */
    { 65, 40, 32, 0, 0 },      /* MAP_DYNAMIC_PARALLELISM_REGION */
    { 66, 40, 32, 0, 0 },      /* UNMAP_EXTERNAL */
    { 68, 1184, 1176, 0, 550 }, /* ALLOC_SEMAPHORE_POOL */
    { 68, 9248, 9240, 550, 0 },
    { 71, 24, 20, 0, 0 },      /* POPULATE_PAGEABLE */
    { 72, 24, 16, 0, 0 },      /* VALIDATE_VA_RANGE */
    { 73, 24, 16, 0, 0 },      /* CREATE_EXTERNAL_RANGE */
    { 74, 40, 32, 0, 0 },      /* MAP_EXTERNAL_SPARSE */
    { 75, 8, 4, 0, 0 },        /* MM_INITIALIZE */
};

static const struct uvm_row *row_of (const struct manager *manager, uint32_t number)
{
    for (size_t i = 0; i < sizeof (rows) / sizeof (rows[0]); i++) {
        const struct uvm_row *row = &rows[i];
        if (row->number == number && manager->release >= row->since && (row->until == 0 || manager->release < row->until))
            return row;
    }
    return NULL;
}

/* Size of the struct; UINT32_MAX: no such number. */
uint32_t uvm_size (const struct manager *manager, uint32_t number)
{
    const struct uvm_row *row = row_of (manager, number);

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
    external_forget (file, -1);
    file->uvm_gpus = file->uvm_spaces = 0;
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

/* The GPU whose UUID the call begins with, as a bit; 0: none of this machine. */
static uint32_t of_uuid (const struct request *request)
{
    int gpu = gpu_by_uuid (request->manager, request->head);

    return gpu < 0 ? 0 : UINT32_C (1) << gpu;
}

/* Mappings for the GPU end with its registration. */
static enum status unregister (struct request *request, uint32_t *gpus)
{
    int gpu = gpu_by_uuid (request->manager, request->head);

    if (gpu < 0)
        return STATUS_GPU_UUID_NOT_FOUND;
    if ((*gpus & of_uuid (request)) == 0)
        return STATUS_INVALID_DEVICE;
    *gpus &= ~of_uuid (request);
    external_forget (request->file, gpu);
    return STATUS_OK;
}

/* UUID, descriptor, client, address space. Permission is checked as for a duplicate. */
static enum status register_space (struct request *request)
{
    struct client *client = client_find (request->manager, get32 (request->head, 20));
    struct object *space = client != NULL ? object_find (client, get32 (request->head, 24)) : NULL;

    if ((request->file->uvm_gpus & of_uuid (request)) == 0)
        return STATUS_INVALID_DEVICE;
    if (client == NULL)
        return STATUS_INVALID_CLIENT;
    if (space == NULL)
        return STATUS_INVALID_OBJECT_HANDLE;
    if (!may_duplicate (space, NULL, request->caller->process (request->caller->context)))
        return STATUS_INSUFFICIENT_PERMISSIONS;
    if (request->file->uvm_spaces & of_uuid (request))
        return STATUS_INVALID_DEVICE;
    request->file->uvm_spaces |= of_uuid (request);
    return STATUS_OK;
}

/* From 590 on a range is given by its start alone. */
static enum status free_range (struct request *request)
{
    uint64_t length = request->manager->release < 590 ? get64 (request->head, 8) : 0;

    if (request->manager->release < 590 && length == 0)
        return STATUS_INVALID_ADDRESS;
    return external_free (request, length);
}

/* A second initialisation succeeds with the same flags (uvm_api_initialize). */
static enum status initialize (struct request *request)
{
    struct manager_file *file = request->file;
    uint64_t flags = get64 (request->head, 0);

    if (file->uvm_initialized ? flags != file->uvm_flags : (flags & ~(uint64_t) (NO_HMM | NO_PROCESS)) != 0)
        return STATUS_INVALID_ARGUMENT;
    file->uvm_flags = flags;
    file->uvm_initialized = true;
    return STATUS_OK;
}

/* uvm_va_space_pageable_mem_access_supported: where there is ATS there is no HMM. */
static bool pageable (const struct request *request)
{
    uint64_t flags = request->file->uvm_flags;

    switch (request->manager->machine->pageable) {
    case PAGEABLE_HMM:
        return (flags & (NO_HMM | NO_PROCESS)) == 0;
    case PAGEABLE_ATS:
        return (flags & NO_PROCESS) == 0;
    default:
        return false;
    }
}

static enum status serve (struct request *request)
{
    struct manager_file *file = request->file;

    if (request->number == UVM_INITIALIZE)
        return initialize (request);
    if (request->number == UVM_MM_INITIALIZE) /* on a file of its own, which names the initialised one */
        return request->named != NULL && request->named->uvm_initialized ? STATUS_OK : STATUS_INVALID_ARGUMENT;
    if (!file->uvm_initialized)
        return STATUS_INVALID_STATE; /* the real driver returns another status */
    switch (request->number) {
    case UVM_REGISTER_GPU:
        return register_gpu (request);
    case UVM_UNREGISTER_GPU:
        file->uvm_spaces &= ~file->uvm_gpus | ~of_uuid (request);
        return unregister (request, &file->uvm_gpus);
    case UVM_REGISTER_VASPACE:
        return register_space (request);
    case UVM_UNREGISTER_VASPACE:
        return unregister (request, &file->uvm_spaces);
    case UVM_REGISTER_CHANNEL:
        return client_find (request->manager, get32 (request->head, 20)) != NULL ? STATUS_OK : STATUS_INVALID_CLIENT;
    case UVM_CREATE_EXTERNAL:
    case UVM_DYNAMIC_PARALLELISM: /* ranges of other kinds, created and freed in the same way */
    case UVM_SEMAPHORE_POOL:
        return external_create (request);
    case UVM_MAP_EXTERNAL:
        return external_map (request);
    case UVM_UNMAP_EXTERNAL:
        return external_unmap (request);
    case UVM_FREE:
        return free_range (request);
    case UVM_CREATE_RANGE_GROUP:
        put64 (request->head, 0, ++request->manager->next_number);
        return STATUS_OK;
    case UVM_PAGEABLE:
        request->head[0] = pageable (request);
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

void uvm_call (struct request *request)
{
    const struct uvm_row *row = row_of (request->manager, request->number);
    enum status status = serve (request);

    if (row->size != 0)
        put32 (request->head, row->status, (uint32_t) status);
}
