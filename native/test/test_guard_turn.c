/* A tenant's two threads act in turn, and its listeners are those of both (guard/receive.c). */
#include "bare_tenant.h"
#include "guard/receive.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

static struct turn turn;
static atomic_uint acted;

static void *act (void *argument)
{
    turn_take (&turn);
    atomic_fetch_add (&acted, 1);
    turn_give (&turn);
    return argument;
}

/* The thread has asked for the turn. */
static void wait_until_it_waits (void)
{
    while (pthread_mutex_trylock (&turn.gate) == 0) {
        pthread_mutex_unlock (&turn.gate);
        usleep (100);
    }
}

/* What continued calls won is charged as long as any process is behind the filter. */
static void listeners (void)
{
    static struct guard guard;
    struct tenant *tenant = bare_tenant (&guard);
    const int listener = 1000, other = 1001;
    int ends[2];

    if (pipe (ends) != 0)
        return;
    tenant->limits.gpu_count = 1;
    tenant->raced[0] = 4096;
    tap_ok (!tenant_has_filter (tenant), "a tenant without listeners");
    tenant->receiver.listener = listener;
    receiver_drop (tenant, other);
    tap_ok (tenant->receiver.changes == 0 && tenant_has_filter (tenant) && tenant->raced[0] == 4096,
            "the receiving thread's listener is one");
    receiver_drop (tenant, listener);
    tap_ok (tenant->receiver.changes == 1, "which the other thread learns when it has let go of it");
    tap_ok (!tenant_has_filter (tenant) && tenant->raced[0] == 0, "until it has no process any more");
    tenant->receiver.listener = ends[0];
    tenant->receiver.is_taken = true;
    receiver_drop (tenant, ends[0]);
    tap_ok (fcntl (ends[0], F_GETFD) >= 0, "the receiving thread closes a listener that it has");
    tenant->receiver.listener = ends[0];
    receiver_drop (tenant, ends[0]);
    tap_ok (fcntl (ends[0], F_GETFD) < 0, "and not one that was over before");
    close (ends[1]);
    bare_end (tenant);
}

int main (void)
{
    pthread_t thread;
    unsigned missed = 0;

    turn_begin (&turn);
    for (unsigned i = 0; i < 200; i++) {
        turn_take (&turn);
        if (pthread_create (&thread, NULL, act, NULL) != 0)
            return 1;
        wait_until_it_waits ();
        missed += atomic_load (&acted) != i;
        turn_give (&turn);
        turn_take (&turn);
        missed += atomic_load (&acted) != i + 1;
        turn_give (&turn);
        pthread_join (thread, NULL);
    }
    tap_ok (missed == 0, "a thread that gives the turn and asks for it again comes after the one that waits");
    turn_end (&turn);
    listeners ();
    return tap_done ();
}
