/* The processes of a tenant. Under its lock, in its thread. */
#ifndef NVC_GUARD_PROCESS_H
#define NVC_GUARD_PROCESS_H

#include "replay.h"
#include "space.h"

#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct tenant;

#define TENANT_PROCESSES 512 /* with clients of the resource manager; others are forgotten when room is needed */
#define TENANT_THREADS 4096  /* cache of thread -> process, a power of two */
#define PROCESS_CLIENTS 32   /* descriptors remembered for clients */

/* A process of the container that called the driver. */
struct process {
    uint64_t serial; /* what rm calls a file; 0: this place is free */
    pid_t pid;       /* host */
    uint64_t start_time; /* field 22 of /proc/PID/stat */
    int pidfd;
    bool dead;       /* by its pidfd; what it had is refunded when the driver has released it */
    uint64_t ask_at; /* CLOCK_MONOTONIC ns: when to look whether it did */
    uint64_t ask_delay;
    uint64_t used_at;
    uint64_t look_at;   /* when to look at its mappings; 0: it was not seen yet */
    uint64_t look_delay, look_not_before;
    bool has_mapped;    /* it announced a mapping, which it may make at any time */
    uint64_t managed;   /* bytes charged for its mappings */
    unsigned unread;    /* looks in a row that could not read its mappings */
    struct space space;
    uint64_t driver_usage[SHARE_MAX_GPUS];
    struct known_client {
        uint32_t client;
        int descriptor;
    } clients[PROCESS_CLIENTS];
    unsigned client_count;
    uint64_t unreached_since; /* an ioctl on this client's file found no descriptor; 0: none did */
    uint32_t unreached_client;
    bool is_suspect; /* a call of its was continued and may have become another */
    bool is_due, has_inflight, is_cleared; /* of the current round of queries: it is about this one; calls of its are in flight, or over */
    uint64_t asked_at; /* the driver, about it, last (CLOCK_MONOTONIC ns); 0: never */
    uint64_t usage_before[SHARE_MAX_GPUS], excess_before[SHARE_MAX_GPUS]; /* before that */
};

/* Numbers of threads are not used again so soon: the kernel gives them out in turn, and has 32768 at the least. */
#define THREAD_SOON_NS 10000000u
struct thread_entry {
    pid_t thread;
    uint64_t serial;
    uint64_t called_at; /* CLOCK_MONOTONIC ns */
    struct replay replay;
};

/* The process that a thread belongs to, entered if it is new; NULL when it is gone or there is no room. */
struct process *process_of_thread (struct tenant *tenant, pid_t thread);
/* The same without what is remembered, which ESRCH has shown to be wrong. */
struct process *process_of_thread_again (struct tenant *tenant, pid_t thread);
/* Field 22 of /proc/PID/stat; 0 when it is gone. */
uint64_t process_start_time (pid_t pid);
struct process *process_by_serial (struct tenant *tenant, uint64_t serial);
/* Whether that is new. Not done where there is no room, and it has nothing to be scheduled. */
bool process_remember_client (const struct tenant *tenant, struct process *process, uint32_t client, int descriptor);
int process_descriptor_of (const struct process *process, uint32_t client); /* -1: none */
bool process_is_there (const struct process *process);
void process_forget (struct tenant *tenant, struct process *process);
/* Calls `each` for threads beside the first one while it says true: when that one has ended, the kernel tells mappings and
 * descriptors by the others alone. false: there may be more of them. */
bool process_threads (const struct process *process, bool (*each) (const struct process *process, pid_t thread, void *context),
                      void *context);

#endif
