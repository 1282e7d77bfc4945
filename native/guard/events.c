/* Events of the tenant, and whether its status changed: what the supervisor's main thread is woken for. */
#include "clock.h"
#include "edges.h"
#include "guard.h"
#include "guard_private.h"
#include "schedule.h"
#include "tenant.h"

#include <string.h>
#include <sys/eventfd.h>

int guard_event_descriptor (const struct guard *guard) { return guard->event_descriptor; }

int guard_changed_descriptor (const struct guard *guard) { return guard->changed_descriptor; }

void guard_changed (struct guard *guard)
{
    /* Mostly it is: then the reader, which clears it before it reads under the tenant's lock, sees what changed. */
    if (!atomic_load (&guard->is_changed) && !atomic_exchange (&guard->is_changed, true))
        (void) eventfd_write (guard->changed_descriptor, 1);
}

void guard_take_changes (struct guard *guard)
{
    eventfd_t value;

    (void) eventfd_read (guard->changed_descriptor, &value);
    atomic_store (&guard->is_changed, false);
}

/* FNV-1a, of what a look may change of the status: mostly it changes nothing, and the main thread is not woken for that. */
static void add_news (uint64_t *news, uint64_t value) { *news = (*news ^ value) * UINT64_C (1099511628211); }

static uint64_t news_of (struct tenant *tenant)
{
    uint64_t news = UINT64_C (14695981039346656037);

    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        add_news (&news, tenant_used (tenant, gpu));
        add_news (&news, tenant->managed[gpu]);
        add_news (&news, tenant->status.driver_usage[gpu]);
        add_news (&news, rm_groups (tenant->rm, (int) gpu));
    }
    for (unsigned i = 0; i < tenant->process_end; i++) {
        add_news (&news, tenant->processes[i].serial);
        add_news (&news, tenant->processes[i].client_count);
        add_news (&news, tenant->processes[i].is_inherited);
        for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
            add_news (&news, tenant->processes[i].driver_usage[gpu]);
    }
    add_news (&news, tenant->orphan_space_count);
    return news;
}

bool guard_has_news (struct tenant *tenant)
{
    uint64_t frozen_ns;
    bool has;

    pthread_mutex_lock (&tenant->lock);
    has = news_of (tenant) != tenant->news || tenant->lonely_since != 0;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        has |= edges_frozen (&tenant->edges, gpu, &frozen_ns);
    tenant_unlock (tenant);
    return has;
}

void guard_news_told (struct tenant *tenant) { tenant->news = news_of (tenant); }

/* That wait to be read: what cost a process its life is noted beside as many others. */
#define ORDINARY_EVENTS 64u

void guard_note (struct tenant *tenant, enum rm_reason reason, uint32_t number, pid_t pid)
{
    struct guard *guard = tenant->guard;
    bool is_end = reason == RM_TOCTOU_KILLED || reason == RM_UNREACHABLE;

    if ((unsigned) reason < GUARD_REASONS)
        tenant->status.reasons[reason]++;
    pthread_mutex_lock (&guard->lock);
    for (unsigned i = 0; i < guard->event_count; i++) {
        struct guard_event *event = &guard->events[i];

        /* A tenant that tries a thousand times makes one line. */
        if (event->reason == (uint32_t) reason && event->number == number) {
            event->repeated++;
            pthread_mutex_unlock (&guard->lock);
            return;
        }
    }
    if ((guard->event_count < ORDINARY_EVENTS || is_end) && guard->event_count < GUARD_EVENTS)
        guard->events[guard->event_count++] = (struct guard_event) { .when_ns = clock_ns (CLOCK_REALTIME),
                                                                     .tenant = tenant->id,
                                                                     .reason = (uint32_t) reason,
                                                                     .number = number,
                                                                     .pid = (uint32_t) pid };
    pthread_mutex_unlock (&guard->lock);
    (void) eventfd_write (guard->event_descriptor, 1);
}

int guard_events (struct guard *guard, struct guard_event *events, uint32_t capacity)
{
    eventfd_t value;
    unsigned count;

    pthread_mutex_lock (&guard->lock);
    count = guard->event_count < capacity ? guard->event_count : capacity;
    memcpy (events, guard->events, count * sizeof (*events));
    guard->event_count -= count;
    memmove (guard->events, guard->events + count, guard->event_count * sizeof (*events));
    if (guard->event_count == 0)
        (void) eventfd_read (guard->event_descriptor, &value);
    pthread_mutex_unlock (&guard->lock);
    return (int) count;
}
