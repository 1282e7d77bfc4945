/* Refused managed memory by thread (refused.h). Runs in every process of a container, on the refused thread,
 * lock-free. */
#include "refused.h"

#include "raw.h"

#define NO_SUCH_PROCESS (-3) /* ESRCH */

/* Thread ids, 0: free. Ids of a program's threads are consecutive, so the remainder spreads them. Open addressing: an
 * entry is at its own place or any after it. */
static uint32_t threads[REFUSED_THREADS];
/* An upper bound of the entries: incremented before one is made, decremented after one is removed. A forked child
 * inherits its parent's entries, which match none of its threads until an id is reused. */
static uint32_t entries;

static bool replace (uint32_t *entry, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n (entry, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static uint32_t *place (uint32_t thread, uint32_t number) { return &threads[(thread + number) % REFUSED_THREADS]; }

static bool has_ended (uint32_t thread) { return RAW3 (SYS_tgkill, RAW0 (SYS_getpid), thread, 0) == NO_SUCH_PROCESS; }

/* An entry is made and removed by its own thread; another thread replaces it only when the table is full. */
void refused_set (uint32_t thread)
{
    uint32_t other;

    for (uint32_t i = 0; LOAD (entries) && i < REFUSED_THREADS; i++)
        if (LOAD (*place (thread, i)) == thread)
            return;
    __atomic_add_fetch (&entries, 1, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < REFUSED_THREADS; i++)
        if (replace (place (thread, i), 0, thread))
            return;
    /* Full of entries that were never taken: no library of native/shim/api is loaded, or it does not wrap the refused
     * calls. */
    for (uint32_t i = 0; i < REFUSED_THREADS; i++) {
        other = LOAD (*place (thread, i));
        if (other && has_ended (other) && replace (place (thread, i), other, thread)) {
            __atomic_sub_fetch (&entries, 1, __ATOMIC_SEQ_CST);
            return;
        }
    }
    if (__atomic_exchange_n (place (thread, 0), thread, __ATOMIC_SEQ_CST))
        __atomic_sub_fetch (&entries, 1, __ATOMIC_SEQ_CST);
}

bool refused_take (void)
{
    uint32_t thread;

    if (!LOAD (entries))
        return false;
    thread = (uint32_t) RAW0 (SYS_gettid);
    for (uint32_t i = 0; i < REFUSED_THREADS; i++)
        if (replace (place (thread, i), thread, 0)) {
            __atomic_sub_fetch (&entries, 1, __ATOMIC_SEQ_CST);
            return true;
        }
    return false;
}
