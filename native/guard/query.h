/* What the driver says of a tenant's processes. */
#ifndef NVC_GUARD_QUERY_H
#define NVC_GUARD_QUERY_H

#include <stdbool.h>

struct process;
struct tenant;

/* Of one process, into process->driver_usage; the tenant's burden. false: the driver says nothing. */
bool query_process (struct tenant *tenant, struct process *process);
/* Of all that may hold something. */
void query_all (struct tenant *tenant);
/* The guard's own client is open, and with it the nodes of the GPUs. */
void query_open (struct tenant *tenant);
bool query_may_hold (const struct tenant *tenant, const struct process *process);
/* By the last answer. */
bool query_holds_nothing (const struct tenant *tenant, const struct process *process);
/* Clients that it made are there when others have their files: a child that inherited them, another process that was sent them. */
bool query_has_heirs (struct tenant *tenant, const struct process *process);

#endif
