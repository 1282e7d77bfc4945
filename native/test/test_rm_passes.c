/* Which calls a user that lets unknown things pass need not ask rm about:
 * never one that rm would have said a word about. */
#include "rm_fake.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof (array) / sizeof ((array)[0]))
#define HANDLE 0xc1d00001u

static const char *const versions[] = { "535.104.05", "545.29.06",  "550.54.14", "560.28.03",
                                        "570.86.15",  "580.159.04", "590.44.01", "595.45.04" };
static uint8_t params[16384];

static unsigned noted (const struct fake *fake)
{
    unsigned sum = 0;

    for (int reason = 0; reason < RM_REASONS; reason++)
        sum += fake->notes[reason];
    return sum;
}

static bool is_interesting (const struct rm_abi *abi, uint32_t request)
{
    return rm_is_interesting (abi, RM_NODE_CONTROL, request) || rm_is_interesting (abi, RM_NODE_GPU, request) ||
           rm_is_interesting (abi, RM_NODE_UVM, request);
}

/* By the request alone. Those of UVM are whole numbers. */
static void requests (const struct rm_abi *abi, unsigned *wrong, unsigned *passed)
{
    for (uint32_t low = 0; low < 256; low++)
        for (uint32_t size = 0; size < 4096; size++) {
            uint32_t request = size == 0 ? low : REQUEST (low, size);
            bool passes = rm_shim_passes (abi, request, NULL);

            *passed += passes;
            *wrong += passes == is_interesting (abi, request);
        }
}

/* What rm_begin says of the control, with its params and without them: is it nothing at all? */
static bool is_nothing (struct fake *fake, enum rm_node node, uint32_t number)
{
    bool is_silent = true;

    for (int with = 0; with < 2; with++) {
        NVOS54_PARAMETERS head = fake_control_head (HANDLE, HANDLE, number, with ? params : NULL, with ? sizeof (params) : 0);
        const NVOS54_PARAMETERS before = head;
        unsigned notes = noted (fake), changed = fake->changed[0] + fake->changed[1];
        struct rm_call call = { .node = node, .file = 1, .request = CONTROL_REQUEST, .head = &head, .head_size = sizeof (head) };
        enum rm_verdict decision;

        call.params = with ? params : NULL;
        call.params_size = with ? sizeof (params) : 0;
        decision = rm_begin (fake->rm, &call);
        is_silent = is_silent && decision == RM_PASS && noted (fake) == notes && memcmp (&before, &head, sizeof (head)) == 0 &&
                    fake->changed[0] + fake->changed[1] == changed;
        if (decision == RM_CONTINUE || decision == RM_PERFORM)
            rm_forget_call (fake->rm, &call);
    }
    return is_silent;
}

static void one_control (struct fake *fake, const struct rm_abi *abi, uint32_t number, unsigned *wrong, unsigned *passed)
{
    NVOS54_PARAMETERS head = fake_control_head (HANDLE, HANDLE, number, NULL, 0);
    bool passes = rm_shim_passes (abi, CONTROL_REQUEST, &head);

    *passed += passes;
    for (int node = RM_NODE_CONTROL; node <= RM_NODE_GPU; node++)
        if (passes != is_nothing (fake, (enum rm_node) node, number)) {
            printf ("# control %08x, branch %u\n", number, abi->branch);
            ++*wrong;
        }
    *wrong += rm_shim_passes (abi, REQUEST (NV_ESC_RM_CONTROL, 40), &head) || rm_shim_passes (abi, CONTROL_REQUEST, NULL);
}

int main (void)
{
    unsigned wrong = 0, passed = 0, wrong_controls = 0, passed_controls = 0;

    for (size_t i = 0; i < COUNT (versions); i++) {
        struct fake *fake = fake_open (versions[i], RM_POSTURE_SHIM);
        const struct rm_abi *abi = rm_abi_find (versions[i]);

        fake->slice[0] = fake->slice[1] = 1000;
        fake_client (fake, 1);
        requests (abi, &wrong, &passed);
        for (unsigned row = 0; row < rm_abi_535.control_count; row++)
            for (uint32_t beside = 0; beside < 3; beside++)
                one_control (fake, abi, rm_abi_535.controls[row].number - 1 + beside, &wrong_controls, &passed_controls);
        one_control (fake, abi, 0x20808001, &wrong_controls, &passed_controls); /* of the old kind */
        one_control (fake, abi, UINT32_MAX, &wrong_controls, &passed_controls);
        rm_destroy (fake->rm);
        free (fake);
    }
    tap_ok (wrong == 0 && passed > 100000, "requests pass unasked when rm has no use for them on any node");
    tap_ok (wrong_controls == 0, "controls do when rm would have done nothing, counted nothing and logged nothing");
    tap_ok (passed_controls > 1000 && passed_controls < COUNT (versions) * 3 * rm_abi_535.control_count,
            "which most do, and not all");
    return tap_done ();
}
