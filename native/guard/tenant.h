/* A tenant of the guard: its thread, its processes, its books. Private to native/guard. */
#ifndef NVC_GUARD_TENANT_H
#define NVC_GUARD_TENANT_H

#include "guard.h"
#include "keep.h"
#include "rm/rm.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define TENANT_LISTENERS 64  /* one a process that the runtime started in the container (run, exec) */
#define TENANT_PROCESSES 512 /* with clients of the resource manager; others are forgotten when room is needed */
#define TENANT_THREADS 4096  /* cache of thread -> process, a power of two */
#define PROCESS_CLIENTS 32   /* descriptors remembered for clients */
#define SCRATCH_SIZE (64u * 1024)

/* The address space of a process that maps managed memory (space.c); all zero: it is not held. */
struct space {
    bool is_held;
    int memory;  /* its /proc/PID/mem */
    int watch;   /* a counter that says when the process executes something */
    void *page;  /* of that; NULL: there is none */
    uint64_t announced, announced_at; /* bytes that may be mapped and were not seen yet; the last (CLOCK_MONOTONIC ns) */
};

#define TENANT_SPACES 64u
/* One that its process left, by ending or by execve, and that others use. */
struct left_space {
    int memory;
    pid_t pid; /* who left it */
    uint64_t bytes;
};

/* A process of the container that called the driver. */
struct process {
    uint64_t serial; /* what rm calls a file; 0: this place is free */
    pid_t pid;       /* host */
    uint64_t start_time; /* field 22 of /proc/PID/stat */
    int pidfd;
    bool dead;       /* its pidfd said so; waiting for the driver to let go of what it had */
    uint64_t ask_at; /* CLOCK_MONOTONIC ns: when to look whether it did */
    uint64_t ask_delay;
    uint64_t used_at;
    uint64_t look_at;   /* when to look at its mappings; 0: it was not seen yet */
    uint64_t look_delay, look_not_before;
    bool has_mapped;    /* it announced a mapping, which it may make at any time */
    uint64_t managed;   /* bytes charged for its mappings */
    struct space space;
    uint64_t truth[SHARE_MAX_GPUS];
    struct known_client {
        uint32_t client;
        int descriptor;
    } clients[PROCESS_CLIENTS];
    unsigned client_count;
    uint64_t unreached_since; /* an ioctl on this client's file found no descriptor; 0: none did */
    uint32_t unreached_client;
    bool is_suspect; /* a call was left to it that may have become another */
    bool is_due, is_on, is_cleared; /* of the look in hand: it is about this one; calls of its are under way, or over */
    uint64_t asked_at; /* the driver, about it, last (CLOCK_MONOTONIC ns); 0: never */
    uint64_t truth_before[SHARE_MAX_GPUS], excess_before[SHARE_MAX_GPUS]; /* before that */
};

#define REPLAY_HEAD 192u /* the longest announced struct (NVOS32) is 184 bytes */
/* The last call that was made for a thread. */
struct replay {
    uint64_t arguments[3]; /* of the ioctl */
    int32_t error;
    uint32_t head_size; /* 0: nothing here */
    bool undelivered;   /* nobody took the answer; otherwise it is only likely that somebody did */
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

#define TENANT_LEFT 64 /* calls of one tenant that are under way without the guard */
struct left_call {
    int32_t thread;
    uint64_t serial; /* of its process */
    uint64_t at;     /* CLOCK_MONOTONIC ns */
    uint64_t arguments[3];
};

struct channel_list;
struct books;

struct tenant {
    struct guard *guard;
    uint32_t id;
    pthread_t runner;
    bool started;
    atomic_bool stop; /* nobody stops its channels any more */
    sem_t ready; /* posted once, by the thread: start_error is known */
    atomic_int start_error;
    int epoll, wake;

    _Atomic uint64_t *in_hand; /* a mapped file's, or NULL: the id of the notification that is being answered */

