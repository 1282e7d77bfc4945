#include "refused.h"

#include "raw.h"

#define NO_SUCH_PROCESS (-3) /* ESRCH */

/* Thread numbers, 0: free. Threads of a program have numbers in a row, so the remainder spreads them; an entry is in
 * its own place or in any after it. */
static uint32_t threads[REFUSED_THREADS];
/* Not less than there are entries: added before an entry is, and taken away after. A child of fork has its parent's
 * entries, which no thread of its own asks for until they are used again. */
static uint32_t entries;

static bool replace (uint32_t *entry, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n (entry, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static uint32_t *place (uint32_t thread, uint32_t number)
{
    return &threads[(thread + number) % REFUSED_THREADS];
}

static bool has_ended (uint32_t thread)
{
    return RAW3 (SYS_tgkill, RAW0 (SYS_getpid), thread, 0) == NO_SUCH_PROCESS;
}

/* An entry is only made, and only taken, by its own thread; others take its place only when there is no other. */
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
    /* Nobody stands before the driver's functions, or the refusals were in calls that it does not know. */
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
