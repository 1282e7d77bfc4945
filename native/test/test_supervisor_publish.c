/* What a supervisor publishes (supervisor/publish.c), of a guard that is busy and then is not. */
#include "supervisor/supervisor.h"
#include "tap.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int status_result, gone_result;
static unsigned changes;

void guard_changed (struct guard *guard)
{
    (void) guard;
    changes++;
}

void guard_take_changes (struct guard *guard)
{
    (void) guard;
    changes = 0;
}

int guard_tenant_status (struct guard *guard, struct guard_status *status)
{
    (void) guard;
    *status = (struct guard_status) { .notifications = 7 };
    return status_result;
}

int guard_tenant_processes (struct guard *guard, struct guard_process *processes, uint32_t capacity)
{
    (void) guard, (void) processes, (void) capacity;
    return 0;
}

int guard_tenant_gone (struct guard *guard)
{
    (void) guard;
    return gone_result;
}

int guard_attached_status (struct guard_phases *phases, struct guard_attached *status)
{
    (void) phases, (void) status;
    return 0;
}

int guard_sees_driver (const struct guard *guard) { return guard == NULL; }
int guard_sees_exec (const struct guard *guard) { return guard == NULL; }

int guard_events (struct guard *guard, struct guard_event *events, uint32_t capacity)
{
    (void) guard, (void) events, (void) capacity;
    return 0;
}

int main (void)
{
    static struct supervisor self = { .events_lock = PTHREAD_MUTEX_INITIALIZER };
    char path[] = "/tmp/nvc-publish-XXXXXX";

    self.counters_file = mkstemp (path);
    (void) unlink (path);
    tap_ok (supervisor_publish (&self) == 0 && self.published.status.notifications == 7 && changes == 0, "what is so is published");
    status_result = -EBUSY;
    tap_ok (supervisor_publish (&self) == -EBUSY && changes == 1, "while the driver is busy it is not, and is tried again");
    status_result = 0;
    gone_result = -EBUSY;
    tap_ok (supervisor_publish (&self) == 0 && changes == 1, "also where only a part of it was not to be had");
    gone_result = 0;
    tap_ok (supervisor_publish (&self) == 0 && changes == 0, "until it was");
    return tap_done ();
}
