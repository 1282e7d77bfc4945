/* Classes: their parents, the sizes of their parameters, the privilege that they need. Runs as manager.c, under
 * manager->lock. */
#include "manager_state.h"
#include "versions.h"

#include <stdlib.h>
#include <string.h>

enum class_flag { CLASS_NEEDS_PARAMS = 1, CLASS_PRIVILEGED = 2, CLASS_UNSUPPORTED = 4 };

struct class_row {
    uint32_t number;
    enum kind kind;
    uint32_t parents; /* kinds */
    uint32_t size;    /* of the parameters; 0: they are ignored */
    enum version_struct varying; /* the size by release, in place of `size` */
    uint32_t flags;
};

#define BELOW_GPU (KIND_DEVICE | KIND_SUBDEVICE)

static const struct class_row rows[] = {
    { 0x00, KIND_CLIENT, 0, 0, 0, 0 },
    { 0x01, KIND_CLIENT, 0, 0, 0, 0 },
    { 0x41, KIND_CLIENT, 0, 0, 0, 0 },
    { 0x80, KIND_DEVICE, KIND_CLIENT, 56, 0, 0 },
    { 0x2080, KIND_SUBDEVICE, KIND_DEVICE, 4, 0, 0 },
    { 0x40, KIND_MEMORY, BELOW_GPU, 0, VERSION_MEMORY, CLASS_NEEDS_PARAMS },   /* video memory */
    { 0x3E, KIND_MEMORY, KIND_DEVICE, 0, VERSION_MEMORY, CLASS_NEEDS_PARAMS },   /* system memory */
    { 0x3F, KIND_OTHER, BELOW_GPU, 0, 0, 0 },                       /* registers */
    { 0x50A0, KIND_OTHER, BELOW_GPU, 0, VERSION_MEMORY, CLASS_NEEDS_PARAMS },  /* a range of addresses */
    { 0x70, KIND_OTHER, BELOW_GPU, 0, 0, 0 },                       /* the same, another way */
    { 0x71, KIND_OTHER, BELOW_GPU, 0, 0, 0 },                       /* the caller's own memory */
    { 0x81, KIND_OTHER, BELOW_GPU, 0, 0, CLASS_PRIVILEGED },        /* lists of pages */
    { 0x82, KIND_OTHER, BELOW_GPU, 0, 0, CLASS_PRIVILEGED },
    { 0x83, KIND_OTHER, BELOW_GPU, 0, 0, CLASS_PRIVILEGED },
    { 0xC2, KIND_OTHER, BELOW_GPU, 0, 0, CLASS_PRIVILEGED },        /* video memory by address */
    { 0xDE, KIND_OTHER, KIND_SUBDEVICE, 0, VERSION_COUNTERS, 0 },                  /* page of counters (RUSD) */
    { 0xA06C, KIND_GROUP, KIND_DEVICE, 20, 0, CLASS_NEEDS_PARAMS },
    { 0x9067, KIND_OTHER, KIND_GROUP, 12, 0, CLASS_NEEDS_PARAMS },  /* context share */
    { 0x90F1, KIND_OTHER, BELOW_GPU, 0, VERSION_SPACE, 0 },                   /* address space */
    { 0x2081, KIND_OTHER, KIND_SUBDEVICE, 0, 0, 0 },
    { 0x208F, KIND_OTHER, KIND_SUBDEVICE, 0, 0, 0 },
    { CLASS_THIRD_PARTY, KIND_OTHER, KIND_SUBDEVICE, 4, 0, 0 },     /* memory for other devices */
    { CLASS_EVENT_BUFFER, KIND_OTHER, KIND_CLIENT, 72, 0, CLASS_NEEDS_PARAMS },
    { CLASS_DEVICELESS, KIND_OTHER, KIND_CLIENT, 0, VERSION_MEMORY, CLASS_NEEDS_PARAMS },
    { 0x90E6, KIND_OTHER, KIND_SUBDEVICE, 0, 0, 0 },
    { 0x79, KIND_OTHER, KIND_ANY, 0, 0, 0 },                        /* event */
    { 0x83DE, KIND_OTHER, KIND_ANY, 0, 0, 0 },                      /* debugger */
    { 0xCB33, KIND_OTHER, KIND_CLIENT, 0, 0, 0 },                   /* confidential compute */
    { 0xC637, KIND_OTHER, KIND_SUBDEVICE, 0, 0, 0 },                /* MIG subscriptions */
    { 0xC638, KIND_OTHER, KIND_ANY, 0, 0, 0 },
    { 0xC639, KIND_OTHER, KIND_CLIENT, 0, 0, 0 },
    { 0xC640, KIND_OTHER, KIND_CLIENT, 0, 0, 0 },
    { 0x73, KIND_OTHER, KIND_DEVICE, 0, 0, CLASS_UNSUPPORTED },     /* displays: a data centre GPU has none */
};

