/* Managed memory: ranges of shared mappings, and the GPUs registered with UVM. */
#include "rm/managed.h"
#include "rm/uvm_ioctl.h"
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

#define UVM_A 11
#define UVM_B 12
#define BASE ((uint64_t) 0x7f0000000000)

static struct fake *fake;

static void uvm (uint64_t file, uint32_t request, int gpu, uint32_t status)
{
    uint8_t params[64] = { 0 };
    UVM_REGISTER_GPU_PARAMS *on = (void *) params;
    UVM_UNREGISTER_GPU_PARAMS *off = (void *) params;

    memcpy (params, fake_uuid[gpu], 16);
    if (request == UVM_REGISTER_GPU)
        on->rmStatus = status;
    else
        off->rmStatus = status;
    fake_call (fake, RM_NODE_UVM, file, request, params, NULL, 0, NULL, 0);
}

static bool charged (uint64_t first, uint64_t second)
{
    return fake_charged (fake, 0) == first * MIB && fake_charged (fake, 1) == second * MIB;
}

static void ranges (void)
{
    fake->limit[0] = 100 * MIB;
    tap_ok (!rm_has_managed (fake->rm) && rm_map_managed (fake->rm, 0, BASE, 64 * MIB) && charged (64, 0) &&
                rm_has_managed (fake->rm),
            "a mapping is charged by its length");
    tap_ok (!rm_map_managed (fake->rm, 0, BASE + 64 * MIB, 37 * MIB) && charged (64, 0), "and refused over the quota");
    rm_unmap (fake->rm, BASE + 10 * MIB, 4 * MIB);
    tap_ok (charged (60, 0), "a hole in the middle gives its length back");
    rm_unmap (fake->rm, BASE - MIB, 3 * MIB);
    tap_ok (charged (58, 0), "so does a piece off the start");
    rm_unmap (fake->rm, BASE + 60 * MIB, 100 * MIB);
    tap_ok (charged (54, 0), "and one off the end");
    rm_unmap (fake->rm, BASE + 10 * MIB, 4 * MIB);
    tap_ok (charged (54, 0), "what is not mapped gives nothing back");
    tap_ok (rm_map_managed (fake->rm, 0, BASE + 12 * MIB, 8 * MIB) && charged (56, 0),
            "a mapping over another takes its place: 6 of 8 were charged before");
    rm_unmap (fake->rm, 0, UINT64_MAX);
    tap_ok (charged (0, 0) && !rm_has_managed (fake->rm), "an unmap of everything ends every charge");
    tap_ok (rm_map_managed (fake->rm, 0, BASE, 0) && !rm_map_managed (fake->rm, 0, UINT64_MAX - MIB, 2 * MIB) &&
                !rm_map_managed (fake->rm, 99, BASE, MIB) && charged (0, 0),
            "lengths of 0, and addresses that wrap, charge nothing");
    for (uint64_t i = 0; i < 50; i++)
        rm_map_managed (fake->rm, 0, BASE + (i * 37 % 50) * 2 * MIB, MIB);
    tap_ok (charged (50, 0), "ranges come in any order");
    rm_unmap (fake->rm, BASE + 10 * MIB, 20 * MIB);
    tap_ok (charged (40, 0), "an unmap over many ends them all");
    rm_unmap (fake->rm, 0, UINT64_MAX);
}

