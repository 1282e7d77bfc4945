/* Groups that compute stop at any instruction, whatever their programs ask for (rm/preempt.c). */
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

#define VERSION "580.159.04"
#define FILE_A 1
#define COMPUTE 1u
#define HOPPER_A 0xcb97u
#define CTA NV2080_GR_PREEMPTION_COMPUTE_CTA
#define CILP NV2080_GR_PREEMPTION_COMPUTE_CILP

struct bed {
    struct fake *fake;
    uint32_t client, device, subdevice, group, channel;
};

static struct bed open_bed (enum rm_posture posture)
{
    struct bed bed = { .fake = fake_open (VERSION, posture) };

    bed.client = fake_client (bed.fake, FILE_A);
    bed.device = fake_device (bed.fake, FILE_A, bed.client, 0);
    bed.subdevice = fake_subdevice (bed.fake, FILE_A, bed.client, bed.device);
    bed.group = fake_group (bed.fake, FILE_A, bed.client, bed.device, COMPUTE);
    bed.channel = fake_channel (bed.fake, FILE_A, bed.client, bed.group);
    return bed;
}

static uint32_t compute (const struct bed *bed, uint32_t channel, uint32_t class)
{
    uint32_t params[4] = { 0 }, object = 0;

    return fake_alloc (bed->fake, FILE_A, bed->client, channel, &object, class, params, sizeof (params));
}

static uint32_t start (const struct bed *bed, uint32_t object)
{
    uint8_t params[3] = { 1 };
    bool is_group = object != bed->channel;

    return fake_control (bed->fake, FILE_A, bed->client, object,
                         is_group ? NVA06C_CTRL_CMD_GPFIFO_SCHEDULE : NVA06F_CTRL_CMD_GPFIFO_SCHEDULE, params, sizeof (params));
}

static void ask (const struct bed *bed, uint32_t named, uint32_t flags, uint32_t mode)
{
    NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS params = { .flags = flags, .hChannel = named, .cilpPreemptMode = mode };

    fake_control (bed->fake, FILE_A, bed->client, bed->subdevice, NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE, &params,
                  sizeof (params));
}

static bool is_started (const struct bed *bed) { return fake_find (bed->fake, bed->client, bed->group)->is_started; }

