/* The driver gets no policy of sharing that reaches beyond a guard's tenant (rm/policy.c). */
#include "rm/nv_params.h"
#include "rm_fake.h"
#include "tap.h"

#define VERSION "580.159.04"
#define FILE_A 1
#define FILE_B 2
#define REVOKE 1u
#define REQUIRE 2u
#define COMPOSE 4u
#define KERNEL_CLIENT 0xc1e00001u

enum { NONE, ALL, TOKEN, CLIENT, PID, PARTITION, GPU, FABRIC, UNKNOWN };

struct bed {
    struct fake *fake;
    uint32_t client, device, subdevice, memory, other, other_device, next;
};

static struct bed open_bed (enum rm_posture posture)
{
    struct bed bed = { .fake = fake_open (VERSION, posture), .next = 0xcaf00000 };
    uint64_t bytes = 4 * MIB;

    bed.client = fake_client (bed.fake, FILE_A);
    bed.device = fake_device (bed.fake, FILE_A, bed.client, 0);
    bed.other = fake_client (bed.fake, FILE_B);
    bed.other_device = fake_device (bed.fake, FILE_B, bed.other, 0);
    bed.subdevice = fake_subdevice (bed.fake, FILE_A, bed.client, bed.device);
    fake_subdevice (bed.fake, FILE_B, bed.other, bed.other_device);
    fake_memory (bed.fake, FILE_A, bed.client, bed.device, &bed.memory, &bytes);
    return bed;
}

static RS_SHARE_POLICY policy_of (uint16_t type, uint8_t action, uint32_t target)
{
    return (RS_SHARE_POLICY) { .target = target, .accessMask = 1, .type = type, .action = action };
}

/* Whether the driver got it; the caller is answered success. */
static bool is_told (struct bed *bed, uint32_t object, RS_SHARE_POLICY policy)
{
    NVOS57_PARAMETERS head = { .hClient = bed->client, .hObject = object, .sharePolicy = policy, .status = 0xff };
    unsigned before = bed->fake->shares;

    fake_call (bed->fake, RM_NODE_CONTROL, FILE_A, SHARE_REQUEST, &head, NULL, 0, NULL, 0);
    if (bed->fake->shares == before)
        return bed->fake->decision != RM_ANSWERED || head.status != 0;
    return true;
}

static bool is_inherited (struct bed *bed, RS_SHARE_POLICY policy)
{
    (void) fake_control (bed->fake, FILE_A, bed->client, bed->client, NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY, &policy,
                         sizeof (policy));
    return bed->fake->decision == RM_PERFORM;
}

/* Whether the other client is given the right for its duplicate of the memory, and the driver makes it. */
static bool is_given (struct bed *bed)
{
    uint32_t handle = bed->next++;
    unsigned before = bed->fake->shares;
    uint32_t status = fake_dup (bed->fake, FILE_B, bed->other, bed->other_device, &handle, bed->client, bed->memory);
    const NVOS57_PARAMETERS *last = &bed->fake->last_share;

    fake_free (bed->fake, FILE_B, bed->other, handle);
    return status == 0 && bed->fake->shares == before + 1 && last->hClient == bed->client && last->hObject == bed->memory &&
           last->sharePolicy.type == CLIENT && last->sharePolicy.target == bed->other && last->sharePolicy.accessMask == 1 &&
           last->sharePolicy.action == COMPOSE;
}

