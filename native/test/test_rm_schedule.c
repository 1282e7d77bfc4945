/* Groups, channels, timeslices, freezing. */
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

#define VERSION "580.159.04"
#define FILE_A 1
#define FILE_B 2
#define COMPUTE 1u
#define COPY 11u

struct tenant {
    uint32_t client, device, subdevice, group, channel; /* channel: its last compute channel */
};

static struct tenant tenant (struct fake *fake, uint64_t file, uint32_t instance, unsigned channels)
{
    struct tenant t = { .client = fake_client (fake, file) };
    uint32_t copy;

    t.device = fake_device (fake, file, t.client, instance);
    t.subdevice = fake_subdevice (fake, file, t.client, t.device);
    t.group = fake_group (fake, file, t.client, t.device, COMPUTE);
    for (unsigned i = 0; i < channels; i++)
        t.channel = fake_channel (fake, file, t.client, t.group);
    copy = fake_group (fake, file, t.client, t.device, COPY);
    fake_channel (fake, file, t.client, copy);
    return t;
}

static unsigned frozen (const struct fake *fake)
{
    unsigned count = 0;

    for (unsigned i = 0; i < fake->object_count; i++)
        count += fake->objects[i].live && fake->objects[i].frozen;
    return count;
}

static unsigned most_stops (const struct fake *fake)
{
    unsigned most = 0;

    for (unsigned i = 0; i < fake->object_count; i++)
        if (fake->objects[i].live && fake->objects[i].frozen > most)
            most = fake->objects[i].frozen;
    return most;
}

static uint64_t slice_of (struct fake *fake, uint32_t client, uint32_t group)
{
    const struct fake_object *object = fake_find (fake, client, group);

    return object != NULL ? object->slice : UINT64_MAX;
}

static uint32_t slice (struct fake *fake, const struct tenant *t, uint32_t group, uint32_t number, uint64_t *value)
{
    return fake_control (fake, FILE_A, t->client, group, number, value, 8);
}

static void counting (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_SHIM);
    struct tenant a = tenant (fake, FILE_A, 0, 0);
    struct rm_channel channels[3];
    uint32_t channel;
    unsigned before;

    tap_ok (rm_groups (fake->rm, 0) == 0, "a group counts once it has a channel");
    channel = fake_channel (fake, FILE_A, a.client, a.group);
    tap_ok (rm_groups (fake->rm, 0) == 1 && rm_groups (fake->rm, 1) == 0 && fake->changed[0] == 1,
            "only groups of the graphics engine count, and the host gets them");
    fake_channel (fake, FILE_A, a.client, a.group);
    tap_ok (rm_channels (fake->rm, channels, 3) == 2 && channels[0].client == a.client && channels[0].group == a.group &&
                channels[0].subdevice == a.subdevice && channels[0].file == FILE_A && channels[0].gpu == 0 &&
                (channels[0].channel == channel || channels[1].channel == channel),
            "channels are listed with their group and their client's own subdevice");
    tap_ok (rm_channels (fake->rm, channels, 1) == 2 && rm_channels (fake->rm, NULL, 0) == 2, "a short list still says how many");
    before = fake->changed[0];
    fake_free (fake, FILE_A, a.client, a.group);
    tap_ok (rm_groups (fake->rm, 0) == 0 && rm_channels (fake->rm, channels, 3) == 0 && fake->changed[0] == before + 1,
            "a group that goes takes its channels along, and the host gets that once");
    tenant (fake, FILE_B, 1, 2);
    before = fake->changed[1];
    fake_close_file (fake, FILE_B);
    tap_ok (rm_groups (fake->rm, 1) == 0 && fake->changed[1] == before + 1, "closing the file does so too");
    tap_ok (fake_close (fake), "nothing is left");
}

static void older_gpus (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_SHIM);
    struct tenant a = tenant (fake, FILE_A, 0, 0);
    uint32_t group = fake_group (fake, FILE_A, a.client, a.device, 0), channel = fake_channel (fake, FILE_A, a.client, group);
    uint32_t engine = 0;
    uint8_t params[368] = { 0 };

    tap_ok (rm_groups (fake->rm, 0) == 0, "a group that says no engine does not count");
    fake_alloc (fake, FILE_A, a.client, channel, &engine, TURING_COMPUTE_A, params, 16);
    tap_ok (rm_groups (fake->rm, 0) == 1, "until a compute object is made on one of its channels");
    ((NV_CHANNEL_ALLOC_PARAMS *) (void *) params)->engineType = COMPUTE;
    channel = 0;
    fake_alloc (fake, FILE_A, a.client, a.device, &channel, TURING_CHANNEL_GPFIFO_A, params, sizeof (params));
    tap_ok (rm_channels (fake->rm, NULL, 0) == 2, "a channel without a group says its engine itself");
    tap_ok (fake_close (fake), "nothing is left");
}

