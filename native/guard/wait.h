/* Waiting without the lock. */
#ifndef NVC_GUARD_WAIT_H
#define NVC_GUARD_WAIT_H

#include <stdint.h>
#include <sys/types.h>

struct process;
struct tenant;

/* Around all that a process of the container can make last: its memory, its mappings, its descriptors. Other threads can
 * have the tenant's lock meanwhile; never in the middle of one of rm's halves. What is returned goes to wait_end. */
struct process *wait_begin (struct tenant *tenant, pid_t pid);
void wait_end (struct tenant *tenant, struct process *current);
/* After a wait that began while !tenant->is_watched, of a tenant that may be idle: the main thread need not come by. */
void wait_unwatch (struct tenant *tenant);
/* Closes a copy of a descriptor of the container's, whatever file it may be. */
void wait_close (struct tenant *tenant, pid_t pid, int file);
/* Under the lock: freezes the tenant while it has waited for too long. */
void wait_check (struct tenant *tenant, uint64_t now);

#endif
