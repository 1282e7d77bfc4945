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
static struct fake_object *sure (struct fake *fake, uint32_t client, uint32_t handle)
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
            fake->memories[i] = (struct fake_memory) {bytes, 1, instance};
            return i;
        }
    abort ();
}

static void drop_object (struct fake *fake, struct fake_object *object)
{
    object->live = false;
    for (unsigned i = 0; i < fake->object_count; i++) {
        struct fake_object *at = &fake->objects[i];

        if (at->live && at->client == object->client && at->parent == object->handle && at->handle != object->handle)
            drop_object (fake, at);
    }
    if (object->memory >= 0)
        fake->memories[object->memory].references--;
}

void fake_close_file (struct fake *fake, uint64_t file)
{
    for (unsigned i = 0; i < fake->object_count; i++)
        if (fake->objects[i].live && fake->objects[i].client == fake->objects[i].handle &&
            fake->objects[i].file == file)
            drop_object (fake, &fake->objects[i]);
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == file && fake->exports[i].memory >= 0) {
            fake->memories[fake->exports[i].memory].references--;
            fake->exports[i].memory = -1;
            fake->exports[i].file = 0;
        }
    rm_close_file (fake->rm, file);
}

uint64_t fake_bytes (const struct fake *fake, uint32_t instance)
{
    uint64_t sum = 0;

    for (int i = 0; i < FAKE_MEMORIES; i++)
        if (fake->memories[i].references > 0 && fake->memories[i].instance == instance)
            sum += fake->memories[i].bytes;
    return sum;
}

/* 0x33: invalid object; 0x57: no such object */
static uint32_t alloc (struct fake *fake, uint64_t file, uint32_t client, uint32_t parent_handle, uint8_t *head,
                       uint32_t handle_at, uint32_t class, uint8_t *params, uint64_t *bytes)
{
    struct fake_object *parent = fake_find (fake, client, parent_handle), *object;
    uint32_t handle = get32 (head, handle_at);

    if (class == 0x41 || class == 0 || class == 1) {
        object = new_object (fake);
        object->client = object->handle = ++fake->next_client;
        object->file = file;
        object->class = class;
        set32 (head, handle_at, object->handle);
        return 0;
    }
    if (parent == NULL || sure (fake, client, client)->file != file)
        return 0x33;
    if (handle != 0 && fake_find (fake, client, handle) != NULL)
        return 0x19;
    object = new_object (fake);
    object->client = client;
    object->handle = handle != 0 ? handle : ++fake->next_handle;
    object->parent = parent_handle;
    object->class = class;
    object->file = file;
    object->instance = class == 0x80 && params != NULL ? get32 (params, 0) : parent->instance;
    if (class == 0xa06c)
        object->engine = get32 (params, 12);
    if (bytes != NULL) {
        *bytes = (*bytes + fake->granule - 1) / fake->granule * fake->granule;
        if (fake->grant != 0)
            *bytes = fake->grant;
        object->memory = new_memory (fake, object->instance, *bytes);
    }
    set32 (head, handle_at, object->handle);
    return 0;
}

static uint32_t fb_info (struct fake *fake, const struct fake_object *subdevice, uint8_t *pairs, uint32_t count)
{
    (void) fake;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = get32 (pairs, 8 * i);
        bool is_total = index == 7 || index == 8 || index == 9 || index == 0x20;

        set32 (pairs, 8 * i + 4,
               is_total ? 1000 * 1024 : index == 0x16 ||
                   index == 0x12 ? 900 * 1024 : 7000 + index + subdevice->instance);
    }
    return 0;
}

static void export_one (struct fake *fake, uint64_t file, struct fake_object *object, uint32_t slot)
{
    fake->memories[object->memory].references++;
    fake->exports[fake->export_count++] = (struct fake_export) {file, object->memory, slot};
}

static uint32_t import_one (struct fake *fake, uint64_t by, uint64_t file, uint32_t client, uint32_t parent,
                            uint8_t *params,
                            uint32_t at, uint32_t slot)
{
    for (unsigned i = 0; i < fake->export_count; i++)
        if (fake->exports[i].file == file && fake->exports[i].slot == slot && fake->exports[i].memory >= 0) {
            uint32_t status = alloc (fake, by, client, parent, params, at, 0x40, NULL, NULL);

            if (status != 0)
                return status;
            sure (fake, client, get32 (params, at))->memory = fake->exports[i].memory;
            fake->memories[fake->exports[i].memory].references++;
            return 0;
        }
    return 0x57;
}

static uint32_t disable_channels (struct fake *fake, const uint8_t *params)
{
    uint32_t count = get32 (params, 4);

    fake->disable_calls++;
    if (count > 64)
        return 0x1f;
    if (count > fake->largest_batch)
        fake->largest_batch = count;
    for (uint32_t i = 0; i < count; i++) {
        struct fake_object *channel = fake_find (fake, get32 (params, 24 + 4 * i), get32 (params, 280 + 4 * i));

        if (channel == NULL || channel->class != 0xc86f)
            return 0x33;
        if (params[0])
            channel->frozen++;
        else if (channel->frozen != 0)
            channel->frozen--;
    }
    return 0;
}

