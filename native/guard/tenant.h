/* A tenant of the guard: its thread, its processes, and what the files of native/guard offer each other. */
#ifndef NVC_GUARD_TENANT_H
#define NVC_GUARD_TENANT_H

#include "edges.h"
#include "guard.h"
#include "retained.h"
#include "managed.h"
#include "rm/rm.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#define TENANT_LISTENERS 64  /* one a process that the runtime started in the container (run, exec) */
#define TENANT_PROCESSES 512 /* with clients of the resource manager; others are forgotten when room is needed */
#define TENANT_THREADS 4096  /* cache of thread -> process, a power of two */
#define PROCESS_CLIENTS 32   /* descriptors remembered for clients */
#define SCRATCH_SIZE (64u * 1024)

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

#define REPLAY_HEAD 192u /* the longest announced struct (NVOS32) is 184 bytes */
/* The last call that was made for a thread. */
struct replay {
    uint64_t arguments[3]; /* of the ioctl */
    int32_t error;
    uint32_t head_size; /* 0: nothing here */
    bool undelivered;   /* no thread took the answer; otherwise it is only likely that one did */
    uint8_t head[REPLAY_HEAD];
};

/* Numbers of threads are not used again so soon: the kernel gives them out in turn, and has 32768 at the least. */
#define THREAD_SOON_NS 10000000u
struct thread_entry {
    pid_t thread;
    uint64_t serial;
    uint64_t called_at; /* CLOCK_MONOTONIC ns */
    struct replay replay;
};

#define TENANT_GUESSES 64u
/* Where the params of a call lay the last time that its struct lay there. */
struct params_guess {
    uint64_t address, params; /* in the container: of the struct, of the params */
    uint32_t request, size;   /* size 0: nothing here */
};

#define TENANT_INFLIGHT 64 /* calls of one tenant whose outcome is not known yet */
struct inflight_call {
    int32_t thread;
    uint64_t serial; /* of its process */
    uint64_t at;     /* CLOCK_MONOTONIC ns */
    uint64_t arguments[3];
};


struct tenant {
    struct guard *guard;
    uint32_t id;
    pthread_t runner;
    atomic_bool stop; /* its channels are not stopped any more */
    sem_t ready, ended; /* posted once each, by the thread: start_error is known; nothing of it runs any more */
    atomic_uint users; /* calls about it that are in progress: it is freed, by its thread, when there are none */
    atomic_int start_error;
    int epoll, wake;

    /* What the scheduler has set, without the lock: put into force when the lock is released (tenant_unlock), if has_changes. */
    atomic_bool has_changes, planned_frozen[SHARE_MAX_GPUS];
    /* Why its channels are off beside that; the phase thread reads them too. */
    atomic_bool over[SHARE_MAX_GPUS]; /* above its quota by what could only be seen afterwards */
    atomic_bool is_unresponsive;      /* its thread waits for too long */
    atomic_bool is_paused;            /* limits say so */
    struct edges edges;
    _Atomic uint32_t slice[SHARE_MAX_GPUS];

    pthread_mutex_t listeners_lock; /* listeners; the last of all locks, and never held for long */
    int listeners[TENANT_LISTENERS];
    unsigned listener_count;

