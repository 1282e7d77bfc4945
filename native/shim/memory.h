/* Memory for rm's tables, from mmap: the program's allocator may be any, and may be the caller. Implemented in
 * memory.c. */
#ifndef NVC_SHIM_MEMORY_H
#define NVC_SHIM_MEMORY_H

#include <stddef.h>

#define MEMORY_CLASSES 12 /* 16 bytes to 32 KiB; above: pages */

struct memory {
    void *free[MEMORY_CLASSES]; /* lists; the first word of a piece points to the next */
    char *fresh, *end;          /* the unused part of the last chunk */
};

/* room: zeroed memory for the first pieces; never unmapped. */
void memory_begin (struct memory *memory, void *room, size_t size);
/* Zeroed, or NULL. Not thread-safe: under the process's lock. */
void *memory_allocate (struct memory *memory, size_t size);
void memory_release (struct memory *memory, void *piece, size_t size);

#endif
