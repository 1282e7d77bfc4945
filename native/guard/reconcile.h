/* Compares the ledger with driver-reported usage. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_RECONCILE_H
#define NVC_GUARD_RECONCILE_H

#include <stdint.h>

struct process;
struct tenant;

/* The driver is asked about the process at this time. */
void reconcile_at (struct tenant *tenant, struct process *process, uint64_t at);
/* Asks about the processes whose time has come: dead ones whose memory the driver has released are refunded, and what a process
 * holds beyond the ledger is charged. */
void reconcile_due (struct tenant *tenant, uint64_t now);
/* Questions that would be asked after `at`, until `most`, are at `at`. */
void reconcile_before (struct tenant *tenant, uint64_t at, uint64_t most);
/* The tenant called the driver again after a while: processes that are asked about from time to time are asked about soon. */
void reconcile_called (struct tenant *tenant, uint64_t now);
/* The driver is asked about all living processes now. */
void reconcile_all (struct tenant *tenant);
/* Records what the tenant's processes hold before a call is continued. */
void reconcile_baseline (struct tenant *tenant);

/* Before something of the tenant's goes: what unconfirmed calls have won by now is charged. */
void reconcile_unconfirmed (struct tenant *tenant);
/* After it: what is won next does not take its place. */
void reconcile_freed (struct tenant *tenant);

#endif
