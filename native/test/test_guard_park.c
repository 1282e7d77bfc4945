/* How long the start of a group waits for another thread's continued call, and how often it is looked at (guard/park.c), with a clock of the test's own. */
#include "guard/clock.h"
#include "guard/notify.h"
#include "guard/park.h"
#include "guard/tenant.h"
#include "tap.h"

#define MILLISECOND UINT64_C (1000000)

static uint64_t clock_now = 1000 * MILLISECOND;
static unsigned tries;

uint64_t guard_now (void) { return clock_now; }

/* The outcome stays unknown: the call is parked again where that is allowed. */
uint64_t notify_answer (struct tenant *tenant, int listener, const struct seccomp_notif *notification)
{
    (void) listener;
    tries++;
    (void) park_call (tenant, notification);
    return clock_now;
}

static uint64_t look (struct tenant *tenant)
{
    uint64_t next = park_look (tenant, clock_now);

    return next == 0 ? 0 : next - clock_now;
}

int main (void)
{
    static struct tenant tenant;
    struct seccomp_notif notification = { .id = 1 };
    uint64_t begun = clock_now, next;

    tap_ok (park_call (&tenant, &notification), "a start waits");
    tap_ok (look (&tenant) == 2 * MILLISECOND, "it is looked at every 2 ms at first");
    clock_now = begun + 500 * MILLISECOND;
    tap_ok (look (&tenant) == 20 * MILLISECOND,
            "every 20 ms after half a second, and it waits still: a thread may have no processor for so long");
    notification.id = 2;
    (void) park_call (&tenant, &notification);
    tap_ok (look (&tenant) == 2 * MILLISECOND, "often again when another one comes");
    for (clock_now = begun + 600 * MILLISECOND, tries = 0; (next = look (&tenant)) != 0 && tries < 10000; clock_now += next)
        continue;
    tap_ok (tenant.parked_count == 0, "it does not wait without limit");
    tap_ok (clock_now - begun >= 2500 * MILLISECOND && clock_now - begun < 2600 * MILLISECOND, "but for 2 s each");
    return tap_done ();
}
