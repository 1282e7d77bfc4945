/*
 * What this library keeps in a process: one struct, in process.c. Nothing is there until a driver node is touched. With
 * all else that the library writes, relocations included, it must be one page (tests/native/test_shim.py): every
 * program of a container pays for another. What is large is in `pages`.
 *
 * What a process with a GPU has beyond that lies in pages that are mapped at once, and that the kernel wipes in a
 * forked child (MADV_WIPEONFORK): the token's lock is free there and its state 0, whatever the parent's other threads
 * were doing, and the child begins anew with a slot of its own. What the parent had open stays open in the child, and
 * so does the parent's slot's lock, as the driver's memory does. A child of vfork shares the pages, and everything but
 * its descriptors: closing and duplicating those is not our business, and there it is told by its pid. Memory that it
 * maps or takes on an open file of the driver is its parent's. Nobody else asks for a pid, except where the kernel does
 * not wipe (before 4.14).
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

/* Zeros at first, of which the first call touches two pages and a process with a context some more. */
struct pages {
    struct token token;
    struct files_room files;
    char memory[60u << 10]; /* rm's, to begin with */
    uint32_t applied[SHARE_MAX_GPUS];
    struct cap caps[SHARE_MAX_GPUS];
    uint64_t frozen_since[SHARE_MAX_GPUS];
    char log[256];
    struct limits limits __attribute__ ((aligned (4096)));
};

enum thread_state { THREAD_NONE, THREAD_WANTED, THREAD_RUNS };

struct process {
    struct pages *pages;
    bool wiped; /* the kernel wipes them on fork */

    const struct limits *shared; /* the file, mapped; NULL: there is none */
    bool known;                  /* `limits` was good once */
    bool usable;                 /* and is; otherwise every allocation is refused */
    uint32_t generation;         /* that was looked at last */
    uint64_t own;                /* what the container lowered itself, when that was looked at last */
    bool looked;
    bool settled; /* what was looked at last is applied; read without the lock */
    struct limits *limits; /* in `pages` */
    struct limits *fresh;  /* where later states of the file are read to */
    const char *region_path;
    char region_variable[256]; /* a child keeps it */

    const struct rm_abi *abi;
    bool unknown_driver;
    struct rm *rm;
    struct rm_host host;
    struct memory memory;
    struct files files;
    struct region region;
    bool attached;
    bool has_managed; /* read without the lock */
    bool in_managed;  /* what rm reserves and refunds now is managed memory */

    uint32_t regrouped; /* a bit a GPU: groups or channels came or went */
    uint32_t *applied;  /* timeslices, microseconds; like the tables below, for each GPU and in `pages` */

    enum thread_state thread;
    struct cap *caps;
    uint32_t capped; /* a bit a GPU: caps[] is in use */
    uint32_t frozen; /* a bit a GPU */
    uint64_t *frozen_since;

    bool log_looked;
};

extern struct process shim_process;

/* The process, locked, for a driver call; NULL when there is no memory for it. */
struct process *process_enter (uint64_t *signals);
/* Only if there is something already: for mmap, munmap. */
struct process *process_enter_known (uint64_t *signals);
/* The same, but NULL in a child of vfork: for close, dup. */
struct process *process_enter_own (uint64_t *signals);
void process_leave (struct process *process, uint64_t signals);
/*
 * Unlocked for the driver's work between the two halves of a call, and locked again after it. Signals stay blocked: a
 * handler between the halves could do nothing that it cannot do after them, and to block twice was a third of what a
 * call cost. The program does not notice, for the driver's work was no place where handlers ran before: it waits on
 * semaphores that no signal ends (os_acquire_mutex and the rest of os-interface.c, uvm_lock.h), but for the moment when
 * the machine goes to sleep (nv_system_pm_lock). SIGKILL, SIGSTOP and the faults that a thread makes itself are never
 * blocked. A fork by another thread meanwhile does not matter: its child has not this thread.
 */
void process_unlock (struct process *process);
void process_lock (struct process *process);
/* Is this the process itself, and no child that shares its memory? */
bool process_is_itself (const struct process *process);

/* Has the host or the container changed the share since? Without the lock, some loads. */
bool process_is_behind (const struct process *process);
/* Has it begun, has what it needs, and applied the share as it is now? Then a call that rm passes leaves nothing to do.
 * Without the lock, some loads. */
bool process_is_settled (const struct process *process);

/* --- the rest with the process locked --- */

/* Looks whether the limits changed. */
void process_look_closely (struct process *process);
static inline void process_look (struct process *process)
{
    if (!process->looked || LOAD (process->shared->generation) != process->generation)
        process_look_closely (process);
}
enum rm_node process_node_kind (struct process *process, int descriptor);
/* Tables for the driver: false when it is unknown (the region says so then). */
bool process_knows_driver (struct process *process);
/* Slot and rm; false when there is no memory for them. */
bool process_attach (struct process *process);
uint64_t process_memory_limit (const struct process *process, int gpu);
uint32_t process_timeslice (struct process *process, int gpu);
/* Caps and weights that the container lowered itself, and who has groups, as one number. */
uint64_t process_own (const struct process *process);
/* In 1/1000; 0: no cap. */
uint32_t process_cap (const struct process *process, int gpu);
/* After calls: publishes groups and channels, writes timeslices, freezes what is new on a frozen GPU. True when a
 * thread must be started (thread_start), after process_leave. */
bool process_settle (struct process *process);

/* host.c */
void host_set (struct rm_host *host);
/* thread.c: starts the thread that keeps caps and the pause. Not under the lock. */
void thread_start (struct process *process);
/* log.c */
void log_note (struct process *process, const char *word, uint32_t number);

#endif
