/* Scheduling of compute channels and groups: controls of rm's own, on the tenant's own objects. */
#include "nv_params.h"
#include "state.h"

/* Of the driver's structs as rm declares them. */
_Static_assert (sizeof (((NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS *) 0)->hChannelList) == RM_FREEZE_MAX * sizeof (NvHandle),
                "channels of a call");

#define NO_DEVICE (-19) /* -ENODEV */

long schedule_control (struct rm *rm, uint64_t file, uint32_t client, uint32_t object, uint32_t command, void *params,
                       uint32_t size)
{
    _Alignas (uint64_t) NVOS54_PARAMETERS head = {
        .hClient = client,
        .hObject = object,
        .cmd = command,
        .params = (NvP64) (uintptr_t) params,
        .paramsSize = size,
    };
    long result;

    rm->controls++;
    result = rm->host->ioctl (rm->context, file, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (head)), &head);
    return result != 0 ? result : (long) head.status;
}

static void changed (struct rm *rm, const struct object *object)
{
    int gpu = tracker_gpu (rm, object);

    if (gpu >= 0)
        rm->changed |= 1u << gpu;
}

/* The host may call rm_set_timeslice and the like from groups_changed: only when nothing is half done. */
void schedule_tell_changed (struct rm *rm)
{
    uint32_t gpus = rm->changed;

    rm->changed = 0;
    for (int gpu = 0; gpus != 0; gpu++, gpus >>= 1)
        if (gpus & 1)
            rm->host->groups_changed (rm->context, gpu);
}

const struct object *schedule_subdevice (const struct rm *rm, const struct client *client, int gpu)
{
    for (const struct object *at = client->subdevices; at != NULL; at = at->role_after)
        if (tracker_gpu (rm, at) == gpu)
            return at;
    return NULL;
}

/* Stops or starts up to RM_FREEZE_MAX channels of one GPU by one call on the file and the subdevice of `by`. They may
 * be of several clients, also of other processes: the driver does not ask whose they are
 * (subdeviceCtrlCmdFifoDisableChannels; seen on an H200, 580.159.04, where a call for two processes took at most a
 * quarter longer than for one). The driver counts: what is stopped twice must be started twice, while starting what
 * runs does nothing. So a channel is stopped only once, and stays marked until a start has succeeded. */
static long switch_channels (struct rm *rm, const struct client *by, struct object *const *channels, uint32_t count, int gpu,
                             bool frozen)
{
    const struct object *subdevice = by != NULL ? schedule_subdevice (rm, by, gpu) : NULL;
    _Alignas (uint64_t) NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params;
    long result;

    if (subdevice == NULL)
        return NO_DEVICE;
    __builtin_memset (&params, 0, sizeof (params));
    params.bDisable = frozen;
    params.numChannels = count;
    for (uint32_t i = 0; i < count; i++) {
        params.hClientList[i] = (uint32_t) (channels[i]->link.key >> 32);
        params.hChannelList[i] = (uint32_t) channels[i]->link.key;
    }
    result = schedule_control (rm, by->file->link.key, (uint32_t) (by->object->link.key >> 32), (uint32_t) subdevice->link.key,
                               NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &params, sizeof (params));
    /* A stop that failed may have stopped some; one that did not reach the driver stopped none. */
    if (frozen ? result >= 0 : result == 0)
        for (uint32_t i = 0; i < count; i++)
            channels[i]->is_stopped = frozen;
    return result;
}

/* All of them at once; where that fails, each client's by itself: one may be unreachable, or ending. What a failed stop
 * did is undone first. */
static long switch_all (struct rm *rm, struct object *const *channels, uint32_t count, int gpu, bool frozen)
{
    const struct client *by = NULL;
    long problem, first_problem, result;

    for (uint32_t i = 0; i < count && by == NULL; i++)
        if (schedule_subdevice (rm, channels[i]->client, gpu) != NULL)
            by = channels[i]->client;
    first_problem = switch_channels (rm, by, channels, count, gpu, frozen);
    if (first_problem == 0 || channels[0]->client == channels[count - 1]->client)
        return first_problem;
    problem = 0;
    for (uint32_t first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && channels[next]->client == channels[first]->client;)
            next++;
        if (schedule_subdevice (rm, channels[first]->client, gpu) != NULL)
            by = channels[first]->client;
        if (frozen && first_problem > 0)
            switch_channels (rm, by, channels + first, next - first, gpu, false);
        result = switch_channels (rm, by, channels + first, next - first, gpu, frozen);
        if (problem == 0)
            problem = result;
    }
    return problem;
}

/* Those of the GPU that are not so already. */
static long switch_gpu (struct rm *rm, int gpu, bool frozen)
{
    struct object *channels[RM_FREEZE_MAX];
    uint32_t count = 0;
    long problem = 0, result;

    for (struct client *client = rm->clients; client != NULL; client = client->after)
        for (struct object *at = client->channels; at != NULL; at = at->role_after) {
            if (tracker_gpu (rm, at) != gpu || at->is_stopped == frozen)
                continue;
            channels[count++] = at;
            if (count < RM_FREEZE_MAX)
                continue;
            result = switch_all (rm, channels, count, gpu, frozen);
            problem = problem == 0 ? result : problem;
            count = 0;
        }
    result = count > 0 ? switch_all (rm, channels, count, gpu, frozen) : 0;
    return problem == 0 ? result : problem;
}