static void freezing (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_SHIM);
    struct tenant a = tenant (fake, FILE_A, 0, 130);
    struct tenant b = tenant (fake, FILE_B, 0, 3);
    uint32_t lone, device;

    tenant (fake, FILE_B, 1, 2);
    tap_ok (rm_freeze (fake->rm, 0, true) == 0 && frozen (fake) == 133,
            "freezing stops every compute channel on that GPU, no other");
    tap_ok (fake->disable_calls == 3 && fake->largest_batch == 64, "64 channels a call, of several clients if need be");
    fake_channel (fake, FILE_A, a.client, a.group);
    tap_ok (frozen (fake) == 134, "a channel that is made meanwhile is stopped at once");
    tap_ok (rm_freeze (fake->rm, 0, true) == 0 && fake->disable_calls == 4,
            "what is stopped is not stopped again: the driver would count it");
    tap_ok (rm_freeze (fake->rm, 0, false) == 0 && frozen (fake) == 0, "thawing starts them all");
    fake_channel (fake, FILE_A, a.client, a.group);
    tap_ok (frozen (fake) == 0, "and a later channel runs");
    tap_ok (rm_freeze (fake->rm, 5, true) == 0 && rm_freeze (fake->rm, -1, true) < 0 && rm_freeze (fake->rm, 99, true) < 0,
            "a GPU without channels needs nothing, one that cannot be is an error");
    lone = fake_client (fake, FILE_A);
    device = fake_device (fake, FILE_A, lone, 0);
    fake_channel (fake, FILE_A, lone, fake_group (fake, FILE_A, lone, device, COMPUTE));
    tap_ok (rm_freeze (fake->rm, 0, true) == 0 && frozen (fake) == 136, "a client without a subdevice is stopped by another's");
    tap_ok (rm_freeze (fake->rm, 0, false) == 0 && frozen (fake) == 0, "and started");
    fake_find (fake, b.client, b.channel)->class = 0;
    tap_ok (rm_freeze (fake->rm, 0, true) == NV_ERR_INVALID_OBJECT_HANDLE && frozen (fake) >= 133 && most_stops (fake) == 1,
            "where one client's channel is gone, the other clients' are stopped all the same, and once");
    fake_find (fake, b.client, b.channel)->class = HOPPER_CHANNEL_GPFIFO_A;
    rm_freeze (fake->rm, 0, false);
    tap_ok (frozen (fake) == 0, "and all are started");
    tap_ok (fake_close (fake), "nothing is left");
}

static void shim_slices (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_SHIM);
    struct tenant a = tenant (fake, FILE_A, 0, 2);
    uint64_t value = 2048;
    unsigned before = fake->changed[0];
    uint32_t copy;

    tap_ok (slice (fake, &a, a.group, NVA06C_CTRL_CMD_SET_TIMESLICE, &value) == 0 && slice_of (fake, a.client, a.group) == 2048 &&
                fake->changed[0] == before + 1,
            "a share without a timeslice leaves the owner's, and the host hears of a group's first");
    slice (fake, &a, a.group, NVA06C_CTRL_CMD_SET_TIMESLICE, &value);
    tap_ok (fake->changed[0] == before + 1, "but not of its second");
    fake->slice[0] = 777;
    value = 4096;
    slice (fake, &a, a.group, NVA06C_CTRL_CMD_SET_TIMESLICE, &value);
    tap_ok (slice_of (fake, a.client, a.group) == 777 && value == 4096,
            "the share's timeslice takes the place of the owner's, whose struct says what it said");
    value = 0;
    slice (fake, &a, a.group, NVA06C_CTRL_CMD_GET_TIMESLICE, &value);
    tap_ok (value == 4096, "and a query answers the owner's");
    fake->next_status = NV_ERR_INVALID_ARGUMENT;
    value = 9999;
    slice (fake, &a, a.group, NVA06C_CTRL_CMD_SET_TIMESLICE, &value);
    tap_ok (value == 9999 && slice (fake, &a, a.group, NVA06C_CTRL_CMD_GET_TIMESLICE, &value) == 0 && value == 4096,
            "a timeslice that the driver refuses is not remembered");
    copy = fake_group (fake, FILE_A, a.client, a.device, COPY);
    value = 1234;
    slice (fake, &a, copy, NVA06C_CTRL_CMD_SET_TIMESLICE, &value);
    tap_ok (slice_of (fake, a.client, copy) == 1234 && fake->decision == RM_PASS, "groups of copy engines are let be");
    tap_ok (rm_set_timeslice (fake->rm, 0, 321) == 0 && slice_of (fake, a.client, a.group) == 321 &&
                slice_of (fake, a.client, copy) == 1234,
            "rm_set_timeslice writes to every compute group and to no other");
    tap_ok (fake_control (fake, FILE_A, a.client, a.subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, (uint8_t[536]) { 0 }, 536) ==
                    0 &&
                fake->decision == RM_PASS,
            "the shim lets a tenant schedule for itself");
    tap_ok (fake_close (fake), "nothing is left");
}

