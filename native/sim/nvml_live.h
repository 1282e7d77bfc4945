/* Numbers of a GPU that change: from the simulated resource manager, by the calls that the real NVML makes. */
#ifndef NVC_SIM_NVML_LIVE_H
#define NVC_SIM_NVML_LIVE_H

#include "nvml_state.h"

struct nvml_live {
    uint64_t total, heap, free; /* bytes: all, without what the driver keeps, not in use */
};

#define NVML_LIVE_PROCESSES 950 /* as many as the driver names in one answer */
struct nvml_live_process {
    uint32_t pid;
    uint64_t bytes;
};

/* false: there is no manager behind the nodes, or it does not know the GPU. */
bool nvml_live_memory (const struct machine_gpu *gpu, struct nvml_live *live);
/* Processes with compute channels on the GPU; at most NVML_LIVE_PROCESSES. */
bool nvml_live_processes (const struct machine_gpu *gpu, struct nvml_live_process *processes, unsigned int *count);

#endif