/* Families with a new class for every architecture: the last byte is the kind. */
static const struct class_row channel_row = { 0, KIND_CHANNEL, KIND_GROUP | KIND_DEVICE, 0, VERSION_CHANNEL, CLASS_NEEDS_PARAMS };
static const struct class_row engine_row = { 0, KIND_OTHER, KIND_CHANNEL, 0, 0, 0 };
static const struct class_row usermode_row = { 0, KIND_OTHER, KIND_SUBDEVICE, 0, 0, 0 };

static const struct class_row *row_of (uint32_t number)
{
    for (size_t i = 0; i < sizeof (rows) / sizeof (rows[0]); i++) {
        if (rows[i].number == number)
            return &rows[i];
    }
    if (number < 0xC000 || number > 0xCFFF)
        return NULL;
    switch (number & 0xff) {
    case 0x6F:
        return &channel_row;
    case 0xC0: /* compute */
    case 0xB5: /* copy */
    case 0x97: /* graphics */
        return &engine_row;
    case 0x61:
        return &usermode_row;
    default:
        return NULL;
    }
}

static uint32_t row_size (const struct manager *manager, const struct class_row *row)
{
    return row->varying != VERSION_NONE ? version_size (row->varying, manager->release) : row->size;
}

uint32_t class_params_size (const struct manager *manager, uint32_t class_number)
{
    const struct class_row *row = row_of (class_number);

    return row != NULL ? row_size (manager, row) : 0;
}

/* A device has one subdevice of each instance (subdeviceConstruct_IMPL). */
static bool has_another (const struct object *subdevice)
{
    for (const struct object *each = subdevice->parent->child; each != NULL; each = each->next)
        if (each != subdevice && each->kind == KIND_SUBDEVICE)
            return true;
    return false;
}

static bool is_graphics (uint32_t number) { return row_of (number) == &engine_row && (number & 0xff) != 0xB5; }

/* params: NULL where the class needs none and the call has none. */
static enum status set_up (struct request *request, struct object *object, uint8_t *params)
{
    if (object->kind == KIND_SUBDEVICE && has_another (object))
        return STATUS_INSUFFICIENT_RESOURCES;
    if (is_graphics (object->class_number))
        return channel_compute (request, object->parent);
    if (params == NULL) /* a device or subdevice: the first one */
        return object->kind == KIND_DEVICE && request->manager->gpus == 0 ? STATUS_INVALID_ARGUMENT : STATUS_OK;
    uint32_t index = get32 (params, 0);

    switch (object->kind) {
    case KIND_DEVICE:
        if (index >= request->manager->gpus)
            return STATUS_INVALID_ARGUMENT;
        object->gpu = index;
        return STATUS_OK;
    case KIND_SUBDEVICE:
        return index == 0 ? STATUS_OK : STATUS_INVALID_ARGUMENT;
    case KIND_MEMORY:
        request->params_changed = true;
        return memory_allocate (request, object, params);
    case KIND_GROUP:
        return group_allocate (request, object, get32 (params, 12));
    case KIND_CHANNEL:
        put32 (params, 296, object->client->process);
        return channel_allocate (request, object, get32 (params, 128));
    default:
        return object->class_number == CLASS_EVENT_BUFFER || object->class_number == CLASS_DEVICELESS
                   ? trace_allocate (object, params)
                   : STATUS_OK;
    }
}

/* given: the size that the call says its params have. */
static enum status allocate (struct request *request, uint32_t given)
{
    uint8_t *head = request->head;
    uint32_t number = get32 (head, 12);
    const struct class_row *row = row_of (number);
    struct client *client;
    struct object *parent, *object;
    enum status status;

