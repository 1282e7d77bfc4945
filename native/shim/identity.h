/* Who this process is, for the slots of the region: what tells it from a later process with the same pid. */
#ifndef NVC_SHIM_IDENTITY_H
#define NVC_SHIM_IDENTITY_H

#include <stdbool.h>

#include "shim/share.h"

/* The pid namespace, and of /proc/self/stat name and start time. */
void identity_fill (struct region_slot *slot);
/* Is this a process with more rights than its caller (set-user-ID and the like), which must not believe its
 * environment? Also true when the kernel does not say. */
bool identity_secure (void);
/* A variable of the environment, or NULL. */
const char *identity_variable (const char *name);

#endif
