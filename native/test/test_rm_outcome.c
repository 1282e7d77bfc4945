/* A group in which a continued call may have made a channel is not started (rm/outcome.c). */
#include "rm/state.h"
#include "rm_fake.h"
#include "tap.h"

#define VERSION "580.159.04"
#define FILE_A 1
#define HANDLE 0xd0d00000u
#define COMPUTE 1u

struct bed {
    struct fake *fake;
    uint32_t client, device, next;
};

static struct bed open_bed (void)
{
    struct bed bed = { .fake = fake_open (VERSION, RM_POSTURE_GUARD), .next = HANDLE };

    bed.client = fake_client (bed.fake, FILE_A);
    bed.device = fake_device (bed.fake, FILE_A, bed.client, 0);
    fake_subdevice (bed.fake, FILE_A, bed.client, bed.device);
    return bed;
}

static NVOS64_PARAMETERS device_call (const struct bed *bed, uint32_t handle, const void *params)
{
    return (NVOS64_PARAMETERS) { .hRoot = bed->client,
                                 .hObjectParent = bed->client,
                                 .hObjectNew = handle,
                                 .hClass = NV01_DEVICE_0,
                                 .pAllocParms = (NvP64) (uintptr_t) params };
}

/* An ALLOC of a device that is continued; its outcome's number. made: the kernel makes it, too. */
static uint64_t continued_by (struct bed *bed, uint64_t file, uint32_t handle, bool is_made)
{
    NV0080_ALLOC_PARAMETERS params = { 0 };
    NVOS64_PARAMETERS head = device_call (bed, handle, &params);
    struct rm_call call = { .node = RM_NODE_CONTROL,
                            .file = file,
                            .request = ALLOC_REQUEST,
                            .head = &head,
                            .head_size = sizeof (head),
                            .params = &params,
                            .params_size = sizeof (params) };

    if (rm_begin (bed->fake->rm, &call) != RM_CONTINUE)
        return 0;
    if (is_made)
        fake_driver (bed->fake, file, ALLOC_REQUEST, &head, &params, NULL);
    rm_forget_call (bed->fake->rm, &call);
    return call.own.outcome;
}

static uint64_t continued (struct bed *bed, uint32_t handle, bool is_made) { return continued_by (bed, FILE_A, handle, is_made); }

static enum rm_start may_start (const struct bed *bed, uint32_t object, uint32_t number)
{
    uint8_t params[3] = { 1 };
    NVOS54_PARAMETERS head = fake_control_head (bed->client, object, number, params, sizeof (params));
    struct rm_call call = { .node = RM_NODE_CONTROL, .file = FILE_A, .request = CONTROL_REQUEST, .head = &head };

    return rm_start_of (bed->fake->rm, &call);
}

static bool starts (const struct bed *bed, uint32_t group)
{
    uint8_t params[3] = { 1 };
    enum rm_start said = may_start (bed, group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE);
    uint32_t status = fake_control (bed->fake, FILE_A, bed->client, group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params,
                                    sizeof (params));

    return status == 0 && said == RM_START_NOW && bed->fake->decision == RM_PERFORM;
}

static uint32_t group_of (const struct bed *bed)
{
    uint32_t group = fake_group (bed->fake, FILE_A, bed->client, bed->device, COMPUTE);

    fake_channel (bed->fake, FILE_A, bed->client, group);
    return group;
}

