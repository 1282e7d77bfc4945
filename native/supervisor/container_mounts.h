/* The mounts of a container (container.h): the part of container.c that knows /proc/PID/mountinfo. */
#ifndef NVC_SUPERVISOR_CONTAINER_MOUNTS_H
#define NVC_SUPERVISOR_CONTAINER_MOUNTS_H

#include <stdbool.h>
#include <stdint.h>

struct container;

/* Fills mountinfo and owner; the mount namespace is held already. */
void container_open_mounts (struct container *container);
/* Whether an open /proc/PID/mountinfo has a mount of this number. */
bool mountinfo_lists (int mountinfo, uint64_t mount);

#endif
