/* Copies of a container's descriptors. */
#ifndef NVC_GUARD_DESCRIPTORS_H
#define NVC_GUARD_DESCRIPTORS_H

#include "rm/rm.h"

struct process;
struct tenant;

/* A copy of a descriptor of the process that is one of the driver's nodes, of which kind; -errno: -ENOTTY if it is something
 * else, which is never held, -ESRCH if the process has ended. The caller closes it. Other threads can have the tenant's
 * lock meanwhile (wait.c). */
int process_copy (struct tenant *tenant, const struct process *process, int descriptor, enum rm_node *node);

#endif