static void in_flight (void)
{
    struct bed bed = open_bed ();
    uint32_t group = group_of (&bed), channel = fake_channel (bed.fake, FILE_A, bed.client, group), late;
    uint64_t outcome;

    tap_ok (starts (&bed, group), "a group is started where all calls showed what they made");
    outcome = continued (&bed, HANDLE, false);
    tap_ok (!starts (&bed, group) && bed.fake->decision == RM_REFUSED && bed.fake->notes[RM_UNKNOWN_OUTCOME] == 1,
            "not while a continued call is in flight, and that is noted");
    tap_ok (may_start (&bed, group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE) == RM_START_LATER &&
                may_start (&bed, channel, NVA06F_CTRL_CMD_GPFIFO_SCHEDULE) == RM_START_LATER,
            "it may be later, and so may each of its channels");
    tap_ok (may_start (&bed, group, NVA06C_CTRL_CMD_GET_TIMESLICE) == RM_START_NOW, "other controls have nothing to wait for");
    late = group_of (&bed);
    tap_ok (!starts (&bed, late), "nor is one that was made meanwhile");
    rm_outcome_over (bed.fake->rm, outcome);
    tap_ok (!starts (&bed, group) && !starts (&bed, late), "when the call is over and nothing of it is found, neither is");
    tap_ok (starts (&bed, group_of (&bed)), "a group that is made afterwards is");
    rm_forget_unconfirmed (bed.fake->rm);
    tap_ok (starts (&bed, group), "and all of them when no process is left that could have made the call");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void found (void)
{
    struct bed bed = open_bed ();
    uint32_t group = group_of (&bed);
    uint64_t first, second;

    (void) continued (&bed, HANDLE, true);
    tap_ok (starts (&bed, group), "a call whose object is found is no doubt, be it in flight or not");
    first = continued (&bed, HANDLE + 1, false);
    rm_outcome_none (bed.fake->rm, first);
    tap_ok (starts (&bed, group), "nor one that the kernel did not make");

    first = continued (&bed, HANDLE + 2, false);
    second = continued (&bed, HANDLE + 3, false);
    rm_outcome_over (bed.fake->rm, first);
    group = group_of (&bed);
    /* What the second was to make is there: it, or the first, made that. */
    fake_make (bed.fake, FILE_A, bed.client, bed.client, &(uint32_t) { HANDLE + 3 }, NV01_DEVICE_0,
               &(NV0080_ALLOC_PARAMETERS) { 0 }, NULL);
    fake_subdevice (bed.fake, FILE_A, bed.client, HANDLE + 3);
    tap_ok (rm_has_object (bed.fake->rm, bed.client, HANDLE + 3) && !starts (&bed, group),
            "one of two calls that were in flight together is: each can have made what the other was said to");
    rm_outcome_over (bed.fake->rm, second);
    tap_ok (!starts (&bed, group) && starts (&bed, group_of (&bed)), "until both are over");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* The client's process makes no other call. */
static void of_another_client (void)
{
    struct bed bed = open_bed (), other = bed;
    uint32_t group;
    uint64_t made, none;

    other.client = fake_client (bed.fake, FILE_A + 1);
    other.device = fake_device (bed.fake, FILE_A + 1, other.client, 0);
    made = continued_by (&other, FILE_A + 1, HANDLE, true);
    group = group_of (&bed);
    tap_ok (made != 0 && !starts (&bed, group), "a call on another client that is in flight is a doubt");
    rm_outcome_over (bed.fake->rm, made);
    tap_ok (starts (&bed, group), "when it is over, what it made is asked about, and there is none");
    none = continued_by (&other, FILE_A + 1, HANDLE + 1, false);
    rm_outcome_over (bed.fake->rm, none);
    tap_ok (!starts (&bed, group), "one of which nothing is found stays one");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* The driver makes a channel that has no group one of its own. */
static void of_the_driver (void)
{
    struct bed bed = open_bed ();
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS params = { .engineType = COMPUTE };
    uint32_t group = group_of (&bed), own = HANDLE + 1, device = HANDLE;
    uint64_t outcome = continued (&bed, device, false), before = rm_unconfirmed (bed.fake->rm);

    fake_make (bed.fake, FILE_A, bed.client, bed.device, &own, KEPLER_CHANNEL_GROUP_A, &params, NULL);
    tap_ok (!starts (&bed, own) && rm_has_object (bed.fake->rm, bed.client, own), "a group that no call was said to make is found");
    tap_ok (before == 1 && rm_unconfirmed (bed.fake->rm) == 0, "its context is charged, and none for the call in flight");
    fake_make (bed.fake, FILE_A, bed.client, bed.client, &device, NV01_DEVICE_0, &(NV0080_ALLOC_PARAMETERS) { 0 }, NULL);
    rm_outcome_over (bed.fake->rm, outcome);
    tap_ok (starts (&bed, group), "what the call makes later is asked about all the same");
    (void) continued (&bed, HANDLE + 2, false);
    tap_ok (rm_unconfirmed (bed.fake->rm) == 1, "and the group is counted for no later call");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void lost (void)
{
    struct bed bed = open_bed ();
    uint32_t group = group_of (&bed);
    unsigned made = 0;

    for (unsigned i = 0; i < 3 * NAMED_MAX; i++) {
        uint64_t outcome = continued (&bed, HANDLE + i, false);

        made += outcome != 0;
        rm_outcome_over (bed.fake->rm, outcome);
    }
    tap_ok (made == 3 * NAMED_MAX && may_start (&bed, group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE) == RM_START_NEVER &&
                !starts (&bed, group),
            "more calls than there are records of leave the doubt, and nothing to wait for");
    tap_ok (starts (&bed, group_of (&bed)), "a later group is started");
    for (unsigned i = 0; i <= NAMED_MAX; i++)
        (void) continued (&bed, HANDLE + 4 * NAMED_MAX + i, false);
    tap_ok (!starts (&bed, group_of (&bed)), "none is where a call in flight has no record");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* An ALLOC of a client, on a file that two processes have. */
static uint32_t client_by (const struct bed *bed, uint64_t file)
{
    NVOS64_PARAMETERS head = { .hClass = NV01_ROOT_CLIENT };
    struct rm_call call = {
        .node = RM_NODE_CONTROL, .file = file, .request = ALLOC_REQUEST, .head = &head, .head_size = sizeof (head)
    };

    if (rm_begin (bed->fake->rm, &call) != RM_CONTINUE)
        return 0;
    fake_driver (bed->fake, FILE_A, ALLOC_REQUEST, &head, NULL, NULL);
    rm_forget_call (bed->fake->rm, &call);
    rm_outcome_over (bed->fake->rm, call.own.outcome);
    return head.hObjectNew;
}

static void uses (const struct bed *bed, uint64_t file, uint32_t client)
{
    struct rm_call call = { .node = RM_NODE_CONTROL, .file = file };

    tap_ok (evidence_client (bed->fake->rm, &call, file, client), "a client is known by the first call on it");
}

/* The driver reports for the process that made it. */
static void exchanged (void)
{
    struct bed bed = open_bed ();
    struct rm *rm = bed.fake->rm;
    uint32_t first = client_by (&bed, FILE_A), second, later;

    tap_ok (rm_expects_client (rm, FILE_A), "a process may have a client that is not known yet");
    uses (&bed, FILE_A, first);
    tap_ok (!rm_expects_client (rm, FILE_A), "it has that one");
    first = client_by (&bed, FILE_A);
    second = client_by (&bed, FILE_A + 1);
    uses (&bed, FILE_A, second);
    tap_ok (rm_expects_client (rm, FILE_A), "of two that were made at a time each may be the other process's");
    fake_free (bed.fake, FILE_A, second, second);
    tap_ok (rm_expects_client (rm, FILE_A), "also when one is gone before the other is known");
    uses (&bed, FILE_A + 1, first);
    tap_ok (rm_expects_client (rm, FILE_A) && rm_expects_client (rm, FILE_A + 1), "and as long as it is there");
    later = client_by (&bed, FILE_A + 2);
    uses (&bed, FILE_A + 2, later);
    tap_ok (!rm_expects_client (rm, FILE_A + 2), "a process that came later made neither");
    fake_free (bed.fake, FILE_A, first, first);
    tap_ok (!rm_expects_client (rm, FILE_A) && !rm_expects_client (rm, FILE_A + 1), "and no longer");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

int main (void)
{
    exchanged ();
    in_flight ();
    found ();
    of_another_client ();
    of_the_driver ();
    lost ();
    return tap_done ();
}
