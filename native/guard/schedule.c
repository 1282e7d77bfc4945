/* A tenant's channels on one GPU, as they should be: off when the scheduler or the quota says so,
 * with the share's slice. */
#include "tenant.h"

void schedule_apply (struct tenant *tenant, uint32_t gpu)
{
    bool off = !atomic_load (&tenant->stop) &&
               (tenant->wished_frozen[gpu] || tenant->over[gpu] || tenant->is_stuck || (tenant->limits.flags & LIMITS_PAUSED) != 0);
    uint64_t now = guard_now ();

    if (off)
        channels_write (tenant);
    if (off != tenant->frozen[gpu]) {
        rm_freeze (tenant->rm, (int) gpu, off);
        if (!off)
            tenant->status.frozen_ns[gpu] += now - tenant->frozen_since[gpu];
        tenant->frozen[gpu] = off;
        tenant->frozen_since[gpu] = now;
    }
    if (tenant->slice[gpu] != tenant->status.slice[gpu]) {
        tenant->status.slice[gpu] = tenant->slice[gpu];
        if (tenant->slice[gpu] != 0)
            rm_set_timeslice (tenant->rm, (int) gpu, tenant->slice[gpu]);
    }
}
