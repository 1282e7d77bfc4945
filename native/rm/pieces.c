/* Pieces of video memory whose last handle is at or below an object: what its freeing gives back. */
#include "state.h"

struct walk {
    struct object *top, *at;
};

/* Parents before children; without recursion: a tenant decides how deep its tree is. */
static struct object *next_below (struct walk *walk)
{
    struct object *at = walk->at;

    if (at == NULL)
        return walk->at = walk->top;
    if (at->child != NULL)
        return walk->at = at->child;
    while (at != walk->top && at->after == NULL)
        at = at->parent;
    return walk->at = at == walk->top ? NULL : at->after;
}

static void emit (const struct object *object, struct rm_piece *piece)
{
    piece->bytes = object->memory->bytes;
    piece->client = (uint32_t) (object->link.key >> 32);
    piece->handle = (uint32_t) object->link.key;
    piece->gpu = object->memory->gpu;
    piece->is_below_subdevice = object->parent != NULL && object->parent->kind == CLASS_SUBDEVICE;
}

size_t rm_pieces (const struct rm *rm, uint32_t client, uint32_t handle, struct rm_piece *pieces, size_t capacity)
{
    struct walk walk = { .top = tracker_find (rm, client, handle) };
    const struct object *object;
    size_t count = 0;

    if (walk.top == NULL)
        return 0;
    if (walk.top->child == NULL) { /* nearly always */
        if (walk.top->memory == NULL || walk.top->memory->references != 1 || walk.top->memory->gpu < 0)
            return 0;
        if (capacity > 0)
            emit (walk.top, pieces);
        return 1;
    }
    while ((object = next_below (&walk)) != NULL)
        if (object->memory != NULL)
            object->memory->seen = 0;
    while ((object = next_below (&walk)) != NULL) {
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
