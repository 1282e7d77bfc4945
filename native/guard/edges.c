/* See edges.h. Runs in the tenant's thread and in the phase thread of each GPU. */
#include "edges.h"
#include "clock.h"
#include "guard_private.h"
#include "held_files.h"
#include "process.h"
#include "reach.h"
#include "schedule.h"
#include "tenant.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

_Static_assert (sizeof (((NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS *) 0)->hClientList) == RM_FREEZE_MAX * sizeof (NvHandle),
                "channels of a call");

void edges_begin (struct edges *edges) { pthread_mutex_init (&edges->lock, NULL); }

void edges_end (struct edges *edges)
{
    free (edges->channels);
    pthread_mutex_destroy (&edges->lock);
}

/* One call, on the file and the subdevice of `by`. The channels may be of several clients, also of other processes: the driver does
 * not ask whose they are (subdeviceCtrlCmdFifoDisableChannels; seen on an H200, 580.159.04). 0, the driver's status, or -errno. */
static long switch_some (const struct edge_channel *by, struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params = { .bDisable = frozen, .numChannels = count };
    NVOS54_PARAMETERS control = { .hClient = by->client,
                                  .hObject = by->subdevice,
                                  .cmd = NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                                  .params = (NvP64) (uintptr_t) &params,
                                  .paramsSize = sizeof (params) };
    long result;

    for (uint32_t i = 0; i < count; i++) {
        params.hClientList[i] = channels[i]->client;
        params.hChannelList[i] = channels[i]->channel;
    }
    result = ioctl (by->file, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (control)), &control) != 0 ? -errno : (long) control.status;
    for (uint32_t i = 0; result == 0 && i < count; i++)
        channels[i]->is_stopped = frozen;
    return result;
}

/* After a call that failed: one handle that the driver does not know, of a channel that is being freed, makes it switch none, or some. What
 * a failed stop did is undone first, for the driver counts. How many calls it took. */
static int switch_again (const struct edge_channel *by, struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    int calls = 0;

    if (frozen) {
        switch_some (by, channels, count, false);
        calls++;
    }
    calls++;
    if (switch_some (by, channels, count, frozen) == 0 || count == 1)
        return calls;
    for (uint32_t i = 0; i < count; i++)
        calls += switch_again (by, channels + i, 1, frozen);
    return calls;
}

/* All of them at once; where that fails, each client's by itself, and then each channel. How many calls it took. */
static int switch_batch (struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    const struct edge_channel *by = NULL;
    int calls = 1;

    for (uint32_t i = 0; i < count && by == NULL; i++)
        if (channels[i]->file >= 0 && channels[i]->subdevice != 0)
            by = channels[i];
    if (by == NULL)
        return 0;
    if (switch_some (by, channels, count, frozen) == 0)
        return calls;
    for (uint32_t first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && channels[next]->client == channels[first]->client;)
            next++;
        if (channels[first]->file >= 0 && channels[first]->subdevice != 0)
            by = channels[first];
        calls += switch_again (by, channels + first, next - first, frozen);
    }
    return calls;
}

/* Under the lock. */
static int switch_gpu (struct edges *edges, uint32_t gpu, bool frozen)
{
    struct edge_channel *batch[RM_FREEZE_MAX];
    uint32_t count = 0;
    int calls = 0;

    for (uint32_t i = 0; i < edges->count; i++) {
        struct edge_channel *one = edges->channels + i;

        if (one->gpu != (int) gpu || one->is_stopped == frozen)
            continue;
        batch[count++] = one;
        if (count < RM_FREEZE_MAX)
            continue;
        calls += switch_batch (batch, count, frozen);
        count = 0;
    }
    return count > 0 ? calls + switch_batch (batch, count, frozen) : calls;
}

int edges_apply (struct tenant *tenant, uint32_t gpu)
{
    struct edges *edges = &tenant->edges;
    int calls = 0;
    bool frozen;

    pthread_mutex_lock (&edges->lock);
    frozen = schedule_is_off (tenant, gpu);
    if (edges->frozen[gpu] == frozen)
        calls = switch_gpu (edges, gpu, frozen); /* what could not be switched the last time */
    else {
        uint64_t now;

        calls = switch_gpu (edges, gpu, frozen);
        now = guard_now ();
        if (!frozen)
            edges->frozen_ns[gpu] += now - edges->frozen_since[gpu];
        edges->frozen[gpu] = frozen;
        edges->frozen_since[gpu] = now;
        guard_changed (tenant->guard);
    }
    pthread_mutex_unlock (&edges->lock);
    return calls;
}

bool edges_frozen (struct edges *edges, uint32_t gpu, uint64_t *nanoseconds)
{
    bool frozen;

    pthread_mutex_lock (&edges->lock);
    frozen = edges->frozen[gpu];
    *nanoseconds = edges->frozen_ns[gpu] + (frozen ? guard_now () - edges->frozen_since[gpu] : 0);
    pthread_mutex_unlock (&edges->lock);
    return frozen;
}

/* Whether the channel was stopped already. The order of rm's list changes little from one time to the next. */
static bool was_stopped (const struct edges *edges, const struct rm_channel *channel, uint32_t *hint)
{
    for (uint32_t i = 0; i < edges->count; i++) {
        const struct edge_channel *one = &edges->channels[(*hint + i) % edges->count];

        if (one->client == channel->client && one->channel == channel->channel && one->gpu == channel->gpu) {
            *hint = (*hint + i + 1) % edges->count;
            return one->is_stopped;
        }
    }
    return false;
}

void edges_publish (struct tenant *tenant)
{
    struct edges *edges = &tenant->edges;
    uint32_t count = rm_channels (tenant->rm, NULL, 0), used = 0, hint = 0;
    struct rm_channel *found = calloc (count + 1, sizeof (*found));
    struct edge_channel *made = calloc (count + 1, sizeof (*made)), *before;

    if (found == NULL || made == NULL) {
        free (found);
        free (made);
        return; /* with the next change */
    }
    rm_channels (tenant->rm, found, count);
    pthread_mutex_lock (&edges->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct process *process = process_by_serial (tenant, found[i].file);
        int file = held_file_of (tenant, found[i].client);

        if (found[i].gpu < 0 || process == NULL)
            continue;
        if (file < 0)
            reach_missing (tenant, process, found[i].client);
        made[used++] = (struct edge_channel) { .client = found[i].client,
                                               .subdevice = found[i].subdevice,
                                               .channel = found[i].channel,
                                               .gpu = found[i].gpu,
                                               .file = file,
                                               .is_stopped = was_stopped (edges, found + i, &hint) };
    }
    before = edges->channels;
    edges->channels = made;
    edges->count = used;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if (edges->frozen[gpu])
            (void) switch_gpu (edges, gpu, true);
    pthread_mutex_unlock (&edges->lock);
    free (before);
    free (found);
}

void edges_forget (struct edges *edges, uint32_t client)
{
    uint32_t kept = 0;

    pthread_mutex_lock (&edges->lock);
    for (uint32_t i = 0; i < edges->count; i++)
        if (edges->channels[i].client != client)
            edges->channels[kept++] = edges->channels[i];
    edges->count = kept;
    pthread_mutex_unlock (&edges->lock);
}
