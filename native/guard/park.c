/*
 * See park.h. A call that starts a channel group waits here while a continued ALLOC is in flight (rm/outcome.c): in a container whose processes
 * start together that is so for some 100 us. The calls that show what was made are answered meanwhile, so no thread of the guard
 * waits. A container can keep an outcome unknown without limit, so the wait is limited.
 */
#include "park.h"
#include "clock.h"
#include "notify.h"
#include "tenant.h"

#include <string.h>

/* A thread in its continued call may have to wait for a processor: for tenths of a second where its container's time is limited or the node is busy. */
#define PATIENCE_NS 2000000000u
/* Looked at so often; the less often after SOON_NS. */
#define AGAIN_NS 2000000u
#define SELDOM_NS 20000000u
#define SOON_NS 200000000u

bool park_call (struct tenant *tenant, const struct seccomp_notif *notification)
{
    struct parked_call *parked = &tenant->parked[tenant->parked_count];

    if (tenant->is_last_try || tenant->parked_count == TENANT_PARKED)
        return false;
    *parked = (struct parked_call) { .listener = tenant->notified.listener,
                                     .until = tenant->parked_until != 0 ? tenant->parked_until : guard_now () + PATIENCE_NS,
                                     .notification = *notification };
    tenant->parked_count++;
    return true;
}

uint64_t park_look (struct tenant *tenant, uint64_t now)
{
    struct parked_call parked[TENANT_PARKED];
    unsigned count = tenant->parked_count;
    uint64_t again = SELDOM_NS;

    /* Those that wait still are parked anew. */
    memcpy (parked, tenant->parked, count * sizeof (parked[0]));
    tenant->parked_count = 0;
    for (unsigned i = 0; i < count; i++) {
        tenant->parked_until = parked[i].until;
        tenant->is_last_try = parked[i].until <= now;
        notify_answer (tenant, parked[i].listener, &parked[i].notification);
    }
    tenant->parked_until = 0;
    tenant->is_last_try = false;
    for (unsigned i = 0; i < tenant->parked_count; i++)
        if (tenant->parked[i].until > now + PATIENCE_NS - SOON_NS)
            again = AGAIN_NS;
    return tenant->parked_count != 0 ? now + again : 0;
}

void park_drop (struct tenant *tenant, int listener)
{
    for (unsigned i = tenant->parked_count; i-- > 0;)
        if (tenant->parked[i].listener == listener)
            tenant->parked[i] = tenant->parked[--tenant->parked_count];
}
