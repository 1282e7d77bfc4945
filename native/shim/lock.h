/*
 * A mutex of one word. It lies in a page that the kernel wipes in a forked child (process.h), so that a child is never
 * locked out by a thread that it does not have. Signals are blocked while it is held: a handler that calls close()
 * cannot meet its own thread's lock.
 */
#ifndef NVC_SHIM_LOCK_H
#define NVC_SHIM_LOCK_H

#include <stdint.h>

struct lock {
    uint32_t word; /* 0 free, 1 held, 2 held and somebody waits */
};

/* With signals blocked already. */
void lock_hold (struct lock *lock);
/* Both give back, and take, the signal mask that the thread had. */
uint64_t lock_take (struct lock *lock);
void lock_give (struct lock *lock, uint64_t signals);
/* Signals stay blocked. */
void lock_release (struct lock *lock);

/* Blocks what can come from outside: not the faults a thread makes itself, which must reach the program's handlers.
 * reserved: also leave libc's own signals (32 to 34), without which setuid() in a threaded program never ends. */
uint64_t signals_block (int except_reserved);
void signals_restore (uint64_t signals);

#endif