static uint32_t control (struct fake *fake, uint64_t file, uint8_t *head, uint8_t *params, uint8_t *list)
{
    uint32_t client = get32 (head, 0), number = get32 (head, 8);
    struct fake_object *object = fake_find (fake, client, get32 (head, 4)), *other;

    if (object == NULL || sure (fake, client, client)->file != file)
        return 0x23;
    switch (number) {
    case 0x2080014a:
        fake->gid_calls++;
        if (fake->no_gid || get32 (params, 4) != 2 || get32 (head, 24) != 268)
            return 0x56;
        set32 (params, 8, 16);
        memcpy (params + 12, fake_uuid[object->instance], 16);
        return 0;
    case 0x20801303:
        return fb_info (fake, object, params + 4, get32 (params, 0));
    case 0x20801301:
        return fb_info (fake, object, list, get32 (params, 0));
    case 0x2080110b:
        return object->class == 0x2080 ? disable_channels (fake, params) : 0x33;
    case 0xa06c0103:
        fake->slice_calls++;
        object->slice = get64 (params, 0);
        return 0;
    case 0xa06c0104:
        set64 (params, 0, object->slice);
        return 0;
    case 0x3d05:
        other = fake_find (fake, client, get32 (params, 12));
        if (other == NULL || other->memory < 0)
            return 0x57;
        export_one (fake, get32 (params, 16), other, 0);
        return 0;
    case 0x3d0b:
        for (uint32_t i = 0; i < get16 (params, 2124); i++) {
            other = fake_find (fake, client, get32 (params, 76 + 4 * i));
            if (other == NULL || other->memory < 0)
                return 0x57;
            export_one (fake, get32 (params, 0), other, get16 (params, 2126) + i);
        }
        return 0;
    case 0x3d06:
        return import_one (fake, file, get32 (params, 0), client, get32 (params, 12), params, 16, 0);
    case 0x3d0c:
        for (uint32_t i = 0; i < get16 (params, 648); i++)
            if (import_one (fake, file, get32 (params, 0), client, get32 (params, 4), params, 8 + 4 * i,
                            get16 (params, 650) + i) != 0)
                return 0x57;
        return 0;
    default:
        return 0;
    }
}

static uint32_t heap (struct fake *fake, uint64_t file, uint8_t *head)
{
    uint32_t client = get32 (head, 0), function = get32 (head, 8);
    uint32_t at = function == 14 ? 80 : 88;
    uint64_t bytes = function == 6 ? (uint64_t) get32 (head, 56) * get32 (head, 60) : get64 (head, at);
    bool is_video = (get32 (head, 52) & 0x80000) == 0 && (get32 (head, function == 6 ? 64 : 56) & 0x6000000) == 0;
    struct fake_object *object;
    uint32_t status;

    if (function == 3) {
        object = fake_find (fake, client, get32 (head, 44));
        if (object == NULL)
            return 0x57;
        drop_object (fake, object);
        return 0;
    }
    if (function == 5) {
        set64 (head, 24, 1000 * MIB);
        set64 (head, 32, 900 * MIB);
        set64 (head, 56, 800 * MIB);
        return 0;
    }
    status = alloc (fake, file, client, get32 (head, 4), head, 44, 0x40, NULL, is_video ? &bytes : NULL);
    if (status == 0)
        set64 (head, at, bytes);
    return status;
}

static uint32_t duplicate (struct fake *fake, uint64_t file, uint8_t *head)
{
    struct fake_object *source = fake_find (fake, get32 (head, 12), get32 (head, 16));
    uint32_t status;

    if (source == NULL)
        return 0x57;
    status = alloc (fake, file, get32 (head, 0), get32 (head, 4), head, 8, source->class, NULL, NULL);
    if (status == 0 && source->memory >= 0) {
        sure (fake, get32 (head, 0), get32 (head, 8))->memory = source->memory;
        fake->memories[source->memory].references++;
    }
    return status;
}

long fake_driver (struct fake *fake, uint64_t file, uint32_t request, void *head_struct, void *params, void *list)
{
    uint32_t number = request & 0xff, at, class, status = fake->next_status;
    uint8_t *head = head_struct;
    struct fake_object *object;
    uint64_t bytes = 0;

    fake->next_status = 0;
    switch (number) {
    case 0x2b:
        at = rm_request_size (request) == 32 ? 28 : 40;
        class = get32 (head, 12);
        if (class == 0x40 && params != NULL)
            bytes = get64 (params, 64);
        if (status == 0)
            status = alloc (fake, file, get32 (head, 0), get32 (head, 4), head, 8, class, params,
                            class == 0x40 ? &bytes : NULL);
        if (status == 0 && class == 0x40)
            set64 (params, 64, bytes);
        if (status == 0 && class == 0xf8 && get32 (params, 40) != 0) {
            object = sure (fake, get32 (head, 0), get32 (head, 8));
            object->memory = sure (fake, get32 (head, 0), get32 (params, 40))->memory;
            fake->memories[object->memory].references++;
        }
        set32 (head, at, status);
        return 0;
    case 0x29:
        object = fake_find (fake, get32 (head, 0) != 0 ? get32 (head, 0) : get32 (head, 8), get32 (head, 8));
        if (status == 0 && object == NULL)
            status = 0x57;
        if (status == 0)
            drop_object (fake, object);
        set32 (head, 12, status);
        return 0;
    case 0x2a:
        set32 (head, 28, status != 0 ? status : control (fake, file, head, params, list));
        return 0;
    case 0x34:
        set32 (head, 24, status != 0 ? status : duplicate (fake, file, head));
        return 0;
    case 0x4a:
        set32 (head, 20, status != 0 ? status : heap (fake, file, head));
        return 0;
    case 0x27:
        if (get32 (head, 12) == 0x40)
            set64 (head, 32, 1000 * MIB - 1);
        set32 (head, 40, status);
        return 0;
    default:
        return 0;
    }
}
