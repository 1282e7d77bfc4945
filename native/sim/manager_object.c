/* Clients and their trees of objects. Runs as manager.c, under manager->lock. */
#include "manager_state.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CLIENT UINT32_C (0xc1d00000)
#define FIRST_PICKED UINT32_C (0xcaf00000)
#define FIRST_TABLE 64

struct client *client_find (struct manager *manager, uint32_t handle)
{
    for (struct client *client = manager->clients; client != NULL; client = client->next) {
        if (client->root.handle == handle)
            return client;
    }
    return NULL;
}

static struct manager_file *clients_of (struct manager_file *file) { return file->registered != NULL ? file->registered : file; }

struct client *client_of (struct request *request, uint32_t handle)
{
    struct client *client = client_find (request->manager, handle);

    return client != NULL && client->file == clients_of (request->file) ? client : NULL;
}

enum status client_error (struct request *request, uint32_t handle)
{
    return client_find (request->manager, handle) != NULL ? STATUS_INVALID_CLIENT : STATUS_INVALID_OBJECT_HANDLE;
}

struct client *client_create (struct request *request, uint32_t class_number)
{
    struct manager *manager = request->manager;
    struct client *client = calloc (1, sizeof (*client));

    if (client == NULL)
        return NULL;
    client->table = calloc (FIRST_TABLE, sizeof (struct object *));
    if (client->table == NULL) {
        free (client);
        return NULL;
    }
    do
        client->root.handle = FIRST_CLIENT + (manager->next_client++ & 0xfffff);
    while (client_find (manager, client->root.handle) != NULL);
    client->table_size = FIRST_TABLE;
    client->file = clients_of (request->file);
    client->process = request->caller->process (request->caller->context);
    client->next_handle = FIRST_PICKED;
    client->root.client = client;
    client->root.kind = KIND_CLIENT;
    client->root.class_number = class_number;
    client->next = manager->clients;
    manager->clients = client;
    return client;
}

static struct object **slot (struct object **table, uint32_t size, uint32_t handle)
{
    return &table[(handle * UINT32_C (2654435761) >> 7) & (size - 1)];
}

struct object *object_find (struct client *client, uint32_t handle)
{
    if (handle == client->root.handle)
        return &client->root;
    struct object *object = *slot (client->table, client->table_size, handle);
    while (object != NULL && object->handle != handle)
        object = object->hashed;
    return object;
}

/* Keeps chains short; without memory to grow the table only becomes slower. */
static void grow (struct client *client)
{
    uint32_t size = client->table_size * 4;
    struct object **table = calloc (size, sizeof (struct object *));

    if (table == NULL)
        return;
    for (uint32_t i = 0; i < client->table_size; i++) {
        for (struct object *object = client->table[i], *next; object != NULL; object = next) {
            struct object **place = slot (table, size, object->handle);
            next = object->hashed;
            object->hashed = *place;
            *place = object;
        }
    }
    free (client->table);
    client->table = table;
    client->table_size = size;
}

enum status object_create (struct client *client, struct object *parent, uint32_t handle, enum kind kind, struct object **result)
{
    struct object *object = calloc (1, sizeof (*object));

    if (object == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    while (handle == 0) {
        uint32_t candidate = client->next_handle++;
        if (candidate != 0 && object_find (client, candidate) == NULL)
            handle = candidate;
    }
    if (object_find (client, handle) != NULL) {
        free (object);
        return STATUS_INSERT_DUPLICATE_NAME;
    }
    if (client->objects >= client->table_size * 2 && client->table_size < (1U << 20))
        grow (client);
    struct object **place = slot (client->table, client->table_size, handle);
    *object = (struct object) { .handle = handle,
                                .kind = kind,
                                .client = client,
                                .parent = parent,
                                .gpu = parent->gpu,
                                .next = parent->child,
                                .hashed = *place };
    *place = object;
    if (parent->child != NULL)
        parent->child->previous = object;
    parent->child = object;
    client->objects++;
    *result = object;
    return STATUS_OK;
}

/* An object without children. */
static void destroy_leaf (struct object *object)
{
    struct client *client = object->client;
    struct object **place = slot (client->table, client->table_size, object->handle);

    while (*place != object)
        place = &(*place)->hashed;
    *place = object->hashed;
    if (object->previous != NULL)
        object->previous->next = object->next;
    else
        object->parent->child = object->next;
    if (object->next != NULL)
        object->next->previous = object->previous;
    if (object->memory.piece != NULL)
        piece_drop (client->file->manager, &object->memory);
    schedule_destroy (object);
    trace_destroy (object);
    peer_forget (object);
    client->objects--;
    free (object);
}

void object_destroy (struct object *object)
{
    struct object *stop = object->parent;
    struct object *each = object;

    /* Without recursion: a program may create a tree of any depth. */
    while (each != stop) {
        while (each->child != NULL)
            each = each->child;
        struct object *parent = each->parent;
        bool last = each == object;
        destroy_leaf (each);
        each = last ? stop : parent;
    }
}

void client_destroy (struct client *client)
{
    struct client **place = &client->file->manager->clients;

    while (client->root.child != NULL)
        object_destroy (client->root.child);
    while (*place != client)
        place = &(*place)->next;
    *place = client->next;
    free (client->table);
    free (client);
}
