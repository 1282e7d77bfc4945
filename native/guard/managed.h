/* Managed memory of a tenant's processes. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_MANAGED_H
#define NVC_GUARD_MANAGED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process;
struct tenant;

/* Charges what processes whose time has come have mapped of the UVM node, as /proc/PID/maps says. */
void managed_refresh (struct tenant *tenant, uint64_t now);
/* A mapping is being made, or was: the process is looked at soon. */
void managed_look (struct tenant *tenant, struct process *process);
/* Whether nothing of it is charged, and all that it announced was looked at. */
bool managed_was_seen (const struct process *process);
/* It is new, and looked at from time to time. */
void managed_watch (struct tenant *tenant, struct process *process);
/* Looks that would be after `at`, until `most`, are at `at`. */
void managed_before (struct tenant *tenant, uint64_t at, uint64_t most);
/* The tenant called the driver again after a while: what is looked at from time to time is looked at soon. */
void managed_called (struct tenant *tenant, uint64_t now);
/* Every process that has such mappings is looked at now. */
void managed_now (struct tenant *tenant);
/* Its address space may be another one by now. */
void managed_close_maps (struct process *process);
/* The process is gone, and its mappings with it. */
void managed_forget (struct tenant *tenant, struct process *process);
/* So many bytes in the place of `held`. */
void managed_charge (struct tenant *tenant, uint64_t *held, uint64_t bytes, pid_t pid);
/* A process left an address space. */
void managed_look_at_orphans (struct tenant *tenant);

#endif
