/* Queries of the machine, its GPUs and their memory. Runs as manager.c, under manager->lock. */
#include "manager_state.h"

#include <string.h>

static uint32_t gpu_id (const struct manager *manager, uint32_t gpu)
{
    const struct machine_gpu *description = &manager->machine->gpus[gpu];

    return description->domain << 16 | description->bus << 8 | description->device;
}

static int by_id (const struct manager *manager, uint32_t id)
{
    for (uint32_t i = 0; i < manager->gpus; i++) {
        if (gpu_id (manager, i) == id)
            return (int) i;
    }
    return -1;
}

/* Three strings through three pointers: version, its branch, its title. With a NULL among them: their lengths. */
enum status control_build_version (struct request *request, struct object *object)
{
    (void) object;
    const char *text = request->manager->machine->driver;
    size_t size = strlen (text) + 1;

    request->params_changed = true;
    for (size_t i = 0; i < 3; i++) {
        if (get64 (request->params, 8 + 8 * i) == 0) {
            put32 (request->params, 0, (uint32_t) size);
            return STATUS_OK;
        }
    }
    if (get32 (request->params, 0) < size)
        return STATUS_INVALID_PARAM_STRUCT;
    for (size_t i = 0; i < 3; i++) {
        request->late[i].address = get64 (request->params, 8 + 8 * i);
        request->late[i].from = text;
        request->late[i].size = size;
    }
    put64 (request->params, 32, 0);
    return STATUS_OK;
}

/* Attached (128 bytes) or probed (384): an array of ids, the rest invalid. */
enum status control_ids (struct request *request, struct object *object)
{
    (void) object;
    memset (request->params, 0xff, request->params_size);
    for (uint32_t i = 0; i < request->manager->gpus; i++)
        put32 (request->params, 4 * (size_t) i, gpu_id (request->manager, i));
    if (request->params_size == 384) /* from 580 on: the reason of their exclusion, 32 words */
        memset (request->params + 256, 0, 128);
    request->params_changed = true;
    return STATUS_OK;
}

/* GET_ID_INFO (40 bytes, a pointer to a name in the middle) and its second version (32). */
enum status control_id_info (struct request *request, struct object *object)
{
    (void) object;
    uint8_t *params = request->params;
    int gpu = by_id (request->manager, get32 (params, 0));
    size_t rest = request->params_size == 40 ? 24 : 16;

    if (gpu < 0)
        return STATUS_INVALID_ARGUMENT;
    put32 (params, 4, 1); /* in use */
    put32 (params, 8, (uint32_t) gpu);
    put32 (params, 12, 0);
    put32 (params, rest, 0);
    put32 (params, rest + 4, get32 (params, 0));
    put32 (params, rest + 8, (uint32_t) gpu);
    put32 (params, rest + 12, UINT32_MAX); /* no NUMA node */
    request->params_changed = true;
    return STATUS_OK;
}

enum status control_pci_info (struct request *request, struct object *object)
{
    (void) object;
    int gpu = by_id (request->manager, get32 (request->params, 0));

    if (gpu < 0)
        return STATUS_INVALID_ARGUMENT;
    const struct machine_gpu *description = &request->manager->machine->gpus[gpu];
    put32 (request->params, 4, description->domain);
    put16 (request->params, 8, (uint16_t) description->bus);
    put16 (request->params, 10, (uint16_t) description->device);
    request->params_changed = true;
    return STATUS_OK;
}

enum status control_address_space (struct request *request, struct object *object)
{
    struct object *named = object_find (object->client, get32 (request->params, 0));

    if (named == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    /* What has no registers of its own (gpuresGetMapAddrSpace_IMPL). */
    if ((named->kind & (KIND_DEVICE | KIND_SUBDEVICE | KIND_GROUP)) || named->class_number == CLASS_SPACE ||
        named->class_number == CLASS_CONTEXT_SHARE)
        return STATUS_NOT_SUPPORTED;
    uint32_t type = 3; /* registers */
    if (named->memory.piece != NULL)
        type = named->memory.piece->video ? 2 : 1;
    else if (named->class_number == 0xDE || named->class_number == 0x71)
        type = 1;
    put32 (request->params, 8, type);
    request->params_changed = true;
    return STATUS_OK;
}

/* NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS: 0 object, 4 what is asked (1 its parent, 2 its class), 8 the answer. */
enum status control_handle_info (struct request *request, struct object *object)
{
    const struct object *named = object_find (object->client, get32 (request->params, 0));

