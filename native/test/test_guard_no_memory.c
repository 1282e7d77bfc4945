/* A guard without memory for a record (guard/tenant.h, tenant_allocate): the container is to be ended, with an event. */
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/host.h"
#include "guard/tenant.h"
#include "tap.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGE ((size_t) 64 << 20)

static struct guard *guard;

/* 3: the event is there. */
static void act (void *context)
{
    struct guard_event event;

    (void) context;
    _exit (guard_events (guard, &event, 1) == 1 && event.reason == RM_NO_MEMORY && event.tenant == 1 ? 3 : 4);
}

static void nothing (void *context) { (void) context; }

/* How a process ends that takes so much as a record, with 16 MiB for all it has. */
static int end_of (void (*on_failure) (void *), size_t size)
{
    struct limits limits = { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .driver = "580.159.04" };
    struct rlimit little = { (rlim_t) 16 << 20, (rlim_t) 16 << 20 };
    int status;
    pid_t child = fork ();

    if (child == 0) {
        guard = guard_create (-1);
        if (guard == NULL || guard_tenant_add (guard, 1, &limits) != 0)
            _exit (5);
        guard_on_failure (guard, on_failure, NULL);
        if (setrlimit (RLIMIT_DATA, &little) != 0)
            _exit (6);
        _exit (guard_host.allocate (guard->tenant, size) != NULL ? 0 : 7);
    }
    return waitpid (child, &status, 0) == child && WIFEXITED (status) ? WEXITSTATUS (status) : -1;
}

int main (void)
{
    tap_ok (end_of (act, 4096) == 0, "there is memory for a small record");
    tap_ok (end_of (act, LARGE) == 3, "there is none for a large one: the container is to be ended, and the event says why");
    tap_ok (end_of (nothing, LARGE) == 1, "the guard ends in any case: nothing goes on without its record");
    return tap_done ();
}
