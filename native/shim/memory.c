/* The allocator of rm's tables (memory.h). Runs in every process of a container that uses a GPU, under the process's
 * lock. */
#include "memory.h"

#include "plain.h"
#include "raw.h"

#define SMALLEST 16u
#define CHUNK (64u << 10)

/* The size class; MEMORY_CLASSES: whole pages. */
static unsigned class_of (size_t size)
{
    unsigned class = 0;

    while (class < MEMORY_CLASSES && ((size_t) SMALLEST << class) < size)
        class ++;
    return class;
}

void memory_begin (struct memory *memory, void *room, size_t size)
{
    memset (memory, 0, sizeof *memory);
    memory->fresh = room;
    memory->end = memory->fresh + size;
}

void *memory_allocate (struct memory *memory, size_t size)
{
    unsigned class = class_of (size);
    size_t whole = (size_t) SMALLEST << class;
    char *piece;

    if (class == MEMORY_CLASSES)
        return raw_pages (size);
    if (memory->free[class]) {
        piece = memory->free[class];
        memory->free[class] = *(void **) piece;
        memset (piece, 0, whole);
        return piece;
    }
    if ((size_t) (memory->end - memory->fresh) < whole) {
        piece = raw_pages (CHUNK);
        if (!piece)
            return NULL;
        memory->fresh = piece;
        memory->end = piece + CHUNK;
    }
    piece = memory->fresh;
    memory->fresh += whole;
    return piece;
}

void memory_release (struct memory *memory, void *piece, size_t size)
{
    unsigned class = class_of (size);

    if (!piece)
        return;
    if (class == MEMORY_CLASSES) {
        RAW2 (SYS_munmap, piece, size);
        return;
    }
    *(void **) piece = memory->free[class];
    memory->free[class] = piece;
}
