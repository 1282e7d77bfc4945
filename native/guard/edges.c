/* See edges.h. Runs in the tenant's thread and in the phase thread of each GPU. */
#include "edges.h"
#include "clock.h"
#include "guard_private.h"
#include "held_files.h"
#include "late.h"
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

static long ask (const struct edge_channel *by, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    NVOS54_PARAMETERS control = {
        .hClient = by->client, .hObject = object, .cmd = command, .params = (NvP64) (uintptr_t) params, .paramsSize = size
    };

    return ioctl (by->file, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (control)), &control) != 0 ? -errno : (long) control.status;
}

/* One call, on the file and the subdevice of `by`. The channels may be of several clients, also of other processes: the driver does
 * not ask whose they are (subdeviceCtrlCmdFifoDisableChannels; seen on an H200, 580.159.04). 0, the driver's status, or -errno. */
static long disable (const struct edge_channel *by, struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params = { .bDisable = frozen, .numChannels = count };

    for (uint32_t i = 0; i < count; i++) {
        params.hClientList[i] = channels[i]->client;
        params.hChannelList[i] = channels[i]->channel;
    }
    return ask (by, by->subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &params, sizeof (params));
}

static long switch_some (const struct edge_channel *by, struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    long result = disable (by, channels, count, frozen);

    for (uint32_t i = 0; result == 0 && i < count; i++)
        channels[i]->is_stopped = frozen;
    return result;
}

/* Whether the driver's answer to the stop of one channel says that there is no such channel, or no GPU, and not that it goes on. The
 * answer could be about the client or the subdevice that the call was made by: they are asked for something else. */
static bool is_gone (const struct edge_channel *by, const struct edge_channel *channel, long status)
{
    NV2080_CTRL_GPU_GET_GID_INFO_PARAMS name = { .flags = NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY };
    NVA06C_CTRL_TIMESLICE_PARAMS slice = { 0 };

    if (status == NV_ERR_GPU_IS_LOST)
        return true;
    if (status != NV_ERR_OBJECT_NOT_FOUND && status != NV_ERR_INVALID_OBJECT_HANDLE && status != NV_ERR_INVALID_CHANNEL &&
        status != NV_ERR_INVALID_CLIENT)
        return false;
    if (ask (by, by->subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &name, sizeof (name)) == 0)
        return true;
    return by->client == channel->client &&
           ask (by, by->client, NVA06C_CTRL_CMD_GET_TIMESLICE, &slice, sizeof (slice)) == NV_ERR_INVALID_CLIENT;
}

/* After a call that failed: one handle that the driver does not know, of a channel that is being freed, makes it switch none, or some. What
 * a failed stop did is undone first, for the driver counts. How many calls it took. */
static int switch_again (const struct edge_channel *by, struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    int calls = 0;
    long status;

    if (frozen) {
        switch_some (by, channels, count, false);
        calls++;
    }
    calls++;
    status = switch_some (by, channels, count, frozen);
    if (count == 1)
        channels[0]->is_gone = frozen && status != 0 && is_gone (by, channels[0], status);
    if (status == 0 || count == 1)
        return calls;
    for (uint32_t i = 0; i < count; i++)
        calls += switch_again (by, channels + i, 1, frozen);
    return calls;
}

static const struct edge_channel *reaching (struct edge_channel *const *channels, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (channels[i]->file >= 0 && channels[i]->subdevice != 0)
            return channels[i];
    return NULL;
}