long rm_freeze (struct rm *rm, int gpu, bool frozen)
{
    if (gpu < 0 || gpu >= RM_MAX_GPUS)
        return NO_DEVICE;
    rm->frozen = frozen ? rm->frozen | 1u << gpu : rm->frozen & ~(1u << gpu);
    return switch_gpu (rm, gpu, frozen);
}

uint64_t rm_controls (const struct rm *rm) { return rm->controls; }

bool rm_is_scheduled (const struct rm *rm, uint64_t file, uint32_t client)
{
    const struct object *object = tracker_find (rm, client, client);

    return object != NULL && object->kind == CLASS_CLIENT && object->client->file->link.key == file &&
           (object->client->channels != NULL || object->client->groups != NULL);
}

uint64_t rm_file_of (const struct rm *rm, uint32_t client)
{
    const struct object *object = tracker_find (rm, client, client);

    return object != NULL ? object->client->file->link.key : 0;
}

uint64_t rm_maker_of (const struct rm *rm, uint32_t client)
{
    const struct object *object = tracker_find (rm, client, client);

    return object != NULL ? object->client->maker : 0;
}

unsigned rm_groups (const struct rm *rm, int gpu)
{
    unsigned count = 0;

    for (const struct client *client = rm->clients; client != NULL; client = client->after) {
        for (const struct object *at = client->groups; at != NULL; at = at->role_after)
            count += at->is_compute && at->channels > 0 && tracker_gpu (rm, at) == gpu;
        for (const struct object *at = client->channels; at != NULL; at = at->role_after)
            count += schedule_is_lone (rm, at) && tracker_gpu (rm, at) == gpu;
    }
    return count;
}

unsigned rm_channels (const struct rm *rm, struct rm_channel *channels, unsigned capacity)
{
    unsigned count = 0;

    for (const struct client *client = rm->clients; client != NULL; client = client->after)
        for (struct object *at = client->channels; at != NULL; at = at->role_after, count++) {
            const struct object *group = schedule_group_of (at), *subdevice;
            struct rm_channel *to = channels + count;
            int gpu = tracker_gpu (rm, at);

            if (count >= capacity)
                continue;
            subdevice = schedule_subdevice (rm, client, gpu);
            to->file = client->file->link.key;
            to->client = (uint32_t) (at->link.key >> 32);
            to->subdevice = subdevice != NULL ? (uint32_t) subdevice->link.key : 0;
            to->group = group != NULL ? (uint32_t) group->link.key : 0;
            to->channel = (uint32_t) at->link.key;
            to->gpu = gpu >= 0 ? gpu : RM_NO_GPU;
        }
    return count;
}

/* A channel of the graphics engine: in the lists, counted, and stopped where its GPU is. */
static void compute_channel (struct rm *rm, struct object *channel)
{
    struct object *group = schedule_group_of (channel);
    int gpu = tracker_gpu (rm, channel);

    if (channel->is_compute)
        return;
    channel->is_compute = true;
    tracker_add_role (&channel->client->channels, channel);
    if (group != NULL)
        group->channels++;
    changed (rm, channel);
    if (gpu >= 0 && (rm->frozen & 1u << gpu) != 0)
        switch_channels (rm, channel->client, &channel, 1, gpu, true);
    /* Groups come and go between two decisions of the scheduler. */
    if (is_guard (rm))
        (void) schedule_before_run (rm, channel);
}

bool schedule_found (struct rm *rm, struct object *object)
{
    int gpu = tracker_gpu (rm, object);

    if (object->kind != CLASS_GROUP && object->kind != CLASS_CHANNEL) {
        schedule_added (rm, object, NULL, 0);
        return preempt_object (rm, object, 0);
    }
    if (object->kind == CLASS_CHANNEL && schedule_group_of (object) != NULL) {
        schedule_added (rm, object, NULL, 0);
        return true;
    }
    object->engine = rm->abi->first_graphics;
    memory_charge (rm, gpu, SCHEDULE_CONTEXT_BYTES, &object->context_bytes);
    object->context_gpu = gpu;
    if (object->kind == CLASS_CHANNEL) {
        compute_channel (rm, object);
        return true;
    }
    object->is_compute = object->is_found = true;
    tracker_add_role (&object->client->groups, object);
    return true;
}

void schedule_duplicated (struct rm *rm, struct object *object, struct object *source)
{
    (void) rm;
    if (source->same_after == NULL)
        source->same_after = source->same_before = source;
    object->same_after = source->same_after;
    object->same_before = source;
    source->same_after->same_before = object;
    source->same_after = object;
    object->engine = source->engine;
    object->is_compute = source->is_compute;
    object->is_found = source->is_found;
    object->is_foreign = source->is_foreign;
    object->made = source->made;
    object->slice = source->slice;
    object->context_state = source->context_state;
    tracker_add_role (&object->client->groups, object);
}

