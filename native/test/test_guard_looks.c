/* What looks at retained memory take of the driver is the tenant's burden (guard/retained.c), with a driver that takes a millisecond for each question. */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/dup_probe.h"
#include "guard/fair.h"
#include "guard/guard_private.h"
#include "guard/retained.h"
#include "tap.h"

#define MILLISECOND UINT64_C (1000000)
#define SECOND (1000 * MILLISECOND)
#define PIECES 1600u

static uint64_t clock_now = 1000 * SECOND;
static unsigned questions;
static uint64_t released; /* bytes of the quarantine that have no other holder */

uint64_t guard_now (void) { return clock_now; }

struct dup_probe *probe_open (struct privsep *privsep)
{
    (void) privsep;
    return NULL;
}

void probe_close (struct dup_probe *probe) { (void) probe; }

int probe_gpu (const struct dup_probe *probe, const uint8_t uuid[16])
{
    (void) probe;
    (void) uuid;
    return 0;
}

enum probe_result probe_duplicate (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, enum probe_client to,
                                   struct probe_piece *piece)
{
    (void) probe, (void) file, (void) client, (void) handle, (void) to, (void) piece;
    return PROBE_NONE;
}

bool probe_move (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client to)
{
    (void) probe, (void) piece, (void) to;
    return true;
}

void probe_free (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client from)
{
    (void) probe, (void) piece, (void) from;
}

bool probe_import (struct dup_probe *probe, const struct rm_source *source, int gpu, struct probe_piece *piece)
{
    (void) probe, (void) source, (void) gpu, (void) piece;
    return false;
}

bool probe_take (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, int gpu, struct probe_piece *piece)
{
    (void) probe, (void) file, (void) client, (void) handle, (void) gpu, (void) piece;
    return false;
}

uint64_t probe_bytes (const struct dup_probe *probe, const struct probe_piece *piece, enum probe_client which)
{
    (void) probe, (void) piece, (void) which;
    return 0;
}

bool probe_is_same (const struct dup_probe *probe, const struct probe_piece *piece, const struct probe_piece *other)
{
    (void) probe, (void) piece, (void) other;
    return false;
}

bool probe_query (struct dup_probe *probe, int gpu, enum probe_client which, uint64_t *private_bytes, uint64_t *shared_bytes)
{
    uint64_t until = fair_cpu () + MILLISECOND;

    (void) probe, (void) gpu;
    while (fair_cpu () < until)
        continue;
    clock_now += MILLISECOND;
    questions++;
    *private_bytes = which == QUARANTINE_CLIENT ? released : 0;
    *shared_bytes = 65536; /* of every single one UVM has a duplicate */
    return true;
}

static unsigned asked_by_look (struct tenant *tenant, uint64_t now)
{
    unsigned before = questions;

    retained_check (tenant, now);
    return questions - before;
}

int main (void)
{
    static struct guard guard;
    struct tenant *tenant = bare_tenant (&guard);
    struct retained *retained = &tenant->retained;
    uint64_t begun;
    unsigned asked;

    pthread_mutex_lock (&tenant->lock);
    for (unsigned i = 0; i < PIECES; i++) {
        struct retained_piece *piece = tenant_allocate (tenant, 1, sizeof (*piece));

        piece->piece = (struct probe_piece) { .handle = i + 1, .bytes = 65536 };
        piece->next = retained->pieces;
        retained->pieces = piece;
    }
    tenant->fair.counted_at = clock_now;
    asked = asked_by_look (tenant, 0);
    tap_ok (asked == 1 && tenant->fair.debt > MILLISECOND / 2, "a question whether anything is released is the tenant's burden");
    tenant->fair.debt = 0;

    released = 65536;
    retained_check_soon (tenant);
    clock_now = begun = retained->look_at;
    asked = asked_by_look (tenant, clock_now);
    tap_ok (asked == 257, "256 pieces are looked at, because one is released");
    tap_ok (tenant->fair.debt > 250 * MILLISECOND && fair_wait (tenant, clock_now) > 0,
            "which is counted: it has to wait for others");
    retained_check_soon (tenant);
    tap_ok (retained->look_at >= clock_now + 8 * 250 * MILLISECOND,
            "an eighth of the time goes into looks, whatever the tenant does");
    tap_ok (asked_by_look (tenant, clock_now) == 0, "none is made before");

    tenant->fair.debt = 0;
    asked = asked_by_look (tenant, 0);
    tap_ok (asked > 900 && asked < 1100, "before a quota is enforced, a second at the most");
    tap_ok (tenant->fair.debt > 900 * MILLISECOND, "that is counted too");

    released = 0;
    retained_release (tenant);
    pthread_mutex_unlock (&tenant->lock);
    bare_end (tenant);
    return tap_done ();
}
