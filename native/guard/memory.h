/* The container's memory. */
#ifndef NVC_GUARD_MEMORY_H
#define NVC_GUARD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tenant;

/* Of tenant->current, for the current call of this thread of its; under the tenant's lock, which others can have meanwhile. All of it
 * or an error. */
bool memory_read (struct tenant *tenant, pid_t thread, uint64_t address, void *to, size_t size);
/* Into tenant->params, and nothing of an earlier call behind it. */
bool memory_read_params (struct tenant *tenant, pid_t thread, uint64_t params, uint32_t size);
bool memory_write (struct tenant *tenant, pid_t thread, uint64_t address, const void *from, size_t size);

#endif