    if (named == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    switch (get32 (request->params, 4)) {
    case 1:
        put32 (request->params, 8, named->parent != NULL ? named->parent->handle : 0);
        break;
    case 2:
        put32 (request->params, 8, named->class_number);
        break;
    default:
        return STATUS_INVALID_ARGUMENT;
    }
    request->params_changed = true;
    return STATUS_OK;
}

#define SURFACE_PHYS_SIZE 7 /* in 4 KiB */

enum status control_surface_info (struct request *request, struct object *object)
{
    const struct piece *piece = object->memory.piece;

    for (uint32_t at = 0; at + 8 <= request->list_size; at += 8)
        if (get32 (request->list, at) == SURFACE_PHYS_SIZE)
            put32 (request->list, at + 4, piece != NULL ? (uint32_t) (piece->reported >> 12) : 0);
    return STATUS_OK;
}

/* index, flags (1:0 format, 2 is binary; ASCII otherwise), length, 256 bytes. */
enum status control_gid (struct request *request, struct object *object)
{
    uint8_t *params = request->params;
    const char *text = request->manager->machine->gpus[object->gpu].uuid;

    memset (params + 12, 0, 256);
    if ((get32 (params, 4) & 3) == 2) {
        memcpy (params + 12, request->manager->uuids[object->gpu], 16);
        put32 (params, 8, 16);
    } else {
        memcpy (params + 12, text, strlen (text));
        put32 (params, 8, (uint32_t) strlen (text) + 1);
    }
    request->params_changed = true;
    return STATUS_OK;
}

/* MSENC_GET_CAPS: exactly five bytes. */
enum status control_encoder_caps (struct request *request, struct object *object)
{
    (void) object;
    if (request->list_size != 5)
        return STATUS_INVALID_ARGUMENT;
    memset (request->list, 1, request->list_size);
    return STATUS_OK;
}

/* Entries of {index, KiB}. */
static void fb_entries (const struct manager *manager, uint32_t gpu, uint8_t *entries, uint32_t count)
{
    uint64_t total = manager->machine->gpus[gpu].memory >> 10;
    uint64_t heap = memory_capacity (manager, gpu) >> 10;
    uint64_t available = heap - (manager->used[gpu] >> 10);

    for (uint32_t i = 0; i < count; i++) {
        uint64_t value = 0;
        switch (get32 (entries, 8 * (size_t) i)) {
        case 0x07: /* RAM */
        case 0x08: /* all RAM */
        case 0x20: /* usable */
            value = total;
            break;
        case 0x09: /* heap */
            value = heap;
            break;
        case 0x12: /* largest free region */
        case 0x16: /* free */
            value = available;
            break;
        case 0x05: /* visible to the processor at once */
        case 0x1D:
        case 0x1F:
            value = UINT64_C (256) << 20;
            break;
        case 0x3B: /* NUMA node: none */
            value = UINT32_MAX;
            break;
        default:
            break;
        }
        put32 (entries, 8 * (size_t) i + 4, (uint32_t) value);
    }
}

enum status control_fb_info (struct request *request, struct object *object)
{
    uint32_t count = get32 (request->params, 0);

    if (count > (request->params_size - 4) / 8)
        return STATUS_INVALID_ARGUMENT;
    fb_entries (request->manager, object->gpu, request->params + 4, count);
    request->params_changed = true;
    return STATUS_OK;
}

enum status control_fb_info_list (struct request *request, struct object *object)
{
    if (request->list == NULL)
        return get32 (request->params, 0) == 0 ? STATUS_OK : STATUS_INVALID_ADDRESS;
    fb_entries (request->manager, object->gpu, request->list, request->list_size / 8);
    return STATUS_OK;
}
