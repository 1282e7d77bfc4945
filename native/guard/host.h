/* What rm needs of its host, and refreshing what is charged. */
#ifndef NVC_GUARD_HOST_H
#define NVC_GUARD_HOST_H

#include "rm/rm.h"

#include <stdbool.h>

struct tenant;

/* What rm needs. */
extern const struct rm_host guard_host;
/* Whether something is charged that may have been given back unseen, and was not looked at during this call. */
bool host_can_refresh (const struct tenant *tenant);
void host_refresh (struct tenant *tenant);
/* Whether so many bytes more are within the quota of a GPU of the share. */
bool host_has_room (const struct tenant *tenant, int gpu, uint64_t bytes);

#endif