    pthread_mutex_t lock; /* everything below */
    struct limits limits;
    const struct rm_abi *abi;
    struct rm *rm;
    struct process processes[TENANT_PROCESSES];
    struct thread_entry threads[TENANT_THREADS];
    struct inflight_call inflight[TENANT_INFLIGHT];
    unsigned inflight_count;
    uint64_t next_serial;
    uint64_t refreshed_at; /* status.notifications then */
    uint64_t ended_at;  /* the last of its processes that did (CLOCK_MONOTONIC ns); 0: all of them are refunded */
    bool wants_refresh;    /* the current call was refused for what may have been given back by now */
    uint64_t look_at, ask_at; /* the earliest of its processes' times (CLOCK_MONOTONIC ns); 0: none */
    bool unreached; /* one of its processes is */
    uint64_t waits_since; /* for something of a process, without the lock (CLOCK_MONOTONIC ns); 0: it does not */
    pid_t waits_for;
    bool are_edges_old; /* rm's channels changed since edges_publish */
    uint64_t used[SHARE_MAX_GPUS];    /* what rm reserved */
    uint64_t managed[SHARE_MAX_GPUS]; /* mappings of the UVM node, on every GPU of the share: they can move to any */
    struct orphan_space orphan_spaces[TENANT_SPACES], orphan_overflow; /* the last: all for which there was no room */
    unsigned orphan_space_count;
    uint64_t spaces_at, spaces_delay; /* when to look at them (CLOCK_MONOTONIC ns) */
    uint64_t excess[SHARE_MAX_GPUS]; /* driver-reported usage above the ledger, charged too */
    struct fair {
        uint64_t debt, counted_at; /* ns of the driver's time, at that time (CLOCK_MONOTONIC ns) */
        uint64_t until;            /* its calls wait; 0: no need */
        uint64_t begun_at, cpu;    /* the current call (CLOCK_MONOTONIC ns); the thread's processor time when last read, ns */
        _Atomic uint64_t closed;   /* ns that closing its files took, and that are not counted yet */
    } fair;
    _Atomic uint64_t called_at; /* its last call (CLOCK_MONOTONIC ns) */
    struct retained retained; /* what was freed and lives on, charged too */
    struct guard_status status; /* counters */

    /* The current call: rm's own ioctls on its file go through this copy. */
    struct process *current;
    int copy;
    struct params_guess guesses[TENANT_GUESSES], guessed; /* guessed: what lies in params of the current call */
    uint8_t head[4096], params[SCRATCH_SIZE], list[SCRATCH_SIZE], rights[16];
    uint32_t params_used; /* bytes of params; all behind them are 0 */
    uint8_t head_before[4096], params_before[SCRATCH_SIZE]; /* before rm began the call; long params only if it may begin again */
};

#define GUARD_TENANTS 4096
#define GUARD_EVENTS 1024

struct guard {
    pthread_mutex_t lock; /* tenants[] and events */
    struct tenant *tenants[GUARD_TENANTS];
    unsigned tenant_count;
    int event_descriptor, changed_descriptor;
    atomic_bool is_changed; /* changed_descriptor is readable */
    struct guard_event events[GUARD_EVENTS];
    unsigned event_count;
    char devices[256]; /* the directory of the driver's nodes */
    int contention;    /* a file of struct guard_contention; -1: none */
    /* Clients of the driver take milliseconds to be made, so they are made when they are needed first. */
    pthread_mutex_t driver_usage_lock;
    struct driver_usage *driver_usage; /* NULL: no device node could be opened */
    pthread_mutex_t probe_lock; /* after a tenant's lock */
    struct dup_probe *dup_probe; /* NULL as well */
    bool has_driver_usage, has_dup_probe; /* opening it was tried */
    int exec_watch; /* a counter as those of space.c, on this process: the first one of a machine takes 10 ms */
    bool sees_exec;
    bool has_detached_threads; /* the thread of a tenant that was removed did not end in time, and uses the guard */
    pthread_t closer;
    int closing[2]; /* descriptors for it; -1: none */
};

struct seccomp_notif;

/* guard.c: the guard's clients of the driver; NULL: there are none. With driver_usage_lock, and without probe_lock. */
struct driver_usage *guard_driver_usage (struct guard *guard);
struct dup_probe *guard_dup_probe (struct guard *guard);
/* guard.c: a tenant that cannot go away until guard_let_go; NULL: there is none of this number. */
struct tenant *guard_find (struct guard *guard, uint32_t id);
void guard_let_go (struct tenant *tenant);
/* Takes its lock, unless another thread has it for longer than so many ns. */
bool guard_lock (struct tenant *tenant, uint64_t patience);
/* Both: 0, -ENOENT, or -EBUSY. guard_release gives both back, and returns the result. */
int guard_hold (struct guard *guard, uint32_t id, uint64_t patience, struct tenant **tenant);
int guard_release (struct tenant *tenant, int result);
/* The patience of a caller that cannot try again. */
#define GUARD_TELL_NS UINT64_C (1000000000)
/* The result of guard_tenant_status may be different now. */
void guard_changed (struct guard *guard);
void guard_note (struct tenant *tenant, enum rm_reason reason, uint32_t number, pid_t pid);
uint64_t guard_now (void); /* CLOCK_MONOTONIC, ns */

