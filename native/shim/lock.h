/*
 * A futex mutex of one word, and blocking of signals. Implemented in lock.c.
 *
 * The word lies in a page that the kernel wipes in a forked child (process.h): a lock that another thread of the parent
 * held is free in the child. Signals are blocked while it is held, so that a handler that calls close() cannot deadlock
 * with its own thread.
 */
#ifndef NVC_SHIM_LOCK_H
#define NVC_SHIM_LOCK_H

#include <stdint.h>

struct lock {
    uint32_t word; /* 0 free, 1 held, 2 held, with waiters */
};

/* Signals must be blocked already. */
void lock_hold (struct lock *lock);
/* lock_take blocks signals and returns the previous mask, which lock_give restores. */
uint64_t lock_take (struct lock *lock);
void lock_give (struct lock *lock, uint64_t signals);
/* Unlocks; signals stay blocked. */
void lock_release (struct lock *lock);

/* Blocks asynchronous signals; synchronous faults (SIGSEGV and the like) must reach the program's handlers. Returns the
 * previous mask. except_reserved: libc's own signals (32 to 34) stay unblocked too, without which setuid() in a
 * threaded program never ends. */
uint64_t signals_block (int except_reserved);
void signals_restore (uint64_t signals);

#endif
