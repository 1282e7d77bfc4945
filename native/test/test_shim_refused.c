/* Who is told that managed memory was refused: each thread of many, once. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/refused.h"
#include "tap.h"

enum { MOST = REFUSED_THREADS + 44 };

static pthread_barrier_t barrier;
static atomic_int told, told_twice, told_nothing;

static void meet (void)
{
    pthread_barrier_wait (&barrier);
}

/* All are refused, then all ask: so nobody's entry may take another's place. */
static void *refused (void *nothing)
{
    meet ();
    if (refused_take ())
        told_nothing++;
    meet ();
    refused_set ((uint32_t) gettid ());
    refused_set ((uint32_t) gettid ());
    meet ();
    told += refused_take ();
    told_twice += refused_take ();
    meet ();
    return nothing;
}

static pid_t silent_thread;

/* Ends without asking. */
static void *silent (void *nothing)
{
    silent_thread = gettid ();
    refused_set ((uint32_t) silent_thread);
    return nothing;
}

/* Until the kernel does not know it any more, which is later than it can be joined. */
static void silently (void)
{
    pthread_t thread;

    if (pthread_create (&thread, NULL, silent, NULL) != 0)
        return;
    pthread_join (thread, NULL);
    for (int turn = 0; turn < 100000 && syscall (SYS_tgkill, getpid (), silent_thread, 0) == 0; turn++)
        usleep (100);
}

/* How many of that many threads were told. */
static int threads_told (unsigned count)
{
    pthread_t threads[MOST];
    pthread_attr_t small;

    told = told_twice = told_nothing = 0;
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
    return told;
}

int main (void)
{
    bool all = true;

    tap_ok (!refused_take (), "nobody was refused");
    refused_set ((uint32_t) gettid ());
    tap_ok (refused_take () && !refused_take (), "who was refused is told once");
    for (int round = 0; round < 50; round++)
        all = all && threads_told (8) == 8 && !told_twice;
    tap_ok (all, "eight threads that are refused at once are told, each once");
    tap_ok (threads_told (REFUSED_THREADS) == REFUSED_THREADS && !told_twice && !told_nothing,
            "so are as many as there are entries");
    tap_ok (threads_told (MOST) == REFUSED_THREADS && !told_twice && !told_nothing,
            "of more threads as many as there are entries");
    tap_ok (threads_told (8) == 8 && !told_nothing, "which are free again then");
    silently ();
    tap_ok (threads_told (REFUSED_THREADS) == REFUSED_THREADS && !told_twice,
            "one more takes the entry of the thread that has ended");
    for (int i = 0; i < MOST; i++)
        silently ();
    tap_ok (threads_told (8) == 8 && !told_twice, "entries of threads that have ended are used again");
    return tap_done ();
}
