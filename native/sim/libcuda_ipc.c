/* cuMemAlloc's memory in other processes: the owner permits all clients to duplicate the object, the importer
 * duplicates it. Runs in the program's process, on the calling thread, under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ESCAPE_SHARE = 0x35, ESCAPE_DUPLICATE = 0x34, SHARE_ALL = 1, MAY_DUPLICATE = 1 };
#define MAGIC 0x6370696du

/* The content of a CUipcMemHandle. The layout is not that of the real library, which is not public. */
struct content {
    uint32_t magic, process, client, object;
    uint64_t size, offset, length;
    uint8_t uuid[16];
};
_Static_assert (sizeof (struct content) <= sizeof (CUipcMemHandle), "fits");

struct share_call {
    uint32_t client, object, target, access;
    uint16_t type;
    uint8_t action, pad;
    uint32_t status;
};
struct duplicate_call {
    uint32_t client, parent, object, source_client, source_object, flags, status;
};
_Static_assert (sizeof (struct share_call) == 24 && sizeof (struct duplicate_call) == 28, "the driver's sizes");

struct imported {
    struct cuda_entry entry;
    struct cuda_memory memory;
    uint64_t base, reserved;
};

CUresult cuIpcGetMemHandle (CUipcMemHandle *handle, CUdeviceptr pointer)
{
    CUcontext context;
    struct content content = { .magic = MAGIC, .process = (uint32_t) getpid () };
    struct share_call call = { .access = MAY_DUPLICATE, .type = SHARE_ALL };
    struct cuda_memory memory;

    CUDA_ENTER_CONTEXT (context);
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (handle == NULL || entry == NULL || !cuda_memory_behind (entry, &memory, &content.offset))
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    content.client = call.client = cuda.rm.client;
    content.object = call.object = memory.object;
    content.size = memory.size;
    content.length = entry->size;
    memcpy (content.uuid, entry->context->device->uuid, sizeof (content.uuid));
    uint32_t status = rm_call (cuda.rm.control, ESCAPE_SHARE, &call, sizeof (call));
    if (status == RM_STATUS_OK)
        status = call.status;
    memset (handle, 0, sizeof (*handle));
    memcpy (handle, &content, sizeof (content));
    return CUDA_LEAVE (cuda_status (status));
}

static CUresult duplicate (CUcontext context, const struct content *content, struct imported *imported)
{
    struct duplicate_call call = { .client = cuda.rm.client,
                                   .parent = context->device->device,
                                   .object = cuda_new_handle (),
                                   .source_client = content->client,
                                   .source_object = content->object };
    uint32_t status = rm_call (cuda.rm.control, ESCAPE_DUPLICATE, &call, sizeof (call));

    if (status == RM_STATUS_OK)
        status = call.status;
    if (status != RM_STATUS_OK) {
        cuda_give_handle (call.object);
        return CUDA_ERROR_INVALID_VALUE; /* freed meanwhile, or it never existed */
    }
    imported->memory = (struct cuda_memory) { .object = call.object, .size = content->size };
    imported->reserved = cuda_round (content->size, CUDA_BLOCK);
    imported->base = cuda_reserve (imported->reserved, CUDA_BLOCK);
    if (imported->base != 0 &&
        cuda_memory_place (context->device, &imported->memory, imported->base, imported->reserved) == CUDA_SUCCESS &&
        cuda_add (&imported->entry, KIND_IMPORTED, context, imported->base + content->offset, content->length))
        return CUDA_SUCCESS;
    cuda_memory_free (context->device, &imported->memory);
    if (imported->base != 0)
        cuda_unreserve (imported->base, imported->reserved);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcOpenMemHandle_v2 (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    CUcontext context;
    struct content content;

    CUDA_ENTER_CONTEXT (context);
    memcpy (&content, &handle, sizeof (content));
    if (pointer == NULL || flags > 1 || content.magic != MAGIC || content.size == 0 || content.length == 0 ||
        content.offset >= content.size || memcmp (content.uuid, context->device->uuid, 16) != 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (content.process == (uint32_t) getpid () && content.client == cuda.rm.client)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_CONTEXT);
    struct imported *imported = calloc (1, sizeof (*imported));
    CUresult result = imported != NULL ? duplicate (context, &content, imported) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *pointer = imported->entry.start;
    else
        free (imported);
    return CUDA_LEAVE (result);
}
CUDA_ALIAS (cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2);

void cuda_imported_release (struct cuda_entry *entry)
{
    struct imported *imported = (struct imported *) entry;

    cuda_remove (entry);
    cuda_memory_free (entry->context->device, &imported->memory);
    cuda_unreserve (imported->base, imported->reserved);
    free (imported);
}

CUresult cuIpcCloseMemHandle (CUdeviceptr pointer)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find_address (pointer);
    if (entry == NULL || entry->kind != KIND_IMPORTED || entry->start != pointer)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    cuda_imported_release (entry);
    return CUDA_LEAVE (CUDA_SUCCESS);
}
