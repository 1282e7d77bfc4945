/* Pieces of video memory whose last handle is at or below an object: what its freeing gives back. */
#include "nv_params.h"
#include "state.h"

static void emit (const struct object *object, struct rm_piece *piece)
{
    piece->bytes = object->memory->bytes;
    piece->client = (uint32_t) (object->link.key >> 32);
    piece->handle = (uint32_t) object->link.key;
    piece->gpu = object->memory->gpu;
    piece->is_exported = object->memory->is_exported;
    piece->is_foreign = object->memory->is_foreign;
    piece->is_below_subdevice = object->parent != NULL && object->parent->kind == CLASS_SUBDEVICE;
}

static void begin (struct object *top)
{
    for (struct object *object = top; object != NULL; object = tracker_next (top, object))
        if (object->memory != NULL)
            object->memory->seen = 0;
}

/* What files of ended processes have, but for this one, is as good as seen. */
static void see_ended (const struct rm *rm, const struct file *but)
{
    for (size_t i = 0; rm->ended != 0 && i < rm->files.capacity; i++)
        for (struct link *link = rm->files.buckets[i]; link != NULL; link = link->next) {
            const struct file *file = (const struct file *) link;

            if (!file->is_ended || file == but)
                continue;
            for (const struct export *export = file->exports; export != NULL; export = export->next)
                export->memory->seen++;
            for (const struct client *client = file->clients; client != NULL; client = client->file_after)
                for (struct object *object = client->object; object != NULL; object = tracker_next (client->object, object))
                    if (object->memory != NULL)
                        object->memory->seen++;
        }
}

void rm_file_ended (struct rm *rm, uint64_t name)
{
    struct file *file = (struct file *) table_find (&rm->files, name);

    if (file == NULL || file->is_ended)
        return;
    file->is_ended = true;
    rm->ended++;
}

static size_t find (struct object *top, struct rm_piece *pieces, size_t capacity, size_t count)
{
    for (struct object *object = top; object != NULL; object = tracker_next (top, object)) {
        struct memory *memory = object->memory;

        /* Other handles, and files that it was exported to, are references too. */
        if (memory == NULL || memory->gpu < 0 || ++memory->seen != memory->references)
            continue;
        if (count < capacity)
            emit (object, pieces + count);
        count++;
    }
    return count;
}

void rm_drop_memory (struct rm *rm, uint64_t name)
{
    const struct file *file = (const struct file *) table_find (&rm->files, name);

    for (const struct client *client = file != NULL ? file->clients : NULL; client != NULL; client = client->file_after) {
        /* Of one that another process made the driver reports memory for that process. */
        if (client->maker != name)
            continue;
        for (struct object *object = client->object; object != NULL; object = tracker_next (client->object, object)) {
            memory_leave (rm, object);
            object->memory = NULL;
        }
    }
}

size_t rm_pieces (const struct rm *rm, uint32_t client, uint32_t handle, struct rm_piece *pieces, size_t capacity)
{
    struct object *top = tracker_find (rm, client, handle);

    if (top == NULL)
        return 0;
    /* nearly always */
    if (top->child == NULL && (rm->ended == 0 || top->memory == NULL || top->memory->references == 1)) {
        if (top->memory == NULL || top->memory->references != 1 || top->memory->gpu < 0)
            return 0;
        if (capacity > 0)
            emit (top, pieces);
        return 1;
    }
    begin (top);
    see_ended (rm, top->client->file);
    return find (top, pieces, capacity, 0);
}

size_t rm_file_pieces (const struct rm *rm, uint64_t name, struct rm_piece *pieces, size_t capacity)
{
    const struct file *file = (const struct file *) table_find (&rm->files, name);
    size_t count = 0;

    if (file == NULL)
        return 0;
    for (const struct client *client = file->clients; client != NULL; client = client->file_after)
        begin (client->object);
    see_ended (rm, file);
    for (const struct client *client = file->clients; client != NULL; client = client->file_after)
        count = find (client->object, pieces, capacity, count);
    return count;
}

enum rm_piece_call rm_piece_call_of (const struct rm *rm, const struct rm_call *call, uint64_t *bytes)
{
    const NVOS00_PARAMETERS *head = call->head; /* of a FREE */
    const struct rm_class *class = call->own.class; /* of an ALLOC */
    const struct object *object;

    if (call->own.kind == CALL_ALLOC && call->own.number == NV01_MEMORY_LOCAL_USER && call->params != NULL &&
        call->params_size >= class->size) {
        *bytes = get64 (call->params, class->size_at);
        return RM_ALLOCATES_PIECE;
    }
    if (call->own.kind != CALL_FREE)
        return RM_NO_PIECE;
    object = tracker_find (rm, head->hRoot, head->hObjectOld);
    if (object == NULL || object->memory == NULL || object->memory->reported == 0 || object->child != NULL)
        return RM_NO_PIECE;
    *bytes = object->memory->reported;
    return RM_FREES_PIECE;
}
