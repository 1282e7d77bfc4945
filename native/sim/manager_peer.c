/*
 * The object for access to video memory by third-party devices (class 0x503C): the address spaces and memory that are
 * registered with it, by handle. A second registration of a handle fails (0x19), and so does the removal of one that is
 * not registered (0x57); a registration ends with its memory, its address space or the object (third_party_p2p.c).
 * Unlike the real driver it does not compare addresses: that refuses two pieces at one address, with 0x19 too. Runs as
 * manager.c, under manager->lock.
 */
#include "manager_state.h"

#include <stdlib.h>

/* NVRM_P2P_PAGESIZE_BIG_64K. */
#define PAGE UINT64_C (65536)
/* The first token that the real driver returns. */
#define FIRST_TOKEN 0xfe00u

/* A registration, in the list of its object. */
struct registration {
    struct registration *next;
    const struct object *peer;
};

static struct registration **find (struct object *object, const struct object *peer)
{
    struct registration **place = &object->registrations;

    while (*place != NULL && (*place)->peer != peer)
        place = &(*place)->next;
    return place;
}

static enum status add (struct object *object, const struct object *peer)
{
    struct registration **place = find (object, peer);

    if (*place != NULL)
        return STATUS_INSERT_DUPLICATE_NAME;
    *place = calloc (1, sizeof (**place));
    if (*place == NULL)
        return STATUS_NO_MEMORY;
    (*place)->peer = peer;
    return STATUS_OK;
}

static enum status drop (struct object *object, const struct object *peer)
{
    struct registration **place = object != NULL ? find (object, peer) : NULL;
    struct registration *found = place != NULL ? *place : NULL;

    if (found == NULL)
        return STATUS_OBJECT_NOT_FOUND;
    *place = found->next;
    free (found);
    return STATUS_OK;
}

void peer_forget (struct object *object)
{
    struct client *client = object->client;

    while (object->registrations != NULL)
        drop (object, object->registrations->peer);
    for (uint32_t i = 0; object->class_number == CLASS_THIRD_PARTY && i < client->table_size; i++) {
        for (struct object *each = client->table[i]; each != NULL; each = each->hashed)
            drop (each, object);
    }
}

/* hVASpace and its token (16 bytes). */
enum status control_register_space (struct request *request, struct object *object)
{
    struct object *space = object_find (object->client, get32 (request->params, 0));
    enum status status;

    if (object->class_number != CLASS_THIRD_PARTY)
        return STATUS_NOT_SUPPORTED;
    if (space == NULL)
        return STATUS_INVALID_OBJECT_HANDLE;
    status = add (space, object);
    put64 (request->params, 8, FIRST_TOKEN);
    request->params_changed = status == STATUS_OK;
    return status;
}

/* hMemory, address, size, offset (32 bytes). */
enum status control_register_memory (struct request *request, struct object *object)
{
    struct object *memory = object_find (object->client, get32 (request->params, 0));
    uint64_t address = get64 (request->params, 8), size = get64 (request->params, 16), offset = get64 (request->params, 24);

    if (object->class_number != CLASS_THIRD_PARTY)
        return STATUS_NOT_SUPPORTED;
    if (memory == NULL || memory->memory.piece == NULL || memory->gpu != object->gpu)
        return STATUS_INVALID_OBJECT_HANDLE;
    if (!memory->memory.piece->video)
        return STATUS_NOT_SUPPORTED;
    if (size == 0 || size % PAGE != 0 || address % PAGE != 0 || offset % PAGE != 0 || address + size < address ||
        size + offset < size || size + offset > memory->memory.piece->bytes)
        return STATUS_INVALID_ARGUMENT;
    return add (memory, object);
}

/* hVASpace or hMemory (4 bytes). */
enum status control_unregister (struct request *request, struct object *object)
{
    if (object->class_number != CLASS_THIRD_PARTY)
        return STATUS_NOT_SUPPORTED;
    return drop (object_find (object->client, get32 (request->params, 0)), object);
}
