/* The processes of a tenant. Under its lock, in its thread. */
#ifndef NVC_GUARD_PROCESS_H
#define NVC_GUARD_PROCESS_H

#include "client_files.h"
#include "privsep.h"
#include "replay.h"
#include "space.h"

#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct tenant;

#define TENANT_PROCESSES 512 /* with clients of the resource manager; others are forgotten when room is needed */
#define TENANT_THREADS 4096  /* cache of thread -> process, a power of two */

/* A process of the container that called the driver. */
struct process {
    uint64_t serial; /* what rm calls a file; 0: this place is free */
    pid_t pid;       /* host */
    unsigned pid_levels; /* of pid_numbers; 0: not known */
    uint32_t pid_numbers[PRIVSEP_LEVELS]; /* its pid in each pid namespace, from the guard's on inwards */
    uint64_t start_time; /* field 22 of /proc/PID/stat */
    int pidfd;
    int memory; /* its /proc/PID/mem, of the address space that it had when it was entered, or when that was found to be gone */
    bool shares_memory; /* with its parent: an execve leaves that to the parent, and memory has to be asked for again */
    bool dead;       /* by its pidfd; what it had is refunded when the driver has released it */
    bool is_inherited; /* dead, and holds nothing; but clients of its are there still: others have their files */
    uint64_t ask_at; /* CLOCK_MONOTONIC ns: when to look whether it did */
    uint64_t ask_delay;
    uint64_t used_at, entered_at;
    uint64_t look_at;   /* when to look at its mappings; 0: it was not seen yet */
    uint64_t look_delay, look_not_before;
    bool has_mapped;    /* it announced a mapping, which it may make at any time */
    uint64_t managed;   /* bytes charged for its mappings */
    unsigned unread;    /* looks in a row that could not read its mappings */
    bool has_maps;      /* its /proc/PID/maps is open, of the address space of then: for `maps_left` more looks */
    int maps;
    unsigned maps_left;
    struct space space;
    uint64_t driver_usage[SHARE_MAX_GPUS], driver_duplicated[SHARE_MAX_GPUS]; /* struct process_usage */
    struct client_file clients[PROCESS_CLIENTS];
    unsigned client_count;
    bool has_clients; /* it called the driver by one */
    uint64_t unreached_since; /* an ioctl on this client's file found no descriptor; 0: none did */
    uint32_t unreached_client;
    bool is_suspect; /* process_set_suspect */
    bool is_unwatched; /* its end is looked for, as epoll could not be told of it */
    bool is_due, has_inflight,
        is_cleared; /* of the current round of queries: it is about this one; calls of its are in flight, or over */
    uint64_t asked_at; /* the driver, about it, last (CLOCK_MONOTONIC ns); 0: never */
    uint64_t asked_falls; /* rm_reported_falls then */
    uint64_t excess[SHARE_MAX_GPUS];         /* its part of the tenant's */
    uint64_t excess_before[SHARE_MAX_GPUS];  /* before calls of the tenant's were in flight */
    uint64_t raced_reported[SHARE_MAX_GPUS]; /* its part of the tenant's */
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
struct process *process_by_serial (struct tenant *tenant, uint64_t serial);
bool process_is_there (const struct process *process);
/* Whether the thread is there, and the process's. */
bool process_has_thread (const struct process *process, pid_t thread);
/* Its address space is another one by now (execve): process->memory is asked for again. false: it is not to be had. */
bool process_open_memory (struct tenant *tenant, struct process *process, pid_t thread);
/* Whether a call of its was continued and may have become another. */
void process_set_suspect (struct tenant *tenant, struct process *process, bool is_suspect);
/* SIGKILL, by the monitor. */
void process_kill (struct tenant *tenant, const struct process *process);
/* Its end is known, or of no interest. */
void process_unwatch (struct tenant *tenant, struct process *process);
void process_forget (struct tenant *tenant, struct process *process);

#endif