/* The context lives as long as the group's last handle. */
static void leave_same (struct object *object)
{
    struct object *heir = object->same_after;

    if (heir == NULL || heir == object)
        return;
    heir->same_before = object->same_before;
    object->same_before->same_after = heir;
    if (heir->context_bytes != 0)
        return;
    heir->context_bytes = object->context_bytes;
    heir->context_gpu = object->context_gpu;
    object->context_bytes = 0;
}

bool schedule_reaches (const struct rm *rm, const struct object *object)
{
    int gpu = object != NULL ? tracker_gpu (rm, object) : GPU_UNKNOWN;

    return gpu == RM_NO_GPU || (gpu >= 0 && schedule_subdevice (rm, object->client, gpu) != NULL);
}

static bool is_at_or_below (const struct object *object, const struct object *top)
{
    return object == top || object->device == top;
}

bool schedule_needs (const struct rm *rm, const struct object *object)
{
    int gpu = object->kind == CLASS_SUBDEVICE || object->kind == CLASS_DEVICE ? tracker_gpu (rm, object) : GPU_UNKNOWN;
    bool remains = false;

    if (gpu < 0)
        return false;
    for (const struct object *at = object->client->channels; at != NULL && !remains; at = at->role_after)
        remains = tracker_gpu (rm, at) == gpu && !is_at_or_below (at, object);
    for (const struct object *at = object->client->subdevices; at != NULL && remains; at = at->role_after)
        remains = tracker_gpu (rm, at) != gpu || is_at_or_below (at, object);
    return remains;
}

/* What a channel says, or the group that it is in. */
static bool says_compute (const struct rm *rm, const struct object *object)
{
    const struct object *group = object->kind == CLASS_CHANNEL ? schedule_group_of (object) : NULL;

    return (group != NULL ? group : object)->is_compute || schedule_computes (rm, object->engine);
}

/* An object of the graphics engine, or BIND, moves a group that said another engine to where it computes, on Ampere to Hopper without virtual functions
 * (chandesConstruct_IMPL, kfifoRunlistSetId_GM107: source, 535 to 595). */
bool schedule_may_compute (const struct rm *rm, const struct object *channel)
{
    return channel == NULL || (channel->kind == CLASS_CHANNEL && says_compute (rm, channel));
}

bool schedule_may_bind (const struct rm *rm, const struct rm_call *call)
{
    const NVOS54_PARAMETERS *head = call->head;
    const struct object *object;

    if (head->cmd != NVA06C_CTRL_CMD_BIND && head->cmd != NVA06F_CTRL_CMD_BIND)
        return true;
    object = tracker_find (rm, head->hClient, head->hObject);
    if (object == NULL)
        return true;
    if (object->kind != CLASS_GROUP && object->kind != CLASS_CHANNEL)
        return false;
    if (says_compute (rm, object))
        return true;
    return call->params != NULL && call->params_size >= sizeof (uint32_t) && !schedule_computes (rm, get32 (call->params, 0));
}

void schedule_added (struct rm *rm, struct object *object, const void *params, uint32_t params_size)
{
    const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *of_group = params;
    const NV_CHANNEL_ALLOC_PARAMS *of_channel = params;
    struct object *group;

    /* Channel groups say their engine, and channels that have no group of their own. */
    if (object->kind == CLASS_GROUP) {
        object->engine = params_size >= sizeof (*of_group) ? of_group->engineType : 0;
        object->is_compute = schedule_computes (rm, object->engine);
        tracker_add_role (&object->client->groups, object);
    } else if (object->kind == CLASS_CHANNEL) {
        group = schedule_group_of (object);
        if (group != NULL)
            object->engine = group->engine;
        else if (params_size >= sizeof (*of_channel))
            object->engine = of_channel->engineType;
        if (group != NULL ? group->is_compute : schedule_computes (rm, object->engine))
            compute_channel (rm, object);
    } else if (object->kind == CLASS_COMPUTE && object->parent->kind == CLASS_CHANNEL) {
        group = schedule_group_of (object->parent);
        if (group != NULL)
            group->is_compute = true;
        compute_channel (rm, object->parent);
    }
}

void schedule_removed (struct rm *rm, struct object *object)
{
    struct object *group;

    /* Channels are stopped by it as long as it is there. */
    if (object->kind == CLASS_SUBDEVICE && object->client->channels != NULL)
        changed (rm, object);
    if (object->kind == CLASS_GROUP) {
        tracker_remove_role (&object->client->groups, object);
        leave_same (object);
        if (object->is_compute)
            changed (rm, object);
    } else if (object->kind == CLASS_CHANNEL && object->is_compute) {
        tracker_remove_role (&object->client->channels, object);
        group = schedule_group_of (object);
        if (group != NULL)
            group->channels--;
        changed (rm, object);
    }
}
