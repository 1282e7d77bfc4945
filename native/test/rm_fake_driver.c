/* The driver's half: objects, memory with references, exports, the controls that rm cares about. */
#include "rm_fake.h"

#include <stdlib.h>
#include <string.h>

struct fake_object *fake_find (struct fake *fake, uint32_t client, uint32_t handle)
{
    for (unsigned i = 0; i < fake->object_count; i++)
        if (fake->objects[i].live && fake->objects[i].client == client && fake->objects[i].handle == handle)
            return &fake->objects[i];
    return NULL;
}

/* An object that is there, or else the fake driver itself is broken. */
struct fake_object *fake_sure (struct fake *fake, uint32_t client, uint32_t handle)
{
    struct fake_object *object = fake_find (fake, client, handle);

    if (object == NULL)
        abort ();
    return object;
}

static struct fake_object *new_object (struct fake *fake)
{
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (!fake->objects[i].live) {
            if (i >= fake->object_count)
                fake->object_count = i + 1;
            memset (&fake->objects[i], 0, sizeof (fake->objects[i]));
            fake->objects[i].live = true;
            fake->objects[i].memory = -1;
            return &fake->objects[i];
        }
    abort ();
}

static int new_memory (struct fake *fake, uint32_t instance, uint64_t bytes)
{
    for (int i = 0; i < FAKE_MEMORIES; i++)
        if (fake->memories[i].references == 0) {
            fake->memories[i] = (struct fake_memory) { bytes, 1, instance };
            return i;
        }
    abort ();
}

static void drop_object (struct fake *fake, struct fake_object *object)
{
    object->live = false;
    for (unsigned i = 0; i < fake->object_count; i++) {
        struct fake_object *at = &fake->objects[i];

        if (at->live && at->client == object->client && at->handle != object->handle &&
            (at->parent == object->handle || (at->names == object->handle && at->names != 0)))
            drop_object (fake, at);
    }
    if (object->memory >= 0)
        fake->memories[object->memory].references--;
}

void fake_close_file (struct fake *fake, uint64_t file)
{
    for (unsigned i = 0; i < fake->object_count; i++)
        if (fake->objects[i].live && fake->objects[i].client == fake->objects[i].handle && fake->objects[i].file == file)
            drop_object (fake, &fake->objects[i]);
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == file && fake->exports[i].memory >= 0) {
            fake->memories[fake->exports[i].memory].references--;
            fake->exports[i].memory = -1;
            fake->exports[i].file = 0;
        }
    rm_close_file (fake->rm, file);
}

static uint32_t named_by (uint32_t class, const void *params)
{
    if (params == NULL)
        return 0;
    switch (class) {
    case KEPLER_CHANNEL_GROUP_A:
        return ((const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *) params)->hVASpace;
    case FERMI_CONTEXT_SHARE_A:
        return ((const NV_CTXSHARE_ALLOCATION_PARAMETERS *) params)->hVASpace;
    case 0x70:
        return ((const NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS *) params)->hVASpace;
    default:
        return 0;
    }
}

/* handle: what the caller wants, 0 for any; what it got. params: of a device, a group; bytes: of a piece of memory. */
uint32_t fake_make (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent_handle, uint32_t *handle, uint32_t class,
                    const void *params, uint64_t *bytes)
{
    struct fake_object *parent = fake_find (fake, client, parent_handle), *object;

    if (class == NV01_ROOT_CLIENT || class == NV01_ROOT || class == NV01_ROOT_NON_PRIV) {
        object = new_object (fake);
        object->client = object->handle = ++fake->next_client;
        object->file = file;
        object->class = class;
        *handle = object->handle;
        return 0;
    }
    if (parent == NULL || fake_sure (fake, client, client)->file != file)
        return NV_ERR_INVALID_OBJECT_HANDLE;
    if (*handle != 0 && fake_find (fake, client, *handle) != NULL)
        return NV_ERR_INSERT_DUPLICATE_NAME;
    if (class == FERMI_TWOD_A || (class & 0xff) == 0x97) {
        if (fake->mode == NV2080_GR_PREEMPTION_COMPUTE_CILP)
            return NV_ERR_INVALID_OBJECT;
        fake->draws = true;
    }
    object = new_object (fake);
    object->client = client;
    object->handle = *handle != 0 ? *handle : ++fake->next_handle;
    object->parent = parent_handle;
    object->class = class;
    object->file = file;
    object->instance = parent->instance;
    object->names = named_by (class, params);
    if (class == NV01_DEVICE_0 && params != NULL)
        object->instance = ((const NV0080_ALLOC_PARAMETERS *) params)->deviceId;
    if (class == KEPLER_CHANNEL_GROUP_A && params != NULL)
        object->engine = ((const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *) params)->engineType;
    if (bytes != NULL) {
        *bytes = (*bytes + fake->granule - 1) / fake->granule * fake->granule;
        if (fake->grant != 0)
            *bytes = fake->grant;
        object->memory = new_memory (fake, object->instance, *bytes);
    }
    *handle = object->handle;
    return 0;
}