static void unasked (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);
    uint32_t copy = 0, other;

    compute (&bed, bed.channel, HOPPER_COMPUTE_A);
    tap_ok (bed.fake->mode_calls == 0, "nothing is set before a group starts");
    tap_ok (start (&bed, bed.channel) == 0 && bed.fake->mode_calls == 1 && is_started (&bed),
            "a group of a program that asks for no mode gets it at its start");
    start (&bed, bed.group);
    tap_ok (bed.fake->mode_calls == 1, "once");
    other = fake_channel (bed.fake, FILE_A, bed.client, bed.group);
    tap_ok (compute (&bed, other, HOPPER_COMPUTE_A) == 0 && bed.fake->mode_calls == 2,
            "and again when an object that computes is made in it while it runs");
    fake_dup (bed.fake, FILE_A, bed.client, bed.device, &copy, bed.client, bed.group);
    other = fake_channel (bed.fake, FILE_A, bed.client, copy);
    tap_ok (start (&bed, copy) == 0 && bed.fake->mode_calls == 2, "another handle of the group is the same group");
    tap_ok (compute (&bed, other, HOPPER_COMPUTE_A) == 0 && bed.fake->mode_calls == 3, "also for what is made by it");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void asked (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);

    compute (&bed, bed.channel, HOPPER_COMPUTE_A);
    ask (&bed, bed.group, NV2080_GR_PREEMPTION_FLAGS_CILP_SET, 0);
    start (&bed, bed.group);
    tap_ok (bed.fake->mode_calls == 1, "where the program asked, for whichever mode, the guard makes no call of its own");
    bed.group = fake_group (bed.fake, FILE_A, bed.client, bed.device, COMPUTE);
    bed.channel = fake_channel (bed.fake, FILE_A, bed.client, bed.group);
    compute (&bed, bed.channel, HOPPER_COMPUTE_A);
    ask (&bed, bed.channel, 2, 0);
    start (&bed, bed.group);
    tap_ok (bed.fake->mode_calls == 3, "an ask about graphics alone is none");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void refused (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);
    uint32_t idle = fake_group (bed.fake, FILE_A, bed.client, bed.device, COMPUTE), older, later;

    fake_channel (bed.fake, FILE_A, bed.client, idle);
    older = fake_group (bed.fake, FILE_A, bed.client, bed.device, 0);
    later = fake_channel (bed.fake, FILE_A, bed.client, older);
    bed.fake->no_mode = true;
    compute (&bed, bed.channel, HOPPER_COMPUTE_A);
    tap_ok (start (&bed, bed.group) != 0 && !is_started (&bed) && bed.fake->notes[RM_SCHEDULING_CONTROL] == 1,
            "a group for which the driver does not take it is not started, which is counted");
    tap_ok (start (&bed, idle) != 0 && bed.fake->notes[RM_SCHEDULING_CONTROL] == 2, "nor is one in which nothing computes yet");
    tap_ok (start (&bed, older) == 0 && bed.fake->notes[RM_SCHEDULING_CONTROL] == 2, "one that named no engine is");
    tap_ok (compute (&bed, later, 0xa140) == 0, "and has objects that run no kernels");
    tap_ok (compute (&bed, later, HOPPER_COMPUTE_A) != 0, "but gets no object that computes");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* PREEMPT: the GPU's firmware takes no other call while one waits. */
