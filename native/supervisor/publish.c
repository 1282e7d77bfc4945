/*
 * Publishes a tenant's counters and events (pages.h) for the agent, which does not wait for it. Runs in the supervisor: main; events also in
 * "nvc-late", before that ends the process.
 */
#include "supervisor.h"

#include "guard/clock.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* A sealed memfd of fixed size: only memory can be missing, and then the values before stay valid. */
static bool put (const struct supervisor *self, const void *from, size_t size, size_t at)
{
    return pwrite (self->counters_file, from, size, (off_t) at) == (ssize_t) size;
}

static void tell (const struct supervisor *self)
{
    uint64_t one = 1;

    if (write (self->published_file, &one, sizeof (one)) < 0)
        return; /* no process has looked for an age: it is readable */
}

void supervisor_publish_events (struct supervisor *self)
{
    struct guard_event events[64];
    int count;

    pthread_mutex_lock (&self->events_lock);
    count = guard_events (self->guard, events, 64);
    for (int i = 0; i < count; i++) {
        (void) put (self, events + i, sizeof (events[0]),
                    offsetof (struct counters_file, events) + self->event_count % COUNTERS_EVENTS * sizeof (events[0]));
        self->event_count++;
    }
    if (count > 0 && put (self, &self->event_count, sizeof (self->event_count), offsetof (struct counters_file, event_count)))
        tell (self);
    pthread_mutex_unlock (&self->events_lock);
}

int supervisor_publish (struct supervisor *self)
{
    struct counters *counters = &self->counters;
    size_t used = offsetof (struct counters, processes);
    struct guard_status status;
    uint32_t index = !self->index;
    int count, gone, result;

    guard_take_changes (self->guard);
    result = self->is_attached ? 0 : guard_tenant_status (self->guard, &status);
    if (result == 0 && !self->is_attached) {
        self->waits_at = status.waits_for != 0 ? guard_now () + WAITS_NS : 0;
        if (status.waits_ns < WAITS_NS)
            status.waits_for = 0, status.waits_ns = 0;
        counters->status = status;
    }
    count = guard_tenant_processes (self->guard, counters->processes, COUNTERS_PROCESSES);
    if (count >= 0)
        counters->process_count = (uint32_t) count < COUNTERS_PROCESSES ? (uint32_t) count : COUNTERS_PROCESSES;
    gone = guard_tenant_gone (self->guard);
    if (result == -EBUSY || count == -EBUSY || gone == -EBUSY) /* the driver makes a call for the tenant */
        guard_changed (self->guard);
    if (gone >= 0)
        counters->is_gone = gone != 0 && self->has_listened;
    if (self->is_attached) {
        memset (&counters->attached, 0, sizeof (counters->attached));
        (void) guard_attached_status (self->phases, &counters->attached);
        counters->is_gone = counters->attached.processes == 0;
    }
    counters->sees_driver = (uint32_t) guard_sees_driver (self->guard);
    counters->sees_exec = (uint32_t) guard_sees_exec (self->guard);
    counters->published_ns = self->published.published_ns;
    used += counters->process_count * sizeof (counters->processes[0]);
    self->publish_at = guard_now () + PUBLISH_NS;
    /* Nothing changed, as with a tenant that is idle: the agent reads what has another time. */
    if (counters->published_ns != 0 && memcmp (counters, &self->published, used) == 0)
        return result;
    counters->published_ns = guard_now ();
    if (put (self, counters, used, offsetof (struct counters_file, counters) + index * sizeof (*counters)) &&
        put (self, &index, sizeof (index), offsetof (struct counters_file, index))) {
        self->index = index;
        memcpy (&self->published, counters, used);
        tell (self);
    }
    return result;
}
