/* Timeslices that the driver does not take (guard/schedule.c). */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/guard.h"
#include "guard/schedule.h"
#include "rm/nv_params.h"
#include "rm/state.h"
#include "tap.h"

#define SLICE 3000u
#define SECOND UINT64_C (1000000000)

static unsigned asked, taken_at; /* calls of the driver; from which on it takes them */
static uint32_t in_force;

static long driver (void *context, uint64_t file, uint32_t request, void *argument)
{
    NVOS54_PARAMETERS *head = argument;

    (void) context;
    (void) file;
    (void) request;
    head->status = ++asked >= taken_at ? 0 : NV_ERR_IN_USE;
    if (head->status == 0 && head->cmd == NVA06C_CTRL_CMD_SET_TIMESLICE)
        in_force = (uint32_t) ((const NVA06C_CTRL_TIMESLICE_PARAMS *) (uintptr_t) head->params)->timesliceUs;
    return 0;
}

static unsigned writes (struct tenant *tenant, unsigned taken)
{
    uint64_t now = guard_now (), next;

    asked = 0;
    taken_at = taken;
    in_force = 0;
    tenant->status.slice[0] = tenant->retry.slice[0] = 0;
    schedule_apply (tenant, 0);
    for (unsigned i = 0; i < 1000 && (next = schedule_again (tenant, now)) != 0; i++)
        now = next > now ? next : now + 1;
    return asked;
}

int main (void)
{
    static struct guard guard;
    struct tenant *tenant = bare_tenant (&guard);
    struct object *device, *group;
    struct rm_host host;

    pthread_mutex_lock (&tenant->lock);
    tenant->limits.gpu_count = 1;
    host = *tenant->rm->host;
    host.ioctl = driver;
    tenant->rm->host = &host;
    tracker_client (tenant->rm, 7, 1);
    device = tracker_add (tenant->rm, 7, 1, 1, 2, CLASS_DEVICE);
    device->gpu = 0;
    group = tracker_add (tenant->rm, 7, 1, 2, 3, CLASS_GROUP);
    group->is_compute = true;
    tracker_add_role (&group->client->groups, group);
    atomic_store (&tenant->slice[0], SLICE);
    tap_ok (writes (tenant, 1) == 1 && in_force == SLICE, "a timeslice that the driver takes is written once");
    tap_ok (writes (tenant, 4) == 4 && in_force == SLICE, "one that it does not take is written again, until it does");
    tap_ok (writes (tenant, 10000) == 21 && in_force == 0, "but not for ever");
    return tap_done ();
}