static void guard_slices (void)
{
    static const uint32_t own[] = {
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
        NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY,
        NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES,
        NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL,
        NVA06C_CTRL_CMD_MAKE_REALTIME,
        NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL,
    };
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    struct tenant a = tenant (fake, FILE_A, 0, 2);
    static uint8_t params[1024];
    uint64_t value = 2048;
    unsigned answered = 0;

    tap_ok (slice (fake, &a, a.group, NVA06C_CTRL_CMD_SET_TIMESLICE, &value) == 0 && fake->decision == RM_PERFORM &&
                slice_of (fake, a.client, a.group) == 2048,
            "guard: without a timeslice in the share the owner's is performed");
    fake->slice[0] = 555;
    value = 65000;
    tap_ok (slice (fake, &a, a.group, NVA06C_CTRL_CMD_SET_TIMESLICE, &value) == 0 && fake->decision == RM_ANSWERED &&
                slice_of (fake, a.client, a.group) == 555 && fake->notes[RM_SCHEDULING_CONTROL] == 1,
            "guard: with one the owner is answered, and the share's is set by rm itself");
    value = 0;
    tap_ok (slice (fake, &a, a.group, NVA06C_CTRL_CMD_GET_TIMESLICE, &value) == 0 && value == 65000,
            "guard: a query answers the owner's");
    for (size_t i = 0; i < sizeof (own) / sizeof (own[0]); i++)
        answered += fake_control (fake, FILE_A, a.client, a.subdevice, own[i], params, sizeof (params)) == 0 &&
                    fake->decision == RM_ANSWERED;
    tap_ok (answered == 6 && fake->notes[RM_SCHEDULING_CONTROL] == 7 && fake->disable_calls == 0,
            "guard: a tenant's own scheduling is answered, not performed, and counted");
    tap_ok (fake_close (fake), "nothing is left");
}

/* C6, and fact 6 of the driver: a slice that is written before the first channel has no effect. */
static void guard_starts (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    struct tenant a = tenant (fake, FILE_A, 0, 0);
    uint8_t params[3] = { 1 };

    fake->slice[0] = 500;
    for (unsigned round = 0; round < 2; round++) {
        uint32_t group = fake_group (fake, FILE_A, a.client, a.device, COMPUTE);

        fake_channel (fake, FILE_A, a.client, group);
        fake_control (fake, FILE_A, a.client, group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params, sizeof (params));
        tap_ok (fake_find (fake, a.client, group)->in_force == 500,
                round == 0 ? "a group has the share's slice before it computes" : "C6: so has one that is made again");
        fake_free (fake, FILE_A, a.client, group);
    }
    fake_channel (fake, FILE_A, a.client, a.group);
    fake_find (fake, a.client, a.group)->slice = 0;
    fake->slice[0] = 600;
    fake->next_status = NV_ERR_INVALID_ARGUMENT; /* of the guard's own call, which is the next one */
    tap_ok (fake_control (fake, FILE_A, a.client, a.group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params, sizeof (params)) != 0 &&
                !fake_find (fake, a.client, a.group)->is_started,
            "a group does not compute if its slice cannot be written");
    tap_ok (fake_control (fake, FILE_A, a.client, a.group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, NULL, 0) != 0 &&
                !fake_find (fake, a.client, a.group)->is_started,
            "nor does one without params");
    tap_ok (fake_close (fake), "nothing is left");
}