static void wide (void)
{
    static const uint16_t types[] = { ALL, TOKEN, PARTITION, GPU, FABRIC, UNKNOWN };
    struct bed bed = open_bed (RM_POSTURE_GUARD);
    bool any_told = false, all_given = true;

    tap_ok (!is_given (&bed), "what is not shared is for the driver to refuse");
    for (unsigned i = 0; i < sizeof (types) / sizeof (types[0]); i++) {
        any_told |= is_told (&bed, bed.memory, policy_of (types[i], 0, 0));
        all_given &= is_given (&bed);
        any_told |= !is_told (&bed, bed.memory, policy_of (PID, 0, 0));
        all_given &= !is_given (&bed);
    }
    tap_ok (!any_told, "the driver gets no policy that reaches beyond the tenant, and one for the process");
    tap_ok (all_given, "and a client of the tenant is given the right where it duplicates, until the policy is another one");
    tap_ok (!is_told (&bed, bed.memory, policy_of (CLIENT, 0, KERNEL_CLIENT)) &&
                !is_told (&bed, bed.memory, policy_of (CLIENT, COMPOSE, bed.other + 0x100)),
            "nor of one for a client that is not the tenant's, UVM's own for one");
    tap_ok (is_told (&bed, bed.memory, policy_of (CLIENT, 0, bed.other)) && !is_given (&bed), "for the tenant's own it is");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void composed (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);

    tap_ok (!is_told (&bed, bed.memory, policy_of (ALL, COMPOSE, 0)) && is_given (&bed), "beside others");
    tap_ok (is_told (&bed, bed.memory, policy_of (PID, COMPOSE, 0)) && is_given (&bed), "one beside it does not end it");
    tap_ok (is_told (&bed, bed.memory, policy_of (PID, COMPOSE | REVOKE, 0)) && is_given (&bed), "nor does the end of that one");
    tap_ok (is_told (&bed, bed.memory, policy_of (ALL, COMPOSE | REVOKE, 0)) && !is_given (&bed), "its own does");
    tap_ok (is_told (&bed, bed.memory, policy_of (ALL, REQUIRE, 0)) && !is_given (&bed), "what only restricts is the driver's");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void inherited (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);
    uint32_t size = 0;

    tap_ok (is_inherited (&bed, policy_of (PID, 0, 0)) && !is_given (&bed), "what a client's objects inherit: a process's own");
    tap_ok (!is_inherited (&bed, policy_of (ALL, 0, 0)) && bed.fake->decision == RM_ANSWERED && is_given (&bed),
            "for all is answered, and given");
    tap_ok (is_told (&bed, bed.device, policy_of (PID, 0, 0)) && !is_given (&bed), "the nearest policy counts");
    tap_ok (!is_told (&bed, bed.client, policy_of (ALL, 0, 0)) && is_told (&bed, bed.device, policy_of (ALL, REVOKE, 0)) &&
                !is_given (&bed),
            "of a client by SHARE too");
    (void) fake_control (bed.fake, FILE_A, bed.client, bed.client, NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY, &size,
                         sizeof (size));
    tap_ok (bed.fake->decision == RM_REFUSED, "params of another size are refused");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

static void in_shim (void)
{
    struct bed bed = open_bed (RM_POSTURE_SHIM);

    tap_ok (is_told (&bed, bed.memory, policy_of (ALL, 0, 0)) && !is_given (&bed), "the preloaded library changes nothing");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

/* Buffers of a channel of the client that the params name. */
static enum rm_verdict bound (struct bed *bed, uint32_t client)
{
    uint32_t params[6] = { client, 0x5c000003 };

    (void) fake_control (bed->fake, FILE_A, bed->client, bed->client, NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND, params, sizeof (params));
    return bed->fake->decision;
}

static bool is_debugged (struct bed *bed, uint32_t client)
{
    NV83DE_ALLOC_PARAMETERS params = { 0, client, 1 };
    uint32_t handle = 0;

    return fake_alloc (bed->fake, FILE_A, bed->client, bed->subdevice, &handle, 0x83de, &params, sizeof (params)) == 0;
}

static void named (void)
{
    struct bed bed = open_bed (RM_POSTURE_GUARD);

    tap_ok (bound (&bed, bed.client) == RM_PERFORM || bed.fake->decision == RM_PASS, "a client that params name is the caller's");
    tap_ok (bound (&bed, bed.other) == RM_REFUSED && !is_debugged (&bed, bed.other),
            "another client of the tenant is refused while its file is not held: the handle can be another container's");
    rm_client_held (bed.fake->rm, bed.other, true);
    tap_ok (is_debugged (&bed, bed.other) && bound (&bed, bed.other) != RM_REFUSED && bound (&bed, 0) != RM_REFUSED,
            "where it is held it is the tenant's; or none is named");
    tap_ok (bound (&bed, KERNEL_CLIENT) == RM_REFUSED && bed.fake->notes[RM_FORBIDDEN_CONTROL] == 2,
            "another container's is refused");
    tap_ok (fake_close (bed.fake), "nothing is left");
}

int main (void)
{
    wide ();
    composed ();
    inherited ();
    named ();
    in_shim ();
    return tap_done ();
}
