/* Refusals of managed memory: each of many threads takes its own, once. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/refused.h"
#include "tap.h"

enum { MAX_THREADS = REFUSED_THREADS + 44 };

static pthread_barrier_t barrier;
static atomic_int taken, taken_twice, taken_before;

static void meet (void) { pthread_barrier_wait (&barrier); }

/* All are refused, then all take their refusal: no entry may replace another one. */
static void *refused (void *nothing)
{
    meet ();
    if (refused_take ())
        taken_before++;
    meet ();
    refused_set ((uint32_t) gettid ());
    refused_set ((uint32_t) gettid ());
    meet ();
    taken += refused_take ();
    taken_twice += refused_take ();
    meet ();
    return nothing;
}

static pid_t silent_thread;

/* Ends without taking its refusal. */
static void *silent (void *nothing)
{
    silent_thread = gettid ();
    refused_set ((uint32_t) silent_thread);
    return nothing;
}

/* Waits until the thread id is unused, which is later than pthread_join returns. */
static void silently (void)
{
    pthread_t thread;

    if (pthread_create (&thread, NULL, silent, NULL) != 0)
        return;
    pthread_join (thread, NULL);
    for (int turn = 0; turn < 100000 && syscall (SYS_tgkill, getpid (), silent_thread, 0) == 0; turn++)
        usleep (100);
}

/* How many of `count` threads took a refusal. */
static int threads_taken (unsigned count)
{
    pthread_t threads[MAX_THREADS];
    pthread_attr_t small;

    taken = taken_twice = taken_before = 0;
    pthread_attr_init (&small);
    pthread_attr_setstacksize (&small, 64u << 10);
    pthread_barrier_init (&barrier, NULL, count);
    for (unsigned i = 0; i < count; i++)
        if (pthread_create (&threads[i], &small, refused, NULL) != 0)
            return -1;
    for (unsigned i = 0; i < count; i++)
        pthread_join (threads[i], NULL);
    pthread_barrier_destroy (&barrier);
    pthread_attr_destroy (&small);
    return taken;
}

int main (void)
{
    bool all = true;

    tap_ok (!refused_take (), "there is no refusal at first");
    refused_set ((uint32_t) gettid ());
    tap_ok (refused_take () && !refused_take (), "a refusal is taken once");
    for (int round = 0; round < 50; round++)
        all = all && threads_taken (8) == 8 && !taken_twice;
    tap_ok (all, "eight threads that are refused at once take their refusals, each once");
    tap_ok (threads_taken (REFUSED_THREADS) == REFUSED_THREADS && !taken_twice && !taken_before,
            "so do as many as there are entries");
    tap_ok (threads_taken (MAX_THREADS) == REFUSED_THREADS && !taken_twice && !taken_before,
            "of more threads as many as there are entries");
    tap_ok (threads_taken (8) == 8 && !taken_before, "which are free again then");
    silently ();
    tap_ok (threads_taken (REFUSED_THREADS) == REFUSED_THREADS && !taken_twice,
            "one more takes the entry of the thread that has ended");
    for (int i = 0; i < MAX_THREADS; i++)
        silently ();
    tap_ok (threads_taken (8) == 8 && !taken_twice, "entries of threads that have ended are used again");
    return tap_done ();
}