static void waits (void)
{
    static const struct {
        NVA06C_CTRL_PREEMPT_PARAMS said, given;
    } calls[] = {
        { { 0, 0, { 0 }, 0 }, { 1, 1, { 0 }, 100000 } },
        { { 1, 0, { 0 }, 0 }, { 1, 1, { 0 }, 100000 } },
        { { 1, 1, { 0 }, 1000000 }, { 1, 1, { 0 }, 100000 } },
        { { 1, 1, { 0 }, 500 }, { 1, 1, { 0 }, 500 } },
    };
    struct bed bed = open_bed (RM_POSTURE_GUARD);

    for (size_t i = 0; i < sizeof (calls) / sizeof (calls[0]); i++) {
        NVA06C_CTRL_PREEMPT_PARAMS params = calls[i].said;

        tap_ok (fake_control (bed.fake, FILE_A, bed.client, bed.group, NVA06C_CTRL_CMD_PREEMPT, &params, sizeof (params)) == 0 &&
                    memcmp (bed.fake->given, &calls[i].given, sizeof (params)) == 0 &&
                    memcmp (&params, &calls[i].said, sizeof (params)) == 0,
                "a preemption is waited for, and not for long");
    }
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static uint32_t idle (const struct bed *bed, uint32_t client, uint32_t timeout)
{
    NVOS30_PARAMETERS head = {
        .hClient = client, .hDevice = bed->device, .hChannel = bed->channel, .flags = 1u << 4, .timeout = timeout
    };

    bed->fake->idle_us = 0;
    fake_call (bed->fake, RM_NODE_CONTROL, FILE_A, NV_REQUEST (NV_ESC_RM_IDLE_CHANNELS, sizeof (head)), &head, NULL, 0, NULL, 0);
    tap_ok (head.timeout == timeout, "the caller's struct has its own timeout");
    return head.status;
}

/* The driver waits with locks that every program's calls need. */
static void waits_for_idle (void)
{
    static const uint32_t said[] = { 0, 500, 100001, UINT32_MAX }, given[] = { 100000, 500, 100000, 100000 };
    struct bed bed = open_bed (RM_POSTURE_GUARD);

    for (size_t i = 0; i < sizeof (said) / sizeof (said[0]); i++)
        tap_ok (idle (&bed, bed.client, said[i]) == 0 && bed.fake->idle_us == given[i],
                "an idle channel is waited for, and not for long");
    tap_ok (idle (&bed, bed.client + 1, 500) == NV_ERR_OBJECT_NOT_FOUND && bed.fake->idle_us == 0 &&
                bed.fake->notes[RM_UNKNOWN_OBJECT] == 1,
            "not another's");
    tap_ok (fake_close (bed.fake), "nothing is left");
    bed = open_bed (RM_POSTURE_SHIM);
    tap_ok (idle (&bed, bed.client, 100001) == 0 && bed.fake->idle_us == 100001, "the preloaded library changes nothing");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void by_the_library (void)
{
    struct bed bed = open_bed (RM_POSTURE_SHIM);

    compute (&bed, bed.channel, HOPPER_COMPUTE_A);
    start (&bed, bed.group);
    tap_ok (bed.fake->mode_calls == 0, "the preloaded library sets none");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* Objects of graphics, for which a context gives up that it stops at any instruction. */
static void graphics (void)
{
    static const uint32_t classes[] = { FERMI_TWOD_A, HOPPER_A };
    struct bed bed = open_bed (RM_POSTURE_GUARD);
    bool any = false, all = true;

    start (&bed, bed.group);
    for (unsigned i = 0; i < 2; i++)
        any |= compute (&bed, bed.channel, classes[i]) == 0 || bed.fake->decision != RM_REFUSED;
    tap_ok (!any && bed.fake->notes[RM_FORBIDDEN_CLASS] == 2 && bed.fake->mode == CILP,
            "there are none where the node does not say so");
    fake_close (bed.fake);

    bed = open_bed (RM_POSTURE_GUARD);
    rm_allow_graphics (bed.fake->rm);
    start (&bed, bed.group);
    tap_ok (bed.fake->mode == CILP, "a group that may draw stops at any instruction until it does");
    for (unsigned i = 0; i < 2; i++)
        all &= compute (&bed, bed.channel, classes[i]) == 0;
    tap_ok (all && bed.fake->mode == CTA, "and then at the end of a block");
    ask (&bed, bed.channel, NV2080_GR_PREEMPTION_FLAGS_CILP_SET, 0);
    tap_ok (bed.fake->mode == CTA && compute (&bed, bed.channel, HOPPER_COMPUTE_A) == 0 && bed.fake->mode == CTA,
            "whatever it asks for, and what computes in it too");
    tap_ok (fake_close (bed.fake), "nothing is left");

    bed = open_bed (RM_POSTURE_GUARD);
    rm_allow_graphics (bed.fake->rm);
    tap_ok (compute (&bed, bed.channel, HOPPER_A) == 0 && bed.fake->mode_calls == 0 && start (&bed, bed.group) == 0 &&
                bed.fake->mode == CTA && is_started (&bed),
            "one that draws before it starts has its mode when it does");
    tap_ok (fake_close (bed.fake), "nothing is left");

    bed = open_bed (RM_POSTURE_GUARD);
    rm_allow_graphics (bed.fake->rm);
    start (&bed, bed.group);
    bed.fake->no_mode = true;
    tap_ok (compute (&bed, bed.channel, HOPPER_A) != 0 && bed.fake->decision == RM_REFUSED,
            "where the driver takes no other mode it does not");
    tap_ok (fake_close (bed.fake), "nothing is left");

    /* made by a call that the kernel read otherwise */
    bed = open_bed (RM_POSTURE_GUARD);
    bed.fake->draws = true;
    tap_ok (start (&bed, bed.group) != 0 && !is_started (&bed), "a group with some that the ledger does not have does not start");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* Attack: a mode of graphics that was set before keeps the driver from setting the guard's (0x51). */
static void other_modes (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);
    uint32_t object = 0, params[4] = { 0 };

    ask (&bed, bed.channel, NV2080_GR_PREEMPTION_FLAGS_GFXP_SET | NV2080_GR_PREEMPTION_FLAGS_CILP_SET, 0);
    tap_ok (bed.fake->given[0] == NV2080_GR_PREEMPTION_FLAGS_CILP_SET && bed.fake->mode == CILP,
            "a mode of graphics is not set where there is none");
    fake_close (bed.fake);

    bed = open_bed (RM_POSTURE_GUARD);
    rm_allow_graphics (bed.fake->rm);
    ask (&bed, bed.channel, NV2080_GR_PREEMPTION_FLAGS_GFXP_SET, 0);
    tap_ok (bed.fake->given[0] == NV2080_GR_PREEMPTION_FLAGS_GFXP_SET, "where there is it is the program's");
    bed.fake->no_mode = true;
    tap_ok (start (&bed, bed.group) != 0 && !is_started (&bed), "a group that gets no mode does not start, whatever is in it");
    bed.fake->no_mode = false;
    bed.fake->draws = true;
    tap_ok (start (&bed, bed.group) == 0 && is_started (&bed) && bed.fake->mode == CTA,
            "one that draws, as the driver says, has the mode of those that do");
    tap_ok (fake_close (bed.fake), "nothing is left");

    /* an ALLOC of graphics that fails leaves the mode of graphics */
    bed = open_bed (RM_POSTURE_GUARD);
    rm_allow_graphics (bed.fake->rm);
    start (&bed, bed.group);
    object = bed.channel; /* a handle that is taken: the driver refuses it */
    tap_ok (fake_alloc (bed.fake, FILE_A, bed.client, bed.channel, &object, HOPPER_A, params, sizeof (params)) != 0 &&
                bed.fake->mode == CILP,
            "a group in which nothing that draws could be made stops at any instruction again");
    tap_ok (compute (&bed, bed.channel, HOPPER_A) == 0 && bed.fake->mode == CTA, "until something is");
    object = bed.channel;
    tap_ok (fake_alloc (bed.fake, FILE_A, bed.client, bed.channel, &object, HOPPER_A, params, sizeof (params)) != 0 &&
                bed.fake->mode == CTA,
            "which a further one that fails does not change");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* Attack: an object that computes, made in a running group by a call that the kernel read otherwise. */
static void raced (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);
    NV0080_ALLOC_PARAMETERS device = { 0 };
    uint32_t group = fake_group (bed.fake, FILE_A, bed.client, bed.device, 0);
    uint32_t channel = fake_channel (bed.fake, FILE_A, bed.client, group), handle = 0x5f000001, params[4] = { 0 };
    NVOS64_PARAMETERS seen = { .hRoot = bed.client,
                               .hObjectParent = bed.client,
                               .hObjectNew = handle + 1,
                               .hClass = NV01_DEVICE_0,
                               .pAllocParms = (NvP64) (uintptr_t) &device };
    NVOS64_PARAMETERS made = { .hRoot = bed.client, .hObjectParent = channel, .hObjectNew = handle, .hClass = HOPPER_COMPUTE_A };

    bed.fake->no_mode = true;
    start (&bed, group);
    fake_race (bed.fake, FILE_A, &seen, &device, sizeof (device), &made, NULL);
    tap_ok (fake_find (bed.fake, bed.client, handle) != NULL, "a raced call made it");
    fake_control (bed.fake, FILE_A, bed.client, handle, 0x00410110, params, sizeof (params));
    tap_ok (fake_find (bed.fake, bed.client, handle) == NULL && !rm_has_object (bed.fake->rm, bed.client, handle),
            "where its kernels would not stop it goes once it is found");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

int main (void)
{
    unasked ();
    asked ();
    refused ();
    waits ();
    waits_for_idle ();
    by_the_library ();
    graphics ();
    other_modes ();
    raced ();
    return tap_done ();
}
