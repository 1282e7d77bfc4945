/* Memory for rm's tables, from pages of our own: the program's allocator may be anything, and may be what called us. */
#ifndef NVC_SHIM_MEMORY_H
#define NVC_SHIM_MEMORY_H

#include <stddef.h>

#define MEMORY_CLASSES 12 /* 16 bytes to 32 KiB; above: pages */

struct memory {
    void *free[MEMORY_CLASSES]; /* lists; the first word is the next piece */
    char *fresh, *end;          /* of the last chunk */
};

/* The first pieces come from here: zeroed, not to be given back. */
void memory_begin (struct memory *memory, void *room, size_t size);
/* Zeroed, or NULL. Not thread-safe: under the process's lock. */
void *memory_allocate (struct memory *memory, size_t size);
void memory_release (struct memory *memory, void *piece, size_t size);

#endif