    pthread_mutex_t lock; /* everything below */
    struct books *books; /* a mapped file's, or NULL */
    int books_file;
    bool has_room[TENANT_PROCESSES]; /* in the file */
    struct channel_list *channels; /* a mapped file's, or NULL */
    int channels_file;
    off_t channels_end;
    bool channels_changed;
    struct limits limits;
    const struct rm_abi *abi;
    struct rm *rm;
    int listeners[TENANT_LISTENERS];
    unsigned listener_count;
    struct process processes[TENANT_PROCESSES];
    struct thread_entry threads[TENANT_THREADS];
    struct left_call left[TENANT_LEFT];
    unsigned left_count;
    uint64_t next_serial;
    uint64_t looked_at; /* status.notifications then */
    uint64_t ended_at;  /* the last of its processes that did (CLOCK_MONOTONIC ns); 0: all of them are refunded */
    bool wants_look;    /* what may have been given back by now was held against the call in hand */
    uint64_t look_at, ask_at; /* the earliest of its processes' times (CLOCK_MONOTONIC ns); 0: none */
    bool unreached; /* one of its processes is */
    bool wants_files; /* keep_restore is to be called */
    bool has_ended, is_given_up; /* its thread has; nobody waits for its thread, which frees the tenant */
    uint64_t waits_since; /* for something of a process, without the lock (CLOCK_MONOTONIC ns); 0: it does not */
    pid_t waits_for;
    bool is_stuck; /* for too long: frozen until it goes on */
    uint64_t used[SHARE_MAX_GPUS];    /* what rm reserved */
    uint64_t managed[SHARE_MAX_GPUS]; /* mappings of the UVM node, on every GPU of the share: they can move to any */
    struct left_space left_spaces[TENANT_SPACES], left_for_good; /* the last: all for which there was no room */
    unsigned left_space_count;
    uint64_t spaces_at, spaces_delay; /* when to look at them (CLOCK_MONOTONIC ns) */
    uint64_t excess[SHARE_MAX_GPUS]; /* truth above the books, charged too */
    struct fair {
        uint64_t debt, counted_at; /* ns of the driver's time, at that time (CLOCK_MONOTONIC ns) */
        uint64_t until;            /* its calls wait; 0: no need */
        uint64_t begun_at, cpu;    /* the call in hand (CLOCK_MONOTONIC ns); the thread's processor time when last read, ns */
        _Atomic uint64_t closed;   /* ns that closing its files took, and that are not counted yet */
    } fair;
    _Atomic uint64_t called_at; /* its last call (CLOCK_MONOTONIC ns) */
    struct keep keep; /* what was freed and lives on, charged too */
    uint32_t slice[SHARE_MAX_GPUS];
    bool wished_frozen[SHARE_MAX_GPUS]; /* by the scheduler */
    bool over[SHARE_MAX_GPUS];          /* above its quota by what could only be seen afterwards: frozen until it is not */
    bool frozen[SHARE_MAX_GPUS];
    uint64_t frozen_since[SHARE_MAX_GPUS];
    struct guard_status status; /* counters */

