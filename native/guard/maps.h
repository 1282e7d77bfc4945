/* The text of /proc/PID/maps, read with distrust: the end of each line is a path, which is the container's. */
#ifndef NVC_GUARD_MAPS_H
#define NVC_GUARD_MAPS_H

#include <stdint.h>

enum maps_result {
    MAPS_NONE,    /* no mapping at all: the thread has ended */
    MAPS_READ,
    MAPS_UNKNOWN, /* it could not be read to its end, or is not what the kernel writes */
};

/* Adds up the shared mappings whose offset is their address, in bytes; never more than UINT64_MAX. file: open, and
 * read from its beginning on. Format: show_map_vma of fs/proc/task_mmu.c, "%08lx-%08lx %c%c%c%c %08llx dev inode path\n"; addresses never go
 * backwards, and no two lines overlap (Documentation/filesystems/proc.rst). A newline in a path is written as "\012". */
enum maps_result maps_sum (int file, uint64_t *bytes);

#endif
