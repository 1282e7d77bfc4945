/* Groups that say another engine than the graphics engine's, and compute, or take its turns. */
#include "rm_fake.h"
#include "tap.h"

#define VERSION "580.159.04"
#define FILE_A 1
#define GRAPHICS 1u
#define WITH_GRAPHICS NV2080_ENGINE_TYPE_COPY0 /* as the fake driver has it */
#define COPY 11u
#define CLASS_COPY 0xc8b5u

struct bed {
    struct fake *fake;
    uint32_t client, device, subdevice;
};

static struct bed bed_open (void)
{
    struct bed bed = { .fake = fake_open (VERSION, RM_POSTURE_GUARD) };

    bed.client = fake_client (bed.fake, FILE_A);
    bed.device = fake_device (bed.fake, FILE_A, bed.client, 0);
    bed.subdevice = fake_subdevice (bed.fake, FILE_A, bed.client, bed.device);
    bed.fake->slice[0] = 500;
    return bed;
}

static uint32_t channel_of (const struct bed *bed, uint32_t parent, uint32_t class, uint32_t engine, uint32_t *channel)
{
    uint8_t params[FAKE_CHANNEL_PARAMS] = { 0 };

    *channel = 0;
    ((NV_CHANNEL_ALLOC_PARAMS *) (void *) params)->engineType = engine;
    return fake_alloc (bed->fake, FILE_A, bed->client, parent, channel, class, params, sizeof (params));
}

static uint32_t object_of (const struct bed *bed, uint32_t channel, uint32_t class, uint32_t first, uint32_t second)
{
    uint32_t params[4] = { first, second }, object = 0;

    return fake_alloc (bed->fake, FILE_A, bed->client, channel, &object, class, params, class == CLASS_COPY ? 8 : 16);
}

static bool is_stopped (const struct bed *bed, uint32_t channel)
{
    bool is;

    rm_freeze (bed->fake->rm, 0, true);
    is = fake_find (bed->fake, bed->client, channel)->frozen == 1;
    rm_freeze (bed->fake->rm, 0, false);
    return is;
}

static void moved (void)
{
    struct bed bed = bed_open ();
    uint32_t group = fake_group (bed.fake, FILE_A, bed.client, bed.device, COPY), channel, other, lone;

    tap_ok (channel_of (&bed, group, HOPPER_CHANNEL_GPFIFO_A, COPY, &channel) == 0 && !is_stopped (&bed, channel),
            "a channel of a copy engine is let be");
    tap_ok (object_of (&bed, channel, HOPPER_COMPUTE_A, 0, 0) == NV_ERR_INVALID_CLASS && bed.fake->decision == RM_REFUSED,
            "so no object that computes is made on it");
    channel_of (&bed, bed.device, HOPPER_CHANNEL_GPFIFO_A, COPY, &lone);
    tap_ok (object_of (&bed, lone, HOPPER_COMPUTE_A, 0, 0) == NV_ERR_INVALID_CLASS, "nor on one without a group");
    tap_ok (object_of (&bed, channel, CLASS_COPY, 1, COPY) == 0 && object_of (&bed, channel, CLASS_COPY, 0, 2) == 0 &&
                !is_stopped (&bed, channel),
            "its own engine's objects are made");
    for (unsigned i = 0; i < 4; i++) {
        uint32_t engine = i % 2 != 0 ? WITH_GRAPHICS : GRAPHICS;

        tap_ok (fake_control (bed.fake, FILE_A, bed.client, i < 2 ? group : channel,
                              i < 2 ? NVA06C_CTRL_CMD_BIND : NVA06F_CTRL_CMD_BIND, &engine,
                              sizeof (engine)) == NV_ERR_INVALID_ARGUMENT,
                "and it is not bound to another one");
    }
    tap_ok (fake_control (bed.fake, FILE_A, bed.client, group, NVA06C_CTRL_CMD_BIND, &(uint32_t) { COPY }, 4) == 0 &&
                bed.fake->decision == RM_PERFORM,
            "but to its own");
    channel_of (&bed, group, HOPPER_CHANNEL_GPFIFO_A, COPY, &other);
    tap_ok (object_of (&bed, channel, CLASS_COPY, 1, WITH_GRAPHICS) == 0 && is_stopped (&bed, channel) && is_stopped (&bed, other),
            "an object of a copy engine that takes turns with compute makes its group count");
    tap_ok (object_of (&bed, lone, CLASS_COPY, 0, 0) == 0 && is_stopped (&bed, lone), "and a channel without a group");
    tap_ok (object_of (&bed, channel, HOPPER_COMPUTE_A, 0, 0) == NV_ERR_INVALID_CLASS && fake_charged (bed.fake, 0) == 0,
            "neither has a context");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void with_graphics (void)
{
    struct bed bed = bed_open ();
    uint32_t group = fake_group (bed.fake, FILE_A, bed.client, bed.device, WITH_GRAPHICS), channel, before;

    channel_of (&bed, group, HOPPER_CHANNEL_GPFIFO_A, WITH_GRAPHICS, &channel);
    tap_ok (is_stopped (&bed, channel) && rm_groups (bed.fake->rm, 0) == 1 && fake_find (bed.fake, bed.client, group)->slice == 500,
            "a group of a copy engine that takes turns with compute is stopped and sliced");
    tap_ok (fake_charged (bed.fake, 0) == 0, "it has no context's buffers");
    tap_ok (object_of (&bed, channel, HOPPER_COMPUTE_A, 0, 0) == NV_ERR_INVALID_CLASS, "and gets none by an object that computes");
    before = bed.fake->caps_calls;
    fake_group (bed.fake, FILE_A, bed.client, bed.device, WITH_GRAPHICS);
    tap_ok (before == 1 && bed.fake->caps_calls == 1, "the driver is asked once for each copy engine");
    bed.fake->no_caps = true;
    group = fake_group (bed.fake, FILE_A, bed.client, bed.device, COPY);
    channel_of (&bed, group, HOPPER_CHANNEL_GPFIFO_A, COPY, &channel);
    tap_ok (is_stopped (&bed, channel), "where it says nothing the group counts");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* The driver does not look at what they say. */
static void before_ampere (void)
{
    struct bed bed = bed_open ();
    uint32_t group = fake_group (bed.fake, FILE_A, bed.client, bed.device, COPY), copy = 0, channel, other, lone;

    fake_dup (bed.fake, FILE_A, bed.client, bed.device, &copy, bed.client, group);
    tap_ok (channel_of (&bed, copy, TURING_CHANNEL_GPFIFO_A, COPY, &channel) == 0 && is_stopped (&bed, channel) &&
                fake_find (bed.fake, bed.client, copy)->slice == 500,
            "a channel of a GPU before Ampere is stopped and sliced, whatever its group says");
    tap_ok (fake_charged (bed.fake, 0) == RM_CONTEXT_BYTES, "its context's buffers are charged");
    channel_of (&bed, group, TURING_CHANNEL_GPFIFO_A, COPY, &other);
    tap_ok (is_stopped (&bed, other) && fake_charged (bed.fake, 0) == RM_CONTEXT_BYTES, "so is one by another handle, and once");
    channel_of (&bed, bed.device, TURING_CHANNEL_GPFIFO_A, COPY, &lone);
    tap_ok (is_stopped (&bed, lone) && fake_charged (bed.fake, 0) == 2 * RM_CONTEXT_BYTES, "so is one without a group");
    tap_ok (object_of (&bed, channel, TURING_COMPUTE_A, 0, 0) == 0, "and it may compute");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

int main (void)
{
    moved ();
    with_graphics ();
    before_ampere ();
    return tap_done ();
}
