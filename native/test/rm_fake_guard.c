/* The host's part of a guard: duplicates in a client of its own, as guard/foreign.c makes them. */
#include "rm_fake.h"

#include "rm/imports.h"

/* Its client and device, made when they are needed first. */
static void guard_begin (struct fake *fake)
{
    NVOS64_PARAMETERS head = { .hClass = NV01_ROOT_CLIENT };

    if (fake->guard_client != 0)
        return;
    fake_driver (fake, FAKE_GUARD, ALLOC_REQUEST, &head, NULL, NULL);
    fake->guard_client = fake->guard_device = head.hObjectNew;
    fake_make (fake, FAKE_GUARD, fake->guard_client, fake->guard_client, &(uint32_t) { 1 }, NV01_DEVICE_0, NULL, NULL);
    fake->guard_device = 1;
}

static uint32_t take (struct fake *fake, uint32_t client, uint32_t handle)
{
    NVOS55_PARAMETERS head = {
        .hClient = fake->guard_client, .hParent = fake->guard_device, .hClientSrc = client, .hObjectSrc = handle
    };

    fake_driver (fake, FAKE_GUARD, DUP_REQUEST, &head, NULL, NULL);
    return head.status == 0 ? head.hObject : 0;
}

static void drop (struct fake *fake, uint32_t handle)
{
    NVOS00_PARAMETERS head = { .hRoot = fake->guard_client, .hObjectOld = handle };

    fake_driver (fake, FAKE_GUARD, FREE_REQUEST, &head, NULL, NULL);
}

bool fake_hold (void *context, int gpu, const struct rm_source *source, uint64_t *bytes)
{
    struct fake *fake = context;
    const struct fake_object *object;

    (void) gpu;
    guard_begin (fake);
    fake->held = 0;
    if (source->params == NULL)
        fake->held = take (fake, source->client, source->handle);
    else {
        union rm_import_params params;
        uint32_t size, command = rm_import_again (source, fake->guard_device, &params, &size);
        NVOS54_PARAMETERS head = fake_control_head (fake->guard_client, fake->guard_client, command, &params, size);

        fake_driver (fake, FAKE_GUARD, CONTROL_REQUEST, &head, &params, NULL);
        if (head.status == 0)
            fake->held = rm_imported (source, &params);
    }
    object = fake->held != 0 ? fake_find (fake, fake->guard_client, fake->held) : NULL;
    *bytes = object != NULL && object->memory >= 0 ? fake->memories[object->memory].bytes : 0;
    return object != NULL;
}

void fake_let_go (void *context) { drop (context, ((struct fake *) context)->held); }

bool fake_is_held (void *context, uint32_t client, uint32_t handle)
{
    struct fake *fake = context;
    uint32_t own = take (fake, client, handle);
    bool is_same;

    if (own == 0)
        return false;
    is_same = fake_sure (fake, fake->guard_client, own)->memory == fake_sure (fake, fake->guard_client, fake->held)->memory;
    drop (fake, own);
    return is_same;
}

bool fake_is_retained (void *context)
{
    (void) context;
    return false;
}

void fake_give_back (void *context, int gpu, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle)
{
    struct fake *fake = context;
    NVOS00_PARAMETERS head = { .hRoot = client, .hObjectParent = parent, .hObjectOld = handle };
    uint32_t own;
    int memory;

    (void) gpu;
    guard_begin (fake);
    own = take (fake, client, handle);
    memory = own != 0 ? fake_sure (fake, fake->guard_client, own)->memory : -1;
    fake_driver (fake, file, FREE_REQUEST, &head, NULL, NULL);
    if (memory >= 0 && fake->memories[memory].references > 1)
        fake->retained += fake->memories[memory].bytes;
    if (own != 0)
        drop (fake, own);
}