/* All of them at once; where that fails, each client's by itself, and then each channel. How many calls it took. */
static int switch_batch (struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    const struct edge_channel *by = reaching (channels, count);
    int calls = 1;

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

/* One stop more of channels that are stopped, or one less. */
static void repeat_some (struct edge_channel *const *channels, uint32_t count, bool frozen)
{
    const struct edge_channel *by = reaching (channels, count);
    bool is_done = by != NULL && disable (by, channels, count, frozen) == 0;

    /* Of one that is being freed nothing has to be undone. */
    for (uint32_t i = 0; i < count; i++)
        if (is_done || (count > 1 && by != NULL && disable (by, channels + i, 1, frozen) == 0) || !frozen)
            channels[i]->again = frozen ? channels[i]->again + 1 : channels[i]->again - 1;
}

/* Under the lock. Whether there was one. */
static bool repeat_gpu (struct edges *edges, uint32_t gpu, bool frozen)
{
    struct edge_channel *batch[RM_FREEZE_MAX];
    uint32_t count = 0;
    bool is_any = false;

    for (uint32_t i = 0; i < edges->count; i++) {
        struct edge_channel *one = edges->channels + i;

        if (one->gpu != (int) gpu || !one->is_stopped || (!frozen && one->again == 0))
            continue;
        is_any = true;
        batch[count++] = one;
        if (count < RM_FREEZE_MAX)
            continue;
        repeat_some (batch, count, frozen);
        count = 0;
    }
    if (count > 0)
        repeat_some (batch, count, frozen);
    return is_any;
}

/* Under the lock, after channels were switched as they are to be: false: some that are to be off run on. */
static bool settle (struct tenant *tenant, uint32_t gpu, bool frozen)
{
    const struct edges *edges = &tenant->edges;
    bool is_done = true;

    for (uint32_t i = 0; frozen && i < edges->count; i++) {
        const struct edge_channel *one = edges->channels + i;

        is_done &= one->gpu != (int) gpu || one->is_stopped || one->is_gone;
    }
    if (is_done)
        late_done (tenant, gpu);
    else
        atomic_fetch_add (&tenant->late.failed, 1);
    return is_done;
}

static bool has_channels (const struct edges *edges, uint32_t gpu)
{
    for (uint32_t i = 0; i < edges->count; i++)
        if (edges->channels[i].gpu == (int) gpu)
            return true;
    return false;
}

/* Before a change of the list or of what is frozen: what keeps nothing off the GPU costs its tenant no time. */
static void count_frozen (struct edges *edges, uint32_t gpu, uint64_t now)
{
    if (edges->frozen[gpu] && has_channels (edges, gpu))
        edges->frozen_ns[gpu] += now - edges->counted_since[gpu];
    edges->counted_since[gpu] = now;
}

int edges_apply (struct tenant *tenant, uint32_t gpu)
{
    struct edges *edges = &tenant->edges;
    int calls = 0;
    bool frozen, is_done;

    atomic_fetch_add (&tenant->late.switching, 1);
    if (schedule_is_off (tenant, gpu)) /* the thread that has the lock may be in a call that does not come back */
        late_due (tenant, gpu, guard_now ());
    pthread_mutex_lock (&edges->lock);
    frozen = schedule_is_off (tenant, gpu);
    if (frozen)
        late_due (tenant, gpu, guard_now ());
    if (edges->frozen[gpu] == frozen)
        calls = switch_gpu (edges, gpu, frozen); /* what could not be switched the last time */
    else {
        uint64_t begun, now;

        while (!frozen && repeat_gpu (edges, gpu, false))
            continue;
        begun = guard_now ();
        calls = switch_gpu (edges, gpu, frozen);
        now = guard_now ();
        count_frozen (edges, gpu, frozen ? begun + (now - begun) / 2 : now); /* a stop takes effect in the middle of its call */
        edges->frozen[gpu] = frozen;
        edges->frozen_since[gpu] = now;
        guard_changed (tenant->guard);
    }
    is_done = settle (tenant, gpu, frozen);
    pthread_mutex_unlock (&edges->lock);
    atomic_fetch_sub (&tenant->late.switching, 1);
    return is_done ? calls : -EAGAIN;
}

#define ASSERT_NS 80000000u
/* Stops of a channel beyond the first one, before as many starts are made: so many it takes to start it. */
#define AGAIN_MOST 8u

static bool is_often_stopped (const struct edges *edges, uint32_t gpu)
{
    for (uint32_t i = 0; i < edges->count; i++)
        if (edges->channels[i].gpu == (int) gpu && edges->channels[i].again >= AGAIN_MOST)
            return true;
    return false;
}

/* Under the lock. One that was started from outside runs, if at all, until the last stop here. */
static void stop_again (struct edges *edges, uint32_t gpu)
{
    while (is_often_stopped (edges, gpu) && repeat_gpu (edges, gpu, false))
        while (repeat_gpu (edges, gpu, false))
            continue;
    (void) repeat_gpu (edges, gpu, true);
}

void edges_stop_again (struct tenant *tenant, uint32_t gpu)
{
    pthread_mutex_lock (&tenant->edges.lock);
    if (tenant->edges.frozen[gpu])
        stop_again (&tenant->edges, gpu);
    pthread_mutex_unlock (&tenant->edges.lock);
}

static bool has_to_stay_off (const struct tenant *tenant, uint32_t gpu)
{
    return !atomic_load (&tenant->stop) && (atomic_load (&tenant->over[gpu]) || atomic_load (&tenant->is_paused));
}

uint64_t edges_assert (struct tenant *tenant, uint64_t now)
{
    struct edges *edges = &tenant->edges;
    uint64_t next = 0;
    bool is_due;

    pthread_mutex_lock (&edges->lock);
    is_due = now >= edges->asserted_at + ASSERT_NS;
    if (is_due)
        edges->asserted_at = now;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        if (!edges->frozen[gpu] || !has_to_stay_off (tenant, gpu))
            continue;
        next = edges->asserted_at + ASSERT_NS;
        if (!is_due || now < edges->frozen_since[gpu] + ASSERT_NS)
            continue;
        stop_again (edges, gpu);
    }
    pthread_mutex_unlock (&edges->lock);
    return next;
}