void fake_refer (struct fake *fake, struct fake_object *object, int memory)
{
    object->memory = memory;
    fake->memories[memory].references++;
}

/* As for pages of 4 KiB, to the length asked for, before any bound is looked at: gvaspaceReserveMempool, poolReserve. */
static void reserve_tables (struct fake *fake, uint64_t length)
{
    if (fake->pool < length / 512)
        fake->pool = length / 512;
}

static void reserve_range (struct fake *fake, uint32_t flags, uint64_t length)
{
    if ((flags & NVOS32_ALLOC_FLAGS_SPARSE) != 0)
        flags &= ~NVOS32_ALLOC_FLAGS_LAZY;
    if ((flags & (NVOS32_ALLOC_FLAGS_LAZY | NVOS32_ALLOC_FLAGS_EXTERNALLY_MANAGED)) == 0)
        reserve_tables (fake, length);
}

/* attr, NVOS32_ATTR_LOCATION */
#define ATTRIBUTE_LOCATION 0x6000000u

static uint32_t heap_alloc (struct fake *fake, uint64_t file, NVOS32_PARAMETERS *head)
{
    uint32_t handle = head->data.AllocSize.hMemory, attribute = head->data.AllocSize.attr, status;
    uint64_t bytes = head->data.AllocSize.size;
    bool is_video;

    if (head->function == NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT) {
        attribute = head->data.AllocTiledPitchHeight.attr;
        bytes = (uint64_t) head->data.AllocTiledPitchHeight.height * (uint32_t) head->data.AllocTiledPitchHeight.pitch;
    } else if (head->function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE)
        bytes = head->data.AllocSizeRange.size;
    is_video = (head->data.AllocSize.flags & NVOS32_ALLOC_FLAGS_VIRTUAL) == 0 && (attribute & ATTRIBUTE_LOCATION) == 0;
    if ((head->data.AllocSize.flags & NVOS32_ALLOC_FLAGS_VIRTUAL) != 0)
        reserve_range (fake, head->data.AllocSize.flags, bytes);
    status = fake_make (fake, file, head->hRoot, head->hObjectParent, &handle, NV01_MEMORY_LOCAL_USER, NULL,
                        is_video ? &bytes : NULL);
    if (status != 0)
        return status;
    head->data.AllocSize.hMemory = handle;
    if (!is_video && fake->grant != 0)
        bytes = fake->grant;
    if (head->function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE)
        head->data.AllocSizeRange.size = bytes;
    else
        head->data.AllocSize.size = bytes; /* AllocTiledPitchHeight has it there, too */
    return 0;
}

static uint32_t free_object (struct fake *fake, uint32_t client, uint32_t handle)
{
    struct fake_object *object = fake_find (fake, client != 0 ? client : handle, handle);

    if (object == NULL)
        return NV_ERR_OBJECT_NOT_FOUND;
    drop_object (fake, object);
    return 0;
}

static uint32_t heap (struct fake *fake, uint64_t file, NVOS32_PARAMETERS *head)
{
    switch (head->function) {
    case NVOS32_FUNCTION_FREE:
        return free_object (fake, head->hRoot, head->data.Free.hMemory);
    case NVOS32_FUNCTION_INFO:
        head->total = 1000 * MIB;
        head->free = 900 * MIB;
        head->data.Info.size = 800 * MIB;
        return 0;
    default:
        return heap_alloc (fake, file, head);
    }
}

