/* What calls give a tenant of others: native/rm's questions about it (struct rm_host). In the tenant's thread, under its lock. */
#ifndef NVC_GUARD_FOREIGN_H
#define NVC_GUARD_FOREIGN_H

#include <stdbool.h>
#include <stdint.h>

struct rm_source;
struct tenant;

bool foreign_hold (void *context, int gpu, const struct rm_source *source, uint64_t *bytes);
void foreign_let_go (void *context);
bool foreign_is_held (void *context, uint32_t client, uint32_t handle);
bool foreign_is_retained (void *context);
void foreign_give_back (void *context, int gpu, uint64_t file, uint32_t client, uint32_t parent, uint32_t handle);

/* Gives up duplicates of other tenants' memory that were kept for long. With guard->probe_lock. */
void foreign_yield (struct tenant *tenant);

#endif