/* A change of a timeslice is in force only where the group itself was started. */
static void guard_starts_channels (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    struct tenant a = tenant (fake, FILE_A, 0, 1);
    const uint32_t *given = fake->given;
    uint32_t copy = 0, other, by_copy, objects[] = { a.group, a.channel },
             numbers[] = { NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, NVA06F_CTRL_CMD_GPFIFO_SCHEDULE };
    uint8_t params[3] = { 1, 1, 1 }, end[3] = { 0 };
    NVOS54_PARAMETERS head = fake_control_head (a.client, a.channel, NVA06F_CTRL_CMD_GPFIFO_SCHEDULE, params, sizeof (params));

    fake->slice[0] = 500;
    fake_call (fake, RM_NODE_CONTROL, FILE_A, CONTROL_REQUEST, &head, params, sizeof (params), NULL, 0);
    tap_ok (head.status == 0 && fake->decision == RM_PERFORM && fake_find (fake, a.client, a.group)->is_started &&
                !fake_find (fake, a.client, a.channel)->is_started,
            "the start of a channel is its group's");
    tap_ok (head.hObject == a.channel && head.cmd == NVA06F_CTRL_CMD_GPFIFO_SCHEDULE, "the caller's struct says what it said");
    tap_ok ((given[0] & 0xffffff) == 1, "nothing of it is skipped");
    rm_set_timeslice (fake->rm, 0, 300);
    tap_ok (fake_find (fake, a.client, a.group)->in_force == 300, "so that a later timeslice is in force");
    fake_find (fake, a.client, a.group)->is_started = false;
    for (unsigned i = 0; i < 2; i++)
        tap_ok (fake_control (fake, FILE_A, a.client, objects[i], numbers[i], end, sizeof (end)) == 0 &&
                    fake->decision == RM_ANSWERED,
                "that it is to end is answered, not performed");
    fake_dup (fake, FILE_A, a.client, a.device, &copy, a.client, a.group);
    by_copy = fake_channel (fake, FILE_A, a.client, copy);
    tap_ok (fake_control (fake, FILE_A, a.client, by_copy, numbers[1], params, sizeof (params)) == 0 &&
                fake_find (fake, a.client, copy)->is_started,
            "a channel by another handle of the group starts it, too");
    other = fake_group (fake, FILE_A, a.client, a.device, COPY);
    other = fake_channel (fake, FILE_A, a.client, other);
    tap_ok (fake_control (fake, FILE_A, a.client, other, numbers[1], params, sizeof (params)) == 0 &&
                fake_find (fake, a.client, other)->is_started,
            "a channel of another engine is started by itself");
    tap_ok (fake_close (fake), "nothing is left");
}

/* MPS's server lends its group, which runs: another start of the group starts no channel of a client. */
static void guard_starts_lent_channels (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    struct tenant a = tenant (fake, FILE_A, 0, 1);
    NVOS64_PARAMETERS client = { .hClass = NV01_ROOT_CLIENT }, device, group;
    NV0080_ALLOC_PARAMETERS of_device = { 0 };
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS of_group = { .engineType = COMPUTE };
    uint32_t lent = 0, copy = 0, channels[2];
    uint8_t params[3] = { 1, 1, 1 };

    /* no guard sees these */
    fake_driver (fake, FILE_B, ALLOC_REQUEST, &client, NULL, NULL);
    device = (NVOS64_PARAMETERS) {
        .hRoot = client.hObjectNew, .hObjectParent = client.hObjectNew, .hObjectNew = 1, .hClass = NV01_DEVICE_0
    };
    fake_driver (fake, FILE_B, ALLOC_REQUEST, &device, &of_device, NULL);
    group = (NVOS64_PARAMETERS) {
        .hRoot = client.hObjectNew, .hObjectParent = 1, .hObjectNew = 2, .hClass = KEPLER_CHANNEL_GROUP_A
    };
    fake_driver (fake, FILE_B, ALLOC_REQUEST, &group, &of_group, NULL);
    tap_ok (fake_dup (fake, FILE_A, a.client, a.device, &lent, client.hObjectNew, 2) == 0 &&
                fake_dup (fake, FILE_A, a.client, a.device, &copy, a.client, lent) == 0,
            "a group is lent, and has two handles");
    channels[0] = fake_channel_in (fake, FILE_A, a.client, lent, fake_share (fake, FILE_A, a.client, a.device, lent));
    channels[1] = fake_channel_in (fake, FILE_A, a.client, copy, fake_share (fake, FILE_A, a.client, a.device, copy));
    for (unsigned i = 0; i < 2; i++)
        tap_ok (fake_control (fake, FILE_A, a.client, channels[i], NVA06F_CTRL_CMD_GPFIFO_SCHEDULE, params, sizeof (params)) == 0 &&
                    fake_find (fake, a.client, channels[i])->is_started && !fake_find (fake, a.client, lent)->is_started &&
                    (fake->given[0] & 0xffffff) == 1,
                "a channel in it is started by itself, and nothing of that is skipped");
    tap_ok (fake_close (fake), "nothing is left");
}