/* process.c: the process that a thread belongs to, entered if it is new; NULL when it is gone or there is no room. */
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
/* A copy of a descriptor of the process that is one of the driver's nodes, of which kind; -errno: -ENOTTY if it is something
 * else, which is never held, -ESRCH if the process has ended. The caller closes it. Other threads can have the tenant's
 * lock meanwhile (wait.c). */
int process_copy (struct tenant *tenant, const struct process *process, int descriptor, enum rm_node *node);

/* memory.c: all of it or an error. tenant: under its lock, which others can have meanwhile; NULL: no lock is held. */
bool memory_read (struct tenant *tenant, pid_t thread, uint64_t address, void *to, size_t size);
/* The struct of a call into tenant->head and, in the same system call, what it most likely points at into
 * tenant->params. */
bool memory_read_head (struct tenant *tenant, pid_t thread, uint64_t address, uint32_t request, size_t size);
/* What it does point at, into tenant->params: nothing is left to do if that was foreseen. */
bool memory_read_params (struct tenant *tenant, pid_t thread, uint64_t params, uint32_t size);
struct memory_piece {
    uint64_t address;
    const void *from;
    size_t size;
};
/* Up to 8 pieces, in one system call. */
bool memory_write_all (struct tenant *tenant, pid_t thread, const struct memory_piece *pieces, unsigned count);

/* host.c: what rm needs. */
extern const struct rm_host guard_host;
/* Whether something is charged that may have been given back unseen, and was not looked at during this call. */
bool host_can_refresh (const struct tenant *tenant);
void host_refresh (struct tenant *tenant);

/* wait.c: around all that a process of the container can make last: its memory, its mappings, its descriptors. Other threads can
 * have the tenant's lock meanwhile; never in the middle of one of rm's halves. What is returned goes to wait_end. */
struct process *wait_begin (struct tenant *tenant, pid_t pid);
void wait_end (struct tenant *tenant, struct process *current);
/* Closes a copy of a descriptor of the container's, whatever file it may be. */
void wait_close (struct tenant *tenant, pid_t pid, int file);
/* So many ns from now, by that clock. */
struct timespec guard_time_in (uint64_t nanoseconds, clockid_t clock);
/* Under the lock: freezes the tenant while it has waited for too long. */
void wait_check (struct tenant *tenant, uint64_t now);

/* reach.c: an ioctl of rm's own on the file of a client, whose handle the struct begins with. 0 or -errno. */
long reach_ioctl (struct tenant *tenant, struct process *process, uint32_t request, void *argument);
/* No file of the client is held: its process's descriptors are looked through soon. */
void reach_missing (struct tenant *tenant, struct process *process, uint32_t client);
/* Looks for the files of clients that were not reached; when to do so again (CLOCK_MONOTONIC ns), 0: no need. */
uint64_t reach_check (struct tenant *tenant, uint64_t now);

/* notify.c: receives one notification from a listener and answers it. false: the listener is done. */
bool notify_handle (struct tenant *tenant, int listener);

/* call.c: an ioctl. The answer goes into value and error; continue_syscall: the kernel makes the call as the tenant. */
struct answer {
    int64_t value;
    int32_t error; /* 0 or -errno */
    bool continue_syscall;
    bool is_stale; /* the process is not the thread's */
    uint32_t head_size; /* not 0: the call was made, and its answer lies in the container's memory and in tenant->head */
};
struct seccomp_notif;
struct answer call_ioctl (struct tenant *tenant, int listener, const struct seccomp_notif *notification,
                          struct process *process);
