/* Calls that wait until other calls of their tenant have shown what they made. In the tenant's thread, with the turn. */
#ifndef NVC_GUARD_PARK_H
#define NVC_GUARD_PARK_H

#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdint.h>

struct tenant;

#define TENANT_PARKED 16u
struct parked_call {
    int listener;
    uint64_t until; /* CLOCK_MONOTONIC ns */
    struct seccomp_notif notification;
};

/* The current call is begun again later. false: there is no room, or it has waited for long enough. Under the lock. */
bool park_call (struct tenant *tenant, const struct seccomp_notif *notification);
/* Begins those again that may be made now, or have waited for long enough. When to look again (CLOCK_MONOTONIC ns); 0: there are none. */
uint64_t park_look (struct tenant *tenant, uint64_t now);
/* The listener is closed. */
void park_drop (struct tenant *tenant, int listener);

#endif
