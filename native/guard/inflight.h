/* In-flight calls. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_INFLIGHT_H
#define NVC_GUARD_INFLIGHT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process;
struct seccomp_notif;
struct tenant;

#define TENANT_INFLIGHT 64 /* calls of one tenant whose outcome is not known yet */
struct inflight_call {
    int32_t thread;
    uint64_t serial; /* of its process */
    uint64_t at;     /* CLOCK_MONOTONIC ns */
    uint64_t arguments[3];
    uint64_t outcome; /* of an ALLOC, for rm; 0: it is none */
};

/* A call is about to be continued. false: too many of the tenant's are in flight. */
bool inflight_add (struct tenant *tenant, struct process *process, const struct seccomp_notif *notification);
/* Of the call that was added last. */
void inflight_set_outcome (struct tenant *tenant, uint64_t outcome);
/* The thread did not make the call that was to be continued. */
void inflight_withdraw (struct tenant *tenant, pid_t thread);
/* Which are over. */
void inflight_look (struct tenant *tenant);
/* The thread makes another call: those before are over. */
void inflight_remove (struct tenant *tenant, pid_t thread);
/* Whether calls of threads of the process are in flight. */
bool inflight_is_pending (struct tenant *tenant, const struct process *process, uint64_t now);
/* Such a call became memory beyond the quota: the process is ended (SIGKILL). */
void kill_offender (struct tenant *tenant, struct process *process);

#endif
