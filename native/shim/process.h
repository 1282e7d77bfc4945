/*
 * The library's state in a process: one struct, shim_process. Empty until the first call on a driver's node. Together
 * with all else that the library writes, relocations included, it must fit into one page (tests/native/test_shim.py),
 * as every program of a container pays for each further one; large members are in `pages`.
 *
 * `pages` is mapped at the first call on a driver's node. The kernel wipes it in a forked child (MADV_WIPEONFORK):
 * there the token's lock is free and its state 0, whatever the parent's other threads were doing, and the child
 * initializes its own state and slot. The parent's open files stay open in the child, and with them the lock of the
 * parent's slot and the driver's memory. A child of vfork shares the memory, but has descriptors of its own: closing or
 * duplicating those must not change the parent's state, so the child is recognised by its pid. Memory that it maps or
 * allocates on an open file of the driver is charged to its parent. Other calls need no getpid, except on kernels
 * without MADV_WIPEONFORK (before 4.14).
 *
 * Implemented in process.c, but for what a line below names (publish.c, host.c, thread.c, log.c).
 */
#ifndef NVC_SHIM_PROCESS_H
#define NVC_SHIM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "cap.h"
#include "files.h"
#include "lock.h"
#include "memory.h"
#include "region.h"
#include "rm/rm.h"
#include "shim/share.h"

struct token {
    uint32_t state; /* 0 new, 1 being set up, 2 ready */
    uint32_t pid;
    struct lock lock;
};

/* Zeroed. The first call touches two pages of it, a process with a context some more. */
struct pages {
    struct token token;
    struct files_initial files;
    char memory[60u << 10]; /* for memory_begin */
    uint32_t applied[SHARE_MAX_GPUS];
    struct cap caps[SHARE_MAX_GPUS];
    uint64_t frozen_since[SHARE_MAX_GPUS];
    char log[256];
    struct limits limits __attribute__ ((aligned (4096)));
};

enum thread_state { THREAD_NONE, THREAD_WANTED, THREAD_RUNS };

struct process {
    struct pages *pages;
    bool wiped; /* MADV_WIPEONFORK is in effect */

    const struct limits *shared; /* the file, mapped; NULL: there is none */
    bool known;                  /* `limits` was valid at least once */
    bool usable;                 /* `limits` is valid; otherwise every allocation is refused */
    uint32_t generation;         /* of the limits that were read last */
    uint64_t region_digest;      /* process_region_digest when it was applied last */
    bool limits_checked;
    bool current;          /* the limits that were read last are applied; read without the lock */
    struct limits *limits; /* in `pages` */
    struct limits *fresh;  /* a second copy, for process_reread_limits */
    const char *region_path;
    char region_variable[256]; /* stays valid in a forked child */

    const struct rm_abi *abi;
    bool unknown_driver;
    struct rm *rm;
    struct rm_host host;
    struct memory memory;
    struct files files;
    struct region region;
    bool attached;
    bool has_managed; /* read without the lock */
    bool in_managed;  /* rm's callbacks reserve and refund managed memory at the moment */

    uint32_t regrouped; /* a bit a GPU: its groups or channels changed */
    uint32_t *applied;  /* timeslices, microseconds; like the tables below, one for each GPU, in `pages` */

    enum thread_state thread;
    struct cap *caps;
    uint32_t capped; /* a bit a GPU: caps[] is in use */
    uint32_t frozen; /* a bit a GPU */
    uint64_t *frozen_since;

    bool log_path_read;
};

extern struct process shim_process;

/* For a call of the driver: the process, locked, initialized if needed; NULL: no memory. */
struct process *process_enter (uint64_t *signals);
/* For mmap and munmap: NULL unless the process is initialized. */
struct process *process_enter_known (uint64_t *signals);
/* For close and dup: NULL also in a child of vfork. */
struct process *process_enter_own (uint64_t *signals);
void process_leave (struct process *process, uint64_t signals);
/*
 * process_unlock before the driver's work between rm_begin and rm_end, process_lock after it. Signals stay blocked:
 * blocking them twice was a third of the cost of a call. That is not visible to the program, as the driver's work is
 * not interruptible anyway: it waits on semaphores that no signal ends (os_acquire_mutex and the rest of
 * os-interface.c, uvm_lock.h), except while the machine suspends (nv_system_pm_lock). SIGKILL, SIGSTOP and synchronous
 * faults are never blocked. A fork by another thread meanwhile is harmless: the child does not have this thread.
 */
void process_unlock (struct process *process);
void process_lock (struct process *process);
/* False in a child of vfork, which shares the memory. */
bool process_is_itself (const struct process *process);

/* Whether host or container changed the share since it was applied. Lock-free, a few loads. publish.c. */
bool process_is_stale (const struct process *process);
/* Whether the process is initialized and the current share applied: a call that rm passes then needs nothing else.
 * Lock-free, a few loads. publish.c. */
bool process_is_current (const struct process *process);

/* --- the rest with the process locked --- */

/* Reads the limits again when their generation changed. */
void process_reread_limits (struct process *process);
static inline void process_check_limits (struct process *process)
{
    if (!process->limits_checked || LOAD (process->shared->generation) != process->generation)
        process_reread_limits (process);
}
enum rm_node process_node_kind (struct process *process, int descriptor);
/* Sets `abi`; false: the driver is unknown (process_attach sets unknown_driver in the region). */
bool process_knows_driver (struct process *process);
/* Takes a slot and creates rm; false: no memory. */
bool process_attach (struct process *process);

/* --- publish.c, with the process locked --- */

/* The smaller of the limits of host and container: bytes, microseconds, 1/1000; 0: none. */
uint64_t process_memory_limit (const struct process *process, int gpu);
uint32_t process_timeslice (struct process *process, int gpu);
uint32_t process_cap (const struct process *process, int gpu);
/* A digest of what the region adds to the limits: caps and weights that the container lowered, and the count of changes
 * of compute groups. */
uint64_t process_region_digest (const struct process *process);
/* After a call: publishes groups and channels, writes timeslices, freezes new channels on a frozen GPU. True when a
 * thread must be started (thread_start), after process_leave. */
bool process_publish (struct process *process);

/* host.c: sets the callbacks. */
void host_set (struct rm_host *host);
/* thread.c: starts the thread that enforces caps and the pause. To be called without the lock. */
void thread_start (struct process *process);
/* log.c: appends a line. */
void log_note (struct process *process, const char *word, uint32_t number);

#endif