/* A mapping in two steps, over one that is there. */
static void steps (void)
{
    struct rm_mapping mapping, other;

    fake->limit[0] = 100 * MIB;
    rm_map_managed (fake->rm, 0, BASE, 80 * MIB);
    tap_ok (rm_mapping_begin (fake->rm, 0, BASE + 40 * MIB, 60 * MIB, &mapping) && charged (100, 0),
            "a mapping over another needs room only for what is new");
    rm_mapping_refused (fake->rm, &mapping);
    tap_ok (charged (80, 0) && rm_managed_from (fake->rm, BASE + 40 * MIB, 60 * MIB) == BASE + 40 * MIB,
            "where it is not made, the other one stays charged");
    tap_ok (!rm_mapping_begin (fake->rm, 0, BASE + 40 * MIB, 61 * MIB, &mapping) && charged (80, 0),
            "also when it is over the quota");
    tap_ok (rm_mapping_begin (fake->rm, 0, BASE + 40 * MIB, 60 * MIB, &mapping) &&
                !rm_mapping_begin (fake->rm, 0, BASE + 200 * MIB, MIB, &other),
            "what a mapping needs is taken before it is made");
    rm_mapping_made (fake->rm, &mapping, BASE + 40 * MIB);
    tap_ok (charged (100, 0), "and is its charge afterwards");
    rm_unmap (fake->rm, BASE + 40 * MIB, 60 * MIB);
    tap_ok (charged (40, 0), "which ends with it");
    tap_ok (rm_mapping_begin (fake->rm, 0, BASE, 40 * MIB, &mapping) && charged (40, 0), "what has its place needs nothing");
    rm_unmap (fake->rm, BASE, 10 * MIB);
    rm_mapping_made (fake->rm, &mapping, BASE);
    tap_ok (charged (40, 0), "what was unmapped there meanwhile is charged again");
    rm_mapping_begin (fake->rm, 0, BASE + 8 * MIB, 8 * MIB, &mapping);
    rm_mapping_made (fake->rm, &mapping, BASE + 8 * MIB);
    tap_ok (charged (40, 0), "a piece of it is part of it");
    tap_ok (rm_mapping_begin (fake->rm, 0, BASE + 50 * MIB, 8 * MIB, &mapping) && charged (48, 0), "one elsewhere");
    rm_mapping_made (fake->rm, &mapping, BASE);
    tap_ok (charged (40, 0), "that is made here, is not");
    tap_ok (rm_managed_from (fake->rm, BASE - MIB, 2 * MIB) == BASE &&
                rm_managed_from (fake->rm, BASE + 40 * MIB, MIB) == UINT64_MAX &&
                rm_managed_from (fake->rm, BASE - MIB, MIB) == UINT64_MAX,
            "what is charged is found");
    rm_unmap (fake->rm, 0, UINT64_MAX);
    tap_ok (charged (0, 0), "nothing is left");
}

static void registration (void)
{
    fake->limit[0] = 0;
    fake->limit[1] = 20 * MIB;
    uvm (UVM_A, UVM_REGISTER_GPU, 0, 0);
    uvm (UVM_A, UVM_REGISTER_GPU, 1, NV_ERR_INVALID_ARGUMENT);
    tap_ok (rm_map_managed (fake->rm, RM_NO_GPU, BASE, 16 * MIB) && charged (16, 0),
            "a mapping for every GPU is charged to those registered with UVM, not to one that UVM refused");
    uvm (UVM_B, UVM_REGISTER_GPU, 1, 0);
    tap_ok (charged (16, 16), "a GPU registered later is charged for what is mapped already");
    tap_ok (!rm_map_managed (fake->rm, RM_NO_GPU, BASE + 32 * MIB, 5 * MIB) && charged (16, 16),
            "over one GPU's quota nothing is charged to the others");
    uvm (UVM_A, UVM_REGISTER_GPU, 1, 0);
    uvm (UVM_B, UVM_UNREGISTER_GPU, 1, 0);
    tap_ok (charged (16, 16), "a GPU that another file still has registered stays charged");
    uvm (UVM_A, UVM_UNREGISTER_GPU, 1, NV_ERR_INVALID_ARGUMENT);
    tap_ok (charged (16, 16), "a refused UNREGISTER changes nothing");
    uvm (UVM_A, UVM_UNREGISTER_GPU, 1, 0);
    tap_ok (charged (16, 0), "UNREGISTER of the last ends the charge");
    uvm (UVM_A, UVM_REGISTER_GPU, 2, 0);
    tap_ok (charged (16, 0), "a GPU that the share does not name is not charged");
    {
        struct rm_mapping mapping;

        rm_mapping_begin (fake->rm, RM_NO_GPU, BASE + 64 * MIB, 2 * MIB, &mapping);
        uvm (UVM_A, UVM_REGISTER_GPU, 1, 0);
        rm_mapping_made (fake->rm, &mapping, BASE + 64 * MIB);
        tap_ok (charged (18, 18), "a GPU registered while a mapping was made is charged for it");
        uvm (UVM_A, UVM_UNREGISTER_GPU, 1, 0);
        rm_unmap (fake->rm, BASE + 64 * MIB, 2 * MIB);
        tap_ok (charged (16, 0), "and no more when it is unmapped");
    }
    rm_close_file (fake->rm, UVM_A);
    tap_ok (charged (0, 0), "so does the last close of the file");
    uvm (UVM_A, UVM_REGISTER_GPU, 0, 0);
    tap_ok (charged (16, 0), "and mappings that are still there are charged to the GPU that is registered again");
}

int main (void)
{
    fake = fake_open ("580.159.04", RM_POSTURE_SHIM);
    ranges ();
    steps ();
    registration ();
    tap_ok (fake_close (fake), "managed memory is refunded at the end too");
    return tap_done ();
}
