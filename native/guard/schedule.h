/* A tenant's channels and timeslice as they are to be. */
#ifndef NVC_GUARD_SCHEDULE_H
#define NVC_GUARD_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct tenant;

/* Whether the tenant's channels on the GPU are to be off; without a lock. */
bool schedule_is_off (const struct tenant *tenant, uint32_t gpu);
/* Under the tenant's lock. */
/* What a group of the tenant gets now, in microseconds; 0: its own. Groups that came since the scheduler decided share what it gave
 * to those before. */
uint32_t schedule_slice (const struct tenant *tenant, uint32_t gpu);
void schedule_apply (struct tenant *tenant, uint32_t gpu);
/* On every GPU. */
void schedule_apply_all (struct tenant *tenant);
/* Writes again what the driver did not take. When it is to be called again; 0: it need not. */
uint64_t schedule_again (struct tenant *tenant, uint64_t now);
/* Unlocks it. What the scheduler has set meanwhile is in force before other threads have the lock. */
void tenant_unlock (struct tenant *tenant);

#endif
