/* The container's memory. */
#ifndef NVC_GUARD_MEMORY_H
#define NVC_GUARD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tenant;

/* What lies around the struct of a call, read with it: its params mostly do, on the caller's stack. */
#define WINDOW_BEFORE 512u
#define WINDOW_BEHIND 1024u
struct memory_window {
    uint64_t address;
    size_t size; /* 0: nothing was read */
    uint8_t bytes[WINDOW_BEFORE + 4096 + WINDOW_BEHIND];
};

/* Of tenant->current, for the current call of this thread of its; under the tenant's lock, which others can have meanwhile. All of it
 * or an error. */
bool memory_read (struct tenant *tenant, pid_t thread, uint64_t address, void *to, size_t size);
/* The struct of a call, into tenant->head, before anything else is read for it. */
bool memory_read_head (struct tenant *tenant, pid_t thread, uint64_t address, size_t size);
/* Into tenant->params, and nothing of an earlier call behind it. */
bool memory_read_params (struct tenant *tenant, pid_t thread, uint64_t params, uint32_t size);
bool memory_write (struct tenant *tenant, pid_t thread, uint64_t address, const void *from, size_t size);

#endif
