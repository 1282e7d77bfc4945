/* The lock (lock.h). Runs in every process of a container that uses a GPU, on any thread. */
#include "lock.h"

#include <linux/futex.h>
#include <signal.h>

#include "raw.h"

#define BIT(number) ((uint64_t) 1 << ((number) - 1))
#define FAULTS (BIT (SIGSEGV) | BIT (SIGBUS) | BIT (SIGFPE) | BIT (SIGILL) | BIT (SIGTRAP) | BIT (SIGSYS) | BIT (SIGABRT))
#define RESERVED (BIT (32) | BIT (33) | BIT (34))

uint64_t signals_block (int except_reserved)
{
    uint64_t blocked = ~(uint64_t) FAULTS & ~(except_reserved ? RESERVED : 0);
    uint64_t before = 0;

    RAW4 (SYS_rt_sigprocmask, SIG_BLOCK, &blocked, &before, sizeof before);
    return before;
}

void signals_restore (uint64_t signals) { RAW4 (SYS_rt_sigprocmask, SIG_SETMASK, &signals, NULL, sizeof signals); }

void lock_hold (struct lock *lock)
{
    uint32_t expected = 0;

    if (!__atomic_compare_exchange_n (&lock->word, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        while (__atomic_exchange_n (&lock->word, 2, __ATOMIC_ACQUIRE) != 0)
            RAW4 (SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL);
}

uint64_t lock_take (struct lock *lock)
{
    uint64_t signals = signals_block (0);

    lock_hold (lock);
    return signals;
}

void lock_release (struct lock *lock)
{
    if (__atomic_exchange_n (&lock->word, 0, __ATOMIC_RELEASE) == 2)
        RAW3 (SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1);
}

void lock_give (struct lock *lock, uint64_t signals)
{
    lock_release (lock);
    signals_restore (signals);
}