    if (row == NULL)
        return STATUS_INVALID_CLASS;
    if (row->kind == KIND_CLIENT) {
        if (get32 (head, 8) != 0)
            return STATUS_INVALID_ARGUMENT; /* the manager chooses handles of clients */
        client = client_create (request, number);
        if (client == NULL)
            return STATUS_INSUFFICIENT_RESOURCES;
        put32 (head, 0, client->root.handle);
        put32 (head, 4, client->root.handle);
        put32 (head, 8, client->root.handle);
        return STATUS_OK;
    }
    client = client_of (request, get32 (head, 0));
    if (client == NULL)
        return client_error (request, get32 (head, 0));
    if (row->flags & CLASS_UNSUPPORTED)
        return STATUS_NOT_SUPPORTED;
    if ((row->flags & CLASS_PRIVILEGED) && !request->caller->privileged (request->caller->context))
        return STATUS_INSUFFICIENT_PERMISSIONS;
    uint32_t size = row_size (request->manager, row);
    if (size != 0 && given != 0 && given != size)
        return STATUS_INVALID_PARAM_STRUCT;
    if ((row->flags & CLASS_NEEDS_PARAMS) && request->params == NULL)
        return STATUS_INVALID_ARGUMENT;
    /* A parent that is not there is another error than a wrong one; 0 is not there (H100, 580.159.04). */
    parent = object_find (client, get32 (head, 4));
    if (parent == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    if (!(parent->kind & row->parents))
        return STATUS_INVALID_OBJECT_PARENT;
    status = object_create (client, parent, get32 (head, 8), row->kind, &object);
    if (status != STATUS_OK)
        return status;
    object->class_number = number;
    if (size != 0 && request->params != NULL) {
        size_t tail = size < sizeof (object->params_tail) ? size : sizeof (object->params_tail);
        object->params_size = size;
        memcpy (object->params_tail, request->params + size - tail, tail);
    }
    status = set_up (request, object, size != 0 ? request->params : NULL);
    if (status != STATUS_OK) {
        object_destroy (object);
        return status;
    }
    put32 (head, 8, object->handle);
    return STATUS_OK;
}

/* NV_ESC_RM_ALLOC: NVOS21 (32 bytes) or NVOS64 (48). The caller writes the returned status. */
enum status class_allocate (struct request *request)
{
    return allocate (request, get32 (request->head, request->head_size == 48 ? 32 : 24));
}

/* NV_ESC_RM_ALLOC_OBJECT: NVOS05 (20 bytes), the same without params (rmapi_deprecated_misc.c). */
enum status class_allocate_object (struct request *request) { return allocate (request, 0); }

/* NV_ESC_RM_ALLOC_MEMORY: NVOS02 and a descriptor (56 bytes). */
enum status class_allocate_memory (struct request *request)
{
    uint8_t *head = request->head;
    uint32_t number = get32 (head, 12);
    struct client *client = client_of (request, get32 (head, 0));
    struct object *parent, *object;
    enum status status;

    if (client == NULL)
        return client_error (request, get32 (head, 0));
    parent = object_find (client, get32 (head, 4));
    if (parent == NULL || !(parent->kind & BELOW_GPU))
        return STATUS_INVALID_OBJECT_PARENT;
    if (number == 0x40 && !request->caller->privileged (request->caller->context))
        return STATUS_INSUFFICIENT_PERMISSIONS; /* here it means the whole of the video memory */
    if (number != 0x3E && number != 0x3F && number != 0x40 && number != 0x71)
        return STATUS_INVALID_CLASS;
    status = object_create (client, parent, get32 (head, 8), number == 0x3E ? KIND_MEMORY : KIND_OTHER, &object);
    if (status != STATUS_OK)
        return status;
    object->class_number = number;
    if (number == 0x3E) {
        uint64_t bytes = get64 (head, 32);
        status = bytes >= UINT64_C (1) << 50
                     ? STATUS_NO_MEMORY
                     : piece_create (request->manager, object->gpu, false, (bytes + 4096) & ~UINT64_C (4095), &object->memory);
    }
    if (status != STATUS_OK) {
        object_destroy (object);
        return status;
    }
    put32 (head, 8, object->handle);
    return STATUS_OK;
}

/* NV_ESC_RM_FREE. Free of a missing object succeeds, as with the real driver. */
enum status class_free (struct request *request)
{
    uint32_t handle = get32 (request->head, 8);
    struct client *client = client_of (request, get32 (request->head, 0));
    struct object *object;

    if (client == NULL)
        return client_error (request, get32 (request->head, 0));
    object = object_find (client, handle);
    if (object == &client->root)
        client_destroy (client);
    else if (object != NULL)
        object_destroy (object);
    pthread_cond_broadcast (&request->manager->changed);
    return STATUS_OK;
}
