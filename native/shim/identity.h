/* Identity of the process for its slot in the region: distinguishes it from a later process with the same pid.
 * identity.c. */
#ifndef NVC_SHIM_IDENTITY_H
#define NVC_SHIM_IDENTITY_H

#include <stdbool.h>

#include "shim/share.h"

/* Sets pid, pid namespace, and from /proc/self/stat name and start time. */
void identity_fill (struct region_slot *slot);
/* Whether the process has more rights than its caller (AT_SECURE: set-user-ID and the like), so that its environment
 * must be ignored. Also true when AT_SECURE cannot be read. */
bool identity_secure (void);
/* A variable of the environment, or NULL. */
const char *identity_variable (const char *name);

#endif
