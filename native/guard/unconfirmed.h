/* What continued calls may have come to. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_UNCONFIRMED_H
#define NVC_GUARD_UNCONFIRMED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process;
struct tenant;

#define UNCONFIRMED_FILES 64u
/* A copy of the file that a continued call is made on: what the call makes does not go before the driver was asked. */
struct unconfirmed_file {
    int file;
    uint32_t client; /* that the call named; 0: one that it makes */
    uint64_t serial; /* of the process */
    pid_t thread;
};

/* The current call, of this thread, is about to be continued. false: too many files are held so, and their calls are in flight. */
bool unconfirmed_hold (struct tenant *tenant, pid_t thread, uint32_t client);
/* What the driver reports beyond the ledger and beyond what it did before these calls was won by them: it is charged until the
 * tenant has no process behind the filter any more, for nothing tells what else holds it by then. After a query about all processes. */
void unconfirmed_settle (struct tenant *tenant);
/* The process holds so much beyond the ledger: what it has won and holds no more hides nothing that is won after it. Sets its excess, and adds its parts to
 * the tenant's. */
void unconfirmed_sum (struct tenant *tenant, struct process *process, uint32_t gpu, uint64_t beyond);
bool unconfirmed_is_reported (const struct tenant *tenant);
/* Whether memory that was won is beyond the quota with what else lies in video memory: managed memory, and contexts of which nothing tells, are not
 * counted. What was won counts also where UVM may have it, which no answer shows: as long, the tenant is stopped. */
bool unconfirmed_is_kept (const struct tenant *tenant);
/* Without a process that has called the driver nothing is unconfirmed; and without one behind the filter nothing is left of what was won. */
void unconfirmed_forget (struct tenant *tenant);
/* The calls of the process are confirmed: its files are let go, of a tenant that has won nothing. */
void unconfirmed_clear (struct tenant *tenant, uint64_t serial);
/* Frees the clients of ended processes that such calls named: other processes have their files, and what was won on them. Nothing tells which these
 * are. Whether there were any. */
bool unconfirmed_free_clients (struct tenant *tenant);
/* It ended. */
void unconfirmed_release (struct tenant *tenant, uint64_t serial);

#endif