/* replay.c: a call that was made, and whose answer a signal kept from its thread: the thread makes the same call again, and gets
 * that answer. Recording it: tenant->head still holds what was answered. */
void replay_keep (struct tenant *tenant, const struct seccomp_notif *notification, const struct answer *answer,
                  bool undelivered);
/* tenant->head: of the call that the thread makes now. */
bool replay_find (struct tenant *tenant, const struct seccomp_notif *notification, struct answer *answer);

/* driver_usage.c: the guard's own client of the driver, and the memory that the driver reports of processes. */
struct driver_usage;
struct driver_usage *driver_usage_open (const char *device_directory);
void driver_usage_close (struct driver_usage *driver_usage);
/* Bytes of video memory of clients that this (host) process made, a GPU by its UUID; -errno. */
long driver_usage_of_process (struct driver_usage *driver_usage, const uint8_t uuid[16], pid_t pid, uint64_t *bytes);
/* reconcile.c: the driver is asked about the process at this time. */
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

/* inflight.c: a call is about to be continued. false: too many of the tenant's are in flight. */
bool inflight_add (struct tenant *tenant, struct process *process, const struct seccomp_notif *notification);
/* The thread makes another call: those before are over. */
void inflight_remove (struct tenant *tenant, pid_t thread);
/* Whether calls of threads of the process are in flight. */
bool inflight_is_pending (struct tenant *tenant, const struct process *process, uint64_t now);
/* Such a call became memory beyond the quota: the process is ended (SIGKILL). */
void kill_offender (struct tenant *tenant, struct process *process);

/* fair.c: what a call took of the driver, ns. */
void fair_spent (struct tenant *tenant, uint64_t nanoseconds);
/* Closing a file of a tenant (its number in the guard, which need not be there any more) took so long, by fair_cpu. */
void fair_closed (struct guard *guard, uint32_t id, uint64_t nanoseconds);
uint64_t fair_cpu (void); /* of the calling thread, ns */
/* Around a call of the driver: what it took is the tenant's burden. */
void fair_begin (struct tenant *tenant);
void fair_end (struct tenant *tenant);
/* Milliseconds that the tenant's calls have to wait; 0: none. */
int fair_wait (struct tenant *tenant, uint64_t now);

/* schedule.c: whether the tenant's channels on the GPU are to be off; without a lock. */
bool schedule_is_off (const struct tenant *tenant, uint32_t gpu);
/* Under the tenant's lock. */
void schedule_apply (struct tenant *tenant, uint32_t gpu);
/* Unlocks it. What the scheduler has set meanwhile is in force before other threads have the lock. */
void tenant_unlock (struct tenant *tenant);

/* Bytes that count against the quota of a GPU. */
static inline uint64_t tenant_used (const struct tenant *tenant, uint32_t gpu)
{
    uint64_t parts[] = { tenant->excess[gpu], tenant->managed[gpu], tenant->retained.bytes[gpu] }, sum = tenant->used[gpu];

    for (unsigned i = 0; i < sizeof (parts) / sizeof (parts[0]); i++)
        if (__builtin_add_overflow (sum, parts[i], &sum))
            return UINT64_MAX;
    return sum;
}

/* tenant.c */
/* Rights that its thread has only while it uses them, by words: CAP_IPC_LOCK; CAP_PERFMON (linux/capability.h since 5.8). */
static const uint32_t tenant_seldom[2] = { 1u << 14, 1u << (38 - 32) };
/* For good, of the calling thread: what it does not need to reach a container's memory and descriptors. */
bool tenant_drop_rights (void);
struct tenant *tenant_create (struct guard *guard, uint32_t id, const struct limits *limits, int *error);
/* Its thread is to end. Afterwards, tenant_destroy: waits for that, until this time (CLOCK_REALTIME) at the most. false: it has
 * not; it frees the tenant when it does, and the guard has to stay. The tenant is not on the table any more. */
void tenant_stop (struct tenant *tenant);
bool tenant_destroy (struct tenant *tenant, const struct timespec *until);
/* 0 or -errno. */
int tenant_listen (struct tenant *tenant, int listener);

#endif
