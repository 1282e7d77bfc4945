/* Pids of a tenant's processes as the tenant's own programs know them. In the tenant's thread, under its lock. */
#ifndef NVC_GUARD_PIDS_H
#define NVC_GUARD_PIDS_H

#include <stdint.h>

/* rm_host.shown_pid and rm_host.driver_pid; context: struct tenant. The caller is the process of the current call. */
uint32_t pids_shown (void *context, uint32_t pid);
uint32_t pids_of_driver (void *context, uint32_t pid);

#endif
