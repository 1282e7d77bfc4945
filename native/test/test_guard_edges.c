/* Stops and starts of channels (guard/edges.c), with a driver that refuses a call with any handle that it does not know. */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/edges.h"
#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/nvos.h"
#include "tap.h"

#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CHANNELS 100u
#define CLIENT 0xc1d00001u

static unsigned stops[CHANNELS]; /* the driver counts them */
static uint32_t unknown = CHANNELS, partly_before = CHANNELS;
static unsigned calls, lasts_us;

/* As subdeviceCtrlCmdFifoDisableChannels: the first unknown handle ends it, with an error; what came before may be done. */
int ioctl (int file, unsigned long request, ...)
{
    va_list rest;
    NVOS54_PARAMETERS *control;
    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS *params;

    (void) file, (void) request;
    va_start (rest, request);
    control = va_arg (rest, void *);
    va_end (rest);
    if (control->cmd != NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS)
        return 0; /* client and subdevice are there */
    params = (void *) (uintptr_t) control->params;
    calls++;
    usleep (lasts_us);
    control->status = 0;
    for (uint32_t i = 0; i < params->numChannels; i++)
        if (params->hChannelList[i] == unknown)
            control->status = 0x57;
    for (uint32_t i = 0; i < params->numChannels; i++) {
        uint32_t channel = params->hChannelList[i];

        if (control->status != 0 && (channel >= partly_before || channel == unknown))
            continue;
        stops[channel] = params->bDisable ? stops[channel] + 1 : stops[channel] > 0 ? stops[channel] - 1 : 0;
    }
    return 0;
}

static struct tenant *tenant;

static void with (uint32_t count)
{
    tenant->edges.channels = calloc (count, sizeof (struct edge_channel));
    tenant->edges.count = count;
    for (uint32_t i = 0; i < count; i++)
        tenant->edges.channels[i] = (struct edge_channel) {
            .client = CLIENT + i / 50, .subdevice = 7, .channel = i, .gpu = 0, .file = 0
        };
}

static unsigned stopped (void)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < CHANNELS; i++)
        count += stops[i] == 1;
    return count;
}

/* Whether the driver has no channel on. */
static bool are_off (void)
{
    for (uint32_t i = 0; i < CHANNELS; i++)
        if (stops[i] == 0)
            return false;
    return true;
}

int main (void)
{
    static struct guard guard;
    uint64_t before, now;
    unsigned most = 0;
    bool ran = false;

    tenant = bare_tenant (&guard);
    tenant->limits.gpu_count = 1;
    with (CHANNELS);
    atomic_store (&tenant->planned_frozen[0], true);
    tap_ok (edges_apply (tenant, 0) == 2 && stopped () == CHANNELS, "a hundred channels are stopped by two calls");
    atomic_store (&tenant->planned_frozen[0], false);
    tap_ok (edges_apply (tenant, 0) == 2 && stopped () == 0, "and started by two");

    unknown = 2;
    atomic_store (&tenant->planned_frozen[0], true);
    edges_apply (tenant, 0);
    tap_ok (stopped () == CHANNELS - 1, "one that is being freed lets no other one run on");
    atomic_store (&tenant->planned_frozen[0], false);
    edges_apply (tenant, 0);
    tap_ok (stopped () == 0, "and all are started again");

    partly_before = 2;
    atomic_store (&tenant->planned_frozen[0], true);
    edges_apply (tenant, 0);
    tap_ok (stopped () == CHANNELS - 1, "also where the driver stopped some before it failed: each once");
    unknown = CHANNELS;
    edges_apply (tenant, 0);
    tap_ok (stopped () == CHANNELS, "what failed is tried again");
    atomic_store (&tenant->planned_frozen[0], false);
    edges_apply (tenant, 0);
    tap_ok (stopped () == 0, "and nothing stays stopped");
    calls = 0;
    edges_apply (tenant, 0);
    tap_ok (calls == 0, "where nothing is to be done no call is made");

    /* Another process of the host's starts what the quota keeps off: it is stopped again, and each channel once. */
    atomic_store (&tenant->over[0], true);
    edges_apply (tenant, 0);
    stops[3] = stops[7] = 0;
    tap_ok (edges_assert (tenant, guard_now ()) != 0 && stopped () == CHANNELS - 2, "not before it is time");
    tap_ok (edges_assert (tenant, guard_now () + 90000000) <= guard_now () + 180000000 && are_off (),
            "what was started from outside is stopped within 100 ms");
    for (uint64_t i = 2; i < 40; i++) {
        ran |= !are_off ();
        edges_assert (tenant, guard_now () + i * 90000000);
        most = stops[0] > most ? stops[0] : most;
    }
    tap_ok (!ran && are_off () && most <= 9, "what no process starts never runs, and its stops do not add up");
    atomic_store (&tenant->over[0], false);
    edges_apply (tenant, 0);
    tap_ok (stopped () == 0 && edges_assert (tenant, guard_now () + 1000000000) == 0 && stopped () == 0,
            "a start by one call starts them, and nothing stops them then");

    calls = 0;
    edges_stop_again (tenant, 0);
    tap_ok (calls == 0, "a reset of a channel stops none that may run");
    atomic_store (&tenant->planned_frozen[0], true);
    edges_apply (tenant, 0);
    stops[5] = 0;
    edges_stop_again (tenant, 0);
    tap_ok (are_off (), "what a reset started while the tenant was stopped is stopped again");
    atomic_store (&tenant->planned_frozen[0], false);
    edges_apply (tenant, 0);
    tap_ok (stopped () == 0 && stops[0] == 0, "and all are started after it");

    /* How long a tenant is kept off: it is, while it has channels. */
    atomic_store (&tenant->planned_frozen[0], true);
    edges_apply (tenant, 0);
    (void) edges_frozen (&tenant->edges, 0, &before);
    usleep (20000);
    tap_ok (edges_frozen (&tenant->edges, 0, &now) && now >= before + 20000000, "the time that channels are off counts");
    atomic_store (&tenant->planned_frozen[0], false);
    edges_apply (tenant, 0);
    (void) edges_frozen (&tenant->edges, 0, &before);
    atomic_store (&tenant->planned_frozen[0], true);
    lasts_us = 20000; /* of each of two calls */
    edges_apply (tenant, 0);
    tap_ok (edges_frozen (&tenant->edges, 0, &now) && now >= before + 20000000, "from the middle of the calls that stop them");
    lasts_us = 0;
    edges_forget (&tenant->edges, CLIENT);
    edges_forget (&tenant->edges, CLIENT + 1);
    (void) edges_frozen (&tenant->edges, 0, &before);
    usleep (20000);
    tap_ok (edges_frozen (&tenant->edges, 0, &now) && now == before && before != 0, "without a channel no time counts");
    return tap_done ();
}
