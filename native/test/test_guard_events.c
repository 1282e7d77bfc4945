/* What a guard tells of its tenant (guard/guard.c). */
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/tenant.h"
#include "tap.h"

static struct guard_event events[GUARD_EVENTS];
static int count;

static const struct guard_event *found (enum rm_reason reason)
{
    for (int i = 0; i < count; i++)
        if (events[i].tenant == 1 && events[i].reason == (uint32_t) reason)
            return &events[i];
    return NULL;
}

int main (void)
{
    struct limits limits = { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .driver = "580.159.04" };
    struct guard *guard = guard_create (-1);
    struct guard_status status;

    tap_ok (guard_tenant_add (guard, 1, &limits) == 0, "a tenant");
    for (uint32_t number = 0; number < 5000; number++)
        guard_note (guard->tenant, RM_UNKNOWN_CONTROL, number, 10);
    guard_note (guard->tenant, RM_UNKNOWN_CONTROL, 3, 10);
    guard_note (guard->tenant, RM_TOCTOU_KILLED, 0, 10);
    count = guard_events (guard, events, GUARD_EVENTS);
    tap_ok (found (RM_TOCTOU_KILLED) != NULL, "one that tries everything hides nothing that a process of its was ended for");
    tap_ok (count < 100 && events[3].number == 3 && events[3].repeated == 1, "it makes a few lines");
    tap_ok (guard_tenant_status (guard, &status) == 0 && status.reasons[RM_UNKNOWN_CONTROL] == 5001, "all are counted");
    guard_destroy (guard);
    return tap_done ();
}
