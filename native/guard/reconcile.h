/* Compares the ledger with driver-reported usage. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_RECONCILE_H
#define NVC_GUARD_RECONCILE_H

#include <stdbool.h>
#include <stdint.h>

struct process;
struct tenant;

/* The driver is asked about the process at this time. */
void reconcile_at (struct tenant *tenant, struct process *process, uint64_t at);
/* Asks about the processes whose time has come: dead ones whose memory the driver has released are refunded, and what a process
 * holds beyond the ledger is charged. */
void reconcile_due (struct tenant *tenant, uint64_t now);
/* Whether what a process had may be about to come back; waits for that, for half a second at the most. */
bool reconcile_expects_refund (const struct tenant *tenant);
void reconcile_await_refund (struct tenant *tenant);
/* The same about all living processes, now. */
void reconcile_all (struct tenant *tenant);
/* Records what the tenant's processes hold before a call of this one is continued. */
void reconcile_baseline (struct tenant *tenant, struct process *process);

#endif
