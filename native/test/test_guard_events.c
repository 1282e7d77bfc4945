/* What a guard tells of its tenants (guard/guard.c). */
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/tenant.h"
#include "tap.h"

static struct guard_event events[GUARD_EVENTS];
static int count;

static const struct guard_event *found (uint32_t tenant, enum rm_reason reason)
{
    for (int i = 0; i < count; i++)
        if (events[i].tenant == tenant && events[i].reason == (uint32_t) reason)
            return &events[i];
    return NULL;
}

int main (void)
{
    struct limits limits = { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .driver = "580.159.04" };
    struct guard *guard = guard_create (-1);
    struct guard_status status;

    tap_ok (guard_tenant_add (guard, 1, &limits) == 0 && guard_tenant_add (guard, 2, &limits) == 0, "two tenants");
    for (uint32_t number = 0; number < 5000; number++)
        guard_note (guard->tenants[0], RM_UNKNOWN_CONTROL, number, 10);
    guard_note (guard->tenants[0], RM_UNKNOWN_CONTROL, 3, 10);
    guard_note (guard->tenants[1], RM_OVER_QUOTA, 0x40, 11);
    guard_note (guard->tenants[0], RM_TOCTOU_KILLED, 0, 10);
    count = guard_events (guard, events, GUARD_EVENTS);
    tap_ok (found (2, RM_OVER_QUOTA) != NULL, "one that tries everything leaves room for what others did");
    tap_ok (found (1, RM_TOCTOU_KILLED) != NULL, "and hides nothing that a process of its was ended for");
    tap_ok (count < 100 && events[3].number == 3 && events[3].repeated == 1, "it makes a few lines");
    tap_ok (guard_tenant_status (guard, 1, &status) == 0 && status.reasons[RM_UNKNOWN_CONTROL] == 5001, "all are counted");
    guard_destroy (guard);
    return tap_done ();
}
