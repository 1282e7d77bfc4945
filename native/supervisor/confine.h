/* What a supervisor gives up before it hears of a container: see confine.c. */
#ifndef NVC_SUPERVISOR_CONFINE_H
#define NVC_SUPERVISOR_CONFINE_H

#include <sys/types.h>

/* For good, of a process with one thread: user and groups, every capability, every path, and every system call that is not on the list.
 * 0 or -errno: the caller must end then. */
int confine (uid_t user);

#endif
