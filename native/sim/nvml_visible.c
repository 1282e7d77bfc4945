/*
 * The devices that a process sees.
 *
 * The real library lists the GPUs whose device node it can open, and the MIG devices whose two nvcaps it can open. The
 * same here, with access(2) in place of open(2): the kernel's inode_permission() asks the device cgroup as well
 * (security/device_cgroup.c, devcgroup_inode_permission), a "nodev" mount does not matter, and on a machine that has
 * real GPUs the real driver is not started.
 * Runs in the program's process, on the calling thread.
 */
#include "nvml_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONTROL_NODE "/dev/nvidiactl"

static nvmlReturn_t driver_reachable (struct nvml_state *state)
{
    const char *node = state->machine.control[0] != '\0' ? state->machine.control : CONTROL_NODE;

    if (!state->machine.nodes || access (node, R_OK | W_OK) == 0)
        return NVML_SUCCESS;
    snprintf (state->problem, sizeof (state->problem), "%s: %s", node, strerror (errno));
    switch (errno) {
    case ENOENT:
    case ENOTDIR:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case EACCES:
        return NVML_ERROR_NO_PERMISSION;
    default:
        /* EPERM: the device cgroup refused. The real library has no more specific error either. */
        return NVML_ERROR_UNKNOWN;
    }
}

static bool usable (const struct machine *machine, const char *path, int mode)
{
    return !machine->nodes || access (path, mode) == 0;
}

static void add_migs (struct nvml_state *state, struct nvmlDevice_st *parent)
{
    const struct machine_gpu *gpu = parent->gpu;

    parent->first_mig = &state->migs[state->mig_count];
    for (uint32_t i = 0; i < gpu->mig_count; i++) {
        const struct machine_mig *mig = &gpu->migs[i];
        if (!usable (&state->machine, mig->gi_access, R_OK) || !usable (&state->machine, mig->ci_access, R_OK))
            continue;
        state->migs[state->mig_count++] = (struct nvmlDevice_st) {
            .gpu = gpu, .mig = mig, .parent = parent, .index = parent->mig_count++
        };
    }
}

nvmlReturn_t nvml_find_devices (struct nvml_state *state)
{
    RETURN_IF_FAILED (driver_reachable (state));
    state->gpu_count = 0;
    state->mig_count = 0;
    for (uint32_t i = 0; i < state->machine.gpu_count; i++) {
        const struct machine_gpu *gpu = &state->machine.gpus[i];
        if (!usable (&state->machine, gpu->node, R_OK | W_OK))
            continue;
        struct nvmlDevice_st *device = &state->gpus[state->gpu_count];
        *device = (struct nvmlDevice_st) { .gpu = gpu, .index = state->gpu_count };
        state->gpu_count++;
        add_migs (state, device);
    }
    return NVML_SUCCESS;
}
