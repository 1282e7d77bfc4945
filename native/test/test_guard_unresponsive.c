/* A tenant's thread that is kept waiting (guard/tenant.c, guard/guard.c): no other thread waits for it. */
#include "guard/clock.h"
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/tenant.h"
#include "caller.h"
#include "tap.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define SECOND UINT64_C (1000000000)

static void *missing;

/* Makes a FREE on what is said to be the driver's node. */
static void child (int told, int node)
{
    caller_begin (told);
    ioctl (node, CALLER_REQUEST, missing);
    _exit (0);
}

static bool waits_long (struct tenant *tenant)
{
    uint64_t since;

    pthread_mutex_lock (&tenant->lock);
    since = tenant->waits_since;
    pthread_mutex_unlock (&tenant->lock);
    return since != 0 && since + SECOND / 10 < guard_now ();
}

int main (void)
{
    struct limits limits = { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .driver = "580.159.04", .node_count = 1 };
    static struct guard *guard; /* what is given up is no leak */
    struct guard_status state = { 0 };
    int told[2], pair[2], listener, node = open ("/dev/null", O_RDWR | O_CLOEXEC);
    struct stat status;
    uint64_t begun;
    pid_t pid;

    missing = caller_page ();
    if (fstat (node, &status) != 0 || pipe2 (told, O_CLOEXEC) != 0 || (pid = fork ()) < 0)
        return 1;
    if (pid == 0)
        child (told[1], node);
    listener = caller_listener (pid, told);
    if (listener < 0) {
        puts (CALLER_SKIP);
        return 0;
    }
    limits.nodes[0].kind = RM_NODE_CONTROL;
    limits.nodes[0].device = status.st_rdev;
    /* A monitor that does not answer. */
    if (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 || (guard = guard_create (-1)) == NULL)
        return 1;
    privsep_begin (&guard->privsep, pair[1]);
    tap_ok (guard_tenant_add (guard, 1, &limits) == 0 && guard_tenant_listen (guard, listener) == 0, "a tenant");
    alarm (90);
    while (!waits_long (guard->tenant))
        usleep (1000);
    tap_ok (guard_tenant_status (guard, &state) == 0 && state.notifications == 1, "its state can be had while its thread waits");
    begun = guard_now ();
    guard_destroy (guard);
    tap_ok (guard_now () - begun < 30 * SECOND, "the guard can end");
    kill (pid, SIGKILL);
    waitpid (pid, NULL, 0);
    close (pair[0]);
    usleep (200000); /* its thread finds everything that it needs, and ends */
    tap_ok (fcntl (listener, F_GETFD) >= 0, "it does no harm later");
    return tap_done ();
}