/* What would compute in a group that says another engine. */
static void guard_engines (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    struct tenant a = tenant (fake, FILE_A, 0, 1);
    uint32_t group = fake_group (fake, FILE_A, a.client, a.device, COPY), channel = fake_channel (fake, FILE_A, a.client, group),
             graphics = COMPUTE, copy = COPY, object = 0, objects[] = { group, channel },
             binds[] = { NVA06C_CTRL_CMD_BIND, NVA06F_CTRL_CMD_BIND };
    uint32_t params[4] = { 0 };
    uint64_t long_slice = 65000;
    const struct {
        const char *what;
        uint32_t engine, subdevice, reason, size;
        unsigned object; /* 0: the channel that computes; else of objects */
        bool is_good;
    } resets[] = {
        { "RESET_CHANNEL of a channel that computes, with its engine, is made", COMPUTE, 0, 0, 16, 0, true },
        { "with the params of branch 535, too", COMPUTE, 0, 0, 12, 0, true },
        { "with another engine it is refused", COPY, 0, 0, 16, 0, false },
        { "with another graphics engine", COMPUTE + 1, 0, 0, 16, 0, false },
        { "without an engine", 0, 0, 0, 16, 0, false },
        { "of another subdevice", COMPUTE, 1, 0, 16, 0, false },
        { "for another reason", COMPUTE, 0, 2, 16, 0, false },
        { "without its params", COMPUTE, 0, 0, 8, 0, false },
        { "of a group", COPY, 0, 0, 16, 1, false },
        { "of a channel of a copy engine, with that", COPY, 0, 0, 16, 2, false },
        { "or with the graphics engine", COMPUTE, 0, 0, 16, 2, false },
    };

    tap_ok (fake_alloc (fake, FILE_A, a.client, channel, &object, HOPPER_COMPUTE_A, params, sizeof (params)) ==
                    NV_ERR_INVALID_CLASS &&
                fake->decision == RM_REFUSED,
            "no compute object is made on a channel of a copy engine");
    tap_ok (fake_alloc (fake, FILE_A, a.client, a.channel, &object, HOPPER_COMPUTE_A, params, sizeof (params)) == 0,
            "on one of the graphics engine it is");
    for (unsigned i = 0; i < 2; i++) {
        tap_ok (fake_control (fake, FILE_A, a.client, objects[i], binds[i], &graphics, sizeof (graphics)) ==
                        NV_ERR_INVALID_ARGUMENT &&
                    fake->decision == RM_REFUSED,
                "nor is it bound to the graphics engine");
        tap_ok (fake_control (fake, FILE_A, a.client, objects[i], binds[i], &copy, sizeof (copy)) == 0 &&
                    fake->decision == RM_PERFORM,
                "to its own it is");
    }
    tap_ok (fake_control (fake, FILE_A, a.client, group, NVA06C_CTRL_CMD_BIND, NULL, 0) == NV_ERR_INVALID_ARGUMENT,
            "without params it is to none");
    tap_ok (fake_control (fake, FILE_A, a.client, a.group, NVA06C_CTRL_CMD_BIND, &graphics, sizeof (graphics)) == 0,
            "a group of the graphics engine is bound to it");
    for (unsigned i = 0; i < sizeof (resets) / sizeof (resets[0]); i++) {
        uint32_t reset[4] = { resets[i].engine, resets[i].subdevice, resets[i].reason };
        uint32_t status = fake_control (fake, FILE_A, a.client, resets[i].object == 0 ? a.channel : objects[resets[i].object - 1],
                                        NV906F_CTRL_CMD_RESET_CHANNEL, reset, resets[i].size);

        tap_ok (resets[i].is_good ? status == 0 && fake->decision == RM_PERFORM
                                  : status == NV_ERR_INVALID_ARGUMENT && fake->decision == RM_REFUSED,
                resets[i].what);
    }
    fake->slice[0] = 0; /* nothing is decided yet */
    tap_ok (slice (fake, &a, a.group, NVA06C_CTRL_CMD_SET_TIMESLICE, &long_slice) == 0 && long_slice == 65000 &&
                slice_of (fake, a.client, a.group) == 2048,
            "before the scheduler has looked a timeslice is libcuda's at most");
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    counting ();
    older_gpus ();
    freezing ();
    shim_slices ();
    guard_slices ();
    guard_starts ();
    guard_starts_channels ();
    guard_starts_lent_channels ();
    guard_engines ();
    return tap_done ();
}