    /* The call in hand: rm's own ioctls on its file go through this copy. */
    struct process *current;
    int copy;
    struct params_guess guesses[TENANT_GUESSES], guessed; /* guessed: what lies in params of the call in hand */
    uint8_t head[4096], params[SCRATCH_SIZE], list[SCRATCH_SIZE], rights[16];
    uint32_t params_used; /* bytes of params; all behind them are 0 */
    uint8_t said[4096], said_params[SCRATCH_SIZE]; /* of them, before rm began the call; long params only if it may begin again */
};

#define GUARD_TENANTS 4096
#define GUARD_EVENTS 1024

struct guard {
    pthread_mutex_t lock; /* tenants[] and events */
    struct tenant *tenants[GUARD_TENANTS];
    unsigned tenant_count;
    int event_descriptor;
    struct guard_event events[GUARD_EVENTS];
    unsigned event_count;
    pthread_rwlock_t calls; /* read: a call about a tenant is in progress */
    pthread_mutex_t truth_lock;
    struct truth *truth; /* NULL: no device node could be opened */
    pthread_mutex_t witness_lock; /* after a tenant's lock */
    struct witness *witness; /* NULL as well */
    int exec_watch; /* a counter as those of space.c, on this process: the first one of a machine takes 10 ms */
    bool sees_exec;
    bool is_needed; /* by the thread of a tenant that was removed, and waits for something of a process */
    pthread_t closer;
    int closing[2]; /* descriptors for it; -1: none */
};

struct seccomp_notif;

/* guard.c */
void guard_note (struct tenant *tenant, enum rm_reason reason, uint32_t number, pid_t pid);
uint64_t guard_now (void); /* CLOCK_MONOTONIC, ns */

/* process.c: the process that a thread belongs to, entered if it is new; NULL when it is gone or there is no room. */
struct process *process_of_thread (struct tenant *tenant, pid_t thread);
/* The same without what is remembered: ESRCH said that it was wrong. */
struct process *process_of_thread_again (struct tenant *tenant, pid_t thread);
/* Field 22 of /proc/PID/stat; 0 when it is gone. */
uint64_t process_start_time (pid_t pid);
struct process *process_by_serial (struct tenant *tenant, uint64_t serial);
/* A process that another guard knew, in the place that its serial number says; dead if it is gone. */
void process_restore (struct tenant *tenant, uint64_t serial, pid_t pid, uint64_t start_time);
/* Whether that is new. Not done where there is no room, and it has nothing to be scheduled. */
bool process_remember_client (const struct tenant *tenant, struct process *process, uint32_t client, int descriptor);
int process_descriptor_of (const struct process *process, uint32_t client); /* -1: none */
bool process_is_there (const struct process *process);
void process_forget (struct tenant *tenant, struct process *process);
/* Calls `each` for threads beside the first one while it says true: when that one has ended, the kernel tells mappings and
 * descriptors by the others alone. */
void process_threads (const struct process *process, bool (*each) (const struct process *process, pid_t thread, void *context),
                      void *context);
/* A copy of a descriptor of the process that is one of the driver's nodes, of which kind; -errno. The caller closes it. */
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
bool host_may_look (const struct tenant *tenant);
void host_look (struct tenant *tenant);

/* wait.c: around whatever a process of the container can make last: its memory, its mappings, its descriptors. Others can
 * have the tenant's lock meanwhile; never in the middle of one of rm's halves. What is returned goes to wait_end. */
struct process *wait_begin (struct tenant *tenant, pid_t pid);
void wait_end (struct tenant *tenant, struct process *current);
/* Closes a copy of a descriptor of the container's, whatever file it may be. */
void wait_close (struct tenant *tenant, pid_t pid, int file);
/* Under the lock: freezes the tenant while it has waited for too long. */
void wait_check (struct tenant *tenant, uint64_t now);

/* reach.c: an ioctl of rm's own on the file of a client, whose handle the struct begins with. 0 or -errno. */
long reach_ioctl (struct tenant *tenant, struct process *process, uint32_t request, void *argument);
/* Looks for the files of clients that were not reached; when to do so again (CLOCK_MONOTONIC ns), 0: no need. */
uint64_t reach_check (struct tenant *tenant, uint64_t now);

/* notify.c: receives one notification from a listener and answers it. false: the listener is done. */
bool notify_handle (struct tenant *tenant, int listener);

/* call.c: an ioctl. The answer goes into value and error, or keep_on says that the kernel shall do it. */
struct answer {
    int64_t value;
    int32_t error; /* 0 or -errno */
    bool keep_on;
    bool is_stale; /* the process is not the thread's */
    uint32_t head_size; /* not 0: the call was made, and its answer lies in the container's memory and in tenant->head */
};
struct seccomp_notif;
struct answer call_ioctl (struct tenant *tenant, int listener, const struct seccomp_notif *notification,
                          struct process *process);
/* replay.c: a call that was made, and whose answer reached nobody because a signal came between: its thread makes the same
 * call again, and gets that answer. Keeping it: tenant->head still holds what was answered. */
void replay_keep (struct tenant *tenant, const struct seccomp_notif *notification, const struct answer *answer,
                  bool undelivered);
/* tenant->head: what the thread says now. */
bool replay_find (struct tenant *tenant, const struct seccomp_notif *notification, struct answer *answer);

/* repeat.c: whether an earlier guard may have made this call, and was killed before it answered. Before it is made. */
bool repeat_find (const struct tenant *tenant, const struct seccomp_notif *notification, const struct rm_call *call);
/* The call was made again: a refusal that says that it was made before is a success. */
void repeat_settle (const struct rm_call *call);
/* The thread is about to be answered. */
void repeat_over (struct tenant *tenant, const struct seccomp_notif *notification, const struct answer *answer);

/* Charges what processes whose time has come have mapped of the UVM node, as /proc/PID/maps says. */
void managed_refresh (struct tenant *tenant, uint64_t now);
/* managed.c: a mapping is being made, or was: the process is looked at soon. */
void managed_look (struct tenant *tenant, struct process *process);
/* Whether nothing of it is charged, and all that it announced was looked at. */
bool managed_was_seen (const struct process *process);
/* It is new, and looked at from time to time. */
void managed_watch (struct tenant *tenant, struct process *process);
/* The same for every process that has such mappings, now. */
void managed_now (struct tenant *tenant);
/* The process is gone, and its mappings with it. */
void managed_forget (struct tenant *tenant, struct process *process);
/* So many bytes in the place of `held`. */
void managed_charge (struct tenant *tenant, uint64_t *held, uint64_t bytes, pid_t pid);
/* Somebody left an address space. */
void managed_look_at_left (struct tenant *tenant);

/* space.c: finds out whether the kernel tells of an execve. */
void space_begin (struct guard *guard);
void space_end (struct guard *guard);
/* A thread of the process is about to map something: its address space is held. false: it could not be, and a mapping might
 * be lost sight of. */
bool space_hold (struct tenant *tenant, struct process *process, pid_t thread);
/* Whether what is held is what the process has now. */
bool space_is_current (const struct process *process);
/* It may map so many bytes from now on. */
void space_announced (struct process *process, uint64_t bytes);
/* It was looked at, and has mapped so many bytes; before that is charged. */
void space_seen (struct process *process, uint64_t bytes, uint64_t now);
/* It ended, or executed something: what it had mapped is charged as long as others use its address space. */
void space_leave (struct tenant *tenant, struct process *process);
/* Gives back what lay in address spaces that nobody uses any more. */
void space_check (struct tenant *tenant);
void space_close (struct process *process);
void space_release (struct tenant *tenant);

/* truth.c: the guard's own client of the driver, and what it says that processes hold. */
struct truth;
struct truth *truth_open (const char *device_directory);
void truth_close (struct truth *truth);
/* Bytes of video memory of clients that this (host) process made, a GPU by its UUID; -errno. */
long truth_of_process (struct truth *truth, const uint8_t uuid[16], pid_t pid, uint64_t *bytes);
/* verdict.c: the process is asked about at this time. */
void truth_ask_at (struct tenant *tenant, struct process *process, uint64_t at);
/* Asks about the processes whose time has come: dead ones that the driver has let go of are refunded, and what a process
 * holds beyond the books is charged. */
void truth_check (struct tenant *tenant, uint64_t now);
/* Whether what a process had may be about to come back; waits for that, for half a second at the most. */
bool truth_awaits_end (const struct tenant *tenant);
void truth_await_end (struct tenant *tenant);
/* The same about all living processes, now. */
void truth_now (struct tenant *tenant);
/* What the tenant's processes hold before a call is left to this one. */
void truth_begin (struct tenant *tenant, struct process *process);

/* race.c: a call is left to its thread. false: too many of the tenant's are under way. */
bool race_left (struct tenant *tenant, struct process *process, const struct seccomp_notif *notification);
/* The thread makes another call. */
void race_back (struct tenant *tenant, pid_t thread);
/* Whether calls that were left to threads of the process are under way. */
bool race_is_on (struct tenant *tenant, const struct process *process, uint64_t now);
/* Such a call became memory beyond the quota: the process is ended. */
void race_lost (struct tenant *tenant, struct process *process);

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

/* books.c: what outlives this process. All of it is nothing without a file. */
void books_close (struct tenant *tenant);
void *books_keep (struct tenant *tenant, size_t size); /* NULL: no room, or no file */
bool books_has (const struct tenant *tenant, const void *memory);
void books_process (struct tenant *tenant, const struct process *process);
/* The call in hand: received, about to be made (tenant->head), made, about to be answered, answered. */
void books_received (struct tenant *tenant, const struct seccomp_notif *notification);
void books_performing (struct tenant *tenant, uint64_t serial, const struct rm_call *call);
void books_performed (struct tenant *tenant, uint32_t head_size);
void books_answering (struct tenant *tenant, bool is_over);

/* channels.c: the file that says how to start the tenant's channels, for whoever outlives this process. 0 or -errno. */
int channels_open (struct tenant *tenant, int file);
/* Writes it anew if something changed. */
void channels_write (struct tenant *tenant);
void channels_close (struct tenant *tenant);

/* schedule.c: under the tenant's lock. */
void schedule_apply (struct tenant *tenant, uint32_t gpu);

/* Bytes that count against the quota of a GPU. */
static inline uint64_t tenant_used (const struct tenant *tenant, uint32_t gpu)
{
    return tenant->used[gpu] + tenant->excess[gpu] + tenant->managed[gpu] + tenant->keep.bytes[gpu];
}

/* tenant.c */
/* Rights that its thread has only while it uses them, by words: CAP_IPC_LOCK; CAP_PERFMON (linux/capability.h since 5.8). */
static const uint32_t tenant_seldom[2] = { 1u << 14, 1u << (38 - 32) };
/* For good, of the calling thread: what it does not need to reach a container's memory and descriptors. */
bool tenant_drop_rights (void);
struct tenant *tenant_create (struct guard *guard, uint32_t id, const struct limits *limits, int *error);
/* false: its thread waits for something of a process, and will free the tenant when it ends. The guard has to stay. */
bool tenant_destroy (struct tenant *tenant);
/* Under the tenant's lock. 0 or -errno. */
int tenant_listen (struct tenant *tenant, int listener);

#endif