bool edges_frozen (struct edges *edges, uint32_t gpu, uint64_t *nanoseconds)
{
    bool frozen;

    pthread_mutex_lock (&edges->lock);
    frozen = edges->frozen[gpu];
    count_frozen (edges, gpu, guard_now ());
    *nanoseconds = edges->frozen_ns[gpu];
    pthread_mutex_unlock (&edges->lock);
    return frozen;
}

/* The channel as it was listed before; NULL: it was not. The order of rm's list changes little from one time to the next. */
static const struct edge_channel *listed (const struct edges *edges, const struct rm_channel *channel, uint32_t *hint)
{
    for (uint32_t i = 0; i < edges->count; i++) {
        const struct edge_channel *one = &edges->channels[(*hint + i) % edges->count];

        if (one->client == channel->client && one->channel == channel->channel && one->gpu == channel->gpu) {
            *hint = (*hint + i + 1) % edges->count;
            return one;
        }
    }
    return NULL;
}

void edges_publish (struct tenant *tenant)
{
    struct edges *edges = &tenant->edges;
    uint32_t count = rm_channels (tenant->rm, NULL, 0), used = 0, hint = 0;
    struct rm_channel *found = tenant_allocate (tenant, count + 1, sizeof (*found));
    struct edge_channel *made = tenant_allocate (tenant, count + 1, sizeof (*made)), *before;

    rm_channels (tenant->rm, found, count);
    atomic_fetch_add (&tenant->late.switching, 1);
    pthread_mutex_lock (&edges->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct process *process = process_by_serial (tenant, found[i].file);
        int file = held_file_of (tenant, found[i].client);
        const struct edge_channel *known;

        if (found[i].gpu < 0 || process == NULL)
            continue;
        known = listed (edges, found + i, &hint);
        if (file < 0)
            reach_missing (tenant, process, found[i].client);
        made[used++] = (struct edge_channel) { .client = found[i].client,
                                               .subdevice = found[i].subdevice,
                                               .channel = found[i].channel,
                                               .gpu = found[i].gpu,
                                               .file = file,
                                               .is_stopped = known != NULL && known->is_stopped,
                                               .again = known != NULL ? known->again : 0 };
    }
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        count_frozen (edges, gpu, guard_now ());
    before = edges->channels;
    edges->channels = made;
    edges->count = used;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if (edges->frozen[gpu]) {
            late_due (tenant, gpu, guard_now ());
            (void) switch_gpu (edges, gpu, true);
            (void) settle (tenant, gpu, true);
        }
    pthread_mutex_unlock (&edges->lock);
    atomic_fetch_sub (&tenant->late.switching, 1);
    free (before);
    free (found);
}

void edges_forget (struct edges *edges, uint32_t client)
{
    uint32_t kept = 0;

    pthread_mutex_lock (&edges->lock);
    for (uint32_t gpu = 0; gpu < SHARE_MAX_GPUS; gpu++)
        count_frozen (edges, gpu, guard_now ());
    for (uint32_t i = 0; i < edges->count; i++)
        if (edges->channels[i].client != client)
            edges->channels[kept++] = edges->channels[i];
    edges->count = kept;
    pthread_mutex_unlock (&edges->lock);
}