static uint32_t duplicate (struct fake *fake, uint64_t file, NVOS55_PARAMETERS *head)
{
    struct fake_object *source = fake_find (fake, head->hClientSrc, head->hObjectSrc);
    uint32_t handle = head->hObject, status;

    if (source == NULL)
        return NV_ERR_OBJECT_NOT_FOUND;
    status = fake_make (fake, file, head->hClient, head->hParent, &handle, source->class, NULL, NULL);
    head->hObject = handle;
    if (status == 0 && source->memory >= 0)
        fake_refer (fake, fake_sure (fake, head->hClient, handle), source->memory);
    return status;
}

/* Up to pAllocParms the same for NVOS64. */
static uint32_t alloc_object (struct fake *fake, uint64_t file, NVOS21_PARAMETERS *head, void *params)
{
    NV_MEMORY_ALLOCATION_PARAMS *memory = head->hClass == NV01_MEMORY_LOCAL_USER ? params : NULL;
    const NV00F8_ALLOCATION_PARAMETERS *fabric = head->hClass == NV_MEMORY_FABRIC ? params : NULL;
    uint32_t handle = head->hObjectNew, status;
    uint64_t bytes = memory != NULL ? memory->size : 0;

    if (head->hClass == NV50_MEMORY_VIRTUAL && params != NULL)
        reserve_range (fake, ((const NV_MEMORY_ALLOCATION_PARAMS *) params)->flags,
                       ((const NV_MEMORY_ALLOCATION_PARAMS *) params)->size);
    status = fake_make (fake, file, head->hRoot, head->hObjectParent, &handle, head->hClass, params,
                        head->hClass == NV01_MEMORY_LOCAL_USER ? &bytes : NULL);
    if (status != 0)
        return status;
    head->hObjectNew = handle;
    if (memory != NULL)
        memory->size = bytes;
    if (fabric != NULL && fabric->map.hVidMem != 0)
        fake_refer (fake, fake_sure (fake, head->hRoot, handle), fake_sure (fake, head->hRoot, fabric->map.hVidMem)->memory);
    return 0;
}

long fake_driver (struct fake *fake, uint64_t file, uint32_t request, void *head, void *params, void *list)
{
    uint32_t status = fake->next_status;
    NVOS02_PARAMETERS *memory = head;
    NVOS00_PARAMETERS *freed = head;

    if (fake->meanwhile != NULL && !fake->is_meanwhile) {
        fake->is_meanwhile = true;
        fake->meanwhile (fake);
        fake->is_meanwhile = false;
        fake->calls++;
    }
    fake->next_status = 0;
    switch (rm_request_number (request)) {
    case NV_ESC_RM_ALLOC:
        if (status == 0)
            status = alloc_object (fake, file, head, params);
        if (rm_request_size (request) == sizeof (NVOS21_PARAMETERS))
            ((NVOS21_PARAMETERS *) head)->status = status;
        else
            ((NVOS64_PARAMETERS *) head)->status = status;
        return 0;
    case NV_ESC_RM_FREE:
        freed->status = status != 0 ? status : free_object (fake, freed->hRoot, freed->hObjectOld);
        return 0;
    case NV_ESC_RM_CONTROL:
        ((NVOS54_PARAMETERS *) head)->status = status != 0 ? status : fake_answer (fake, file, head, params, list);
        return 0;
    case NV_ESC_RM_DUP_OBJECT:
        ((NVOS55_PARAMETERS *) head)->status = status != 0 ? status : duplicate (fake, file, head);
        return 0;
    case NV_ESC_RM_VID_HEAP_CONTROL:
        ((NVOS32_PARAMETERS *) head)->status = status != 0 ? status : heap (fake, file, head);
        return 0;
    case NV_ESC_RM_SHARE:
        fake->shares++;
        fake->last_share = *(const NVOS57_PARAMETERS *) head;
        return 0;
    case NV_ESC_RM_IDLE_CHANNELS:
        fake->idle_us = ((const NVOS30_PARAMETERS *) head)->timeout;
        return 0;
    case NV_ESC_RM_MAP_MEMORY_DMA:
        reserve_tables (fake, ((const NVOS46_PARAMETERS *) head)->length);
        /* fall through */
    case NV_ESC_RM_UNMAP_MEMORY_DMA:
        fake->mappings++;
        set32 (head, rm_request_size (request) - 8, status);
        return 0;
    case NV_ESC_RM_ALLOC_MEMORY:
        if (memory->hClass == NV01_MEMORY_LOCAL_USER)
            memory->limit = 1000 * MIB - 1;
        memory->status = status;
        return 0;
    default:
        return 0;
    }
}
