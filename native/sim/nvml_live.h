/* Dynamic numbers of a GPU: from the simulated resource manager, by the calls of the real NVML. Implemented in
 * nvml_live.c. */
#ifndef NVC_SIM_NVML_LIVE_H
#define NVC_SIM_NVML_LIVE_H

#include "nvml_state.h"

struct nvml_live {
    uint64_t total, heap, free; /* bytes: all, without the driver's reservation, not in use */
};

#define NVML_LIVE_PROCESSES 950 /* the most that the driver returns in one call */
struct nvml_live_process {
    uint32_t pid;
    uint64_t bytes;
};

/* false: no manager serves the nodes, or it does not have the GPU. */
bool nvml_live_memory (const struct machine_gpu *gpu, struct nvml_live *live);
/* Nanoseconds: the simulated clock, and for how long of it the GPU computed. */
bool nvml_live_busy (const struct machine_gpu *gpu, uint64_t *now, uint64_t *busy);
/* Processes with compute channels on the GPU; at most NVML_LIVE_PROCESSES. */
bool nvml_live_processes (const struct machine_gpu *gpu, struct nvml_live_process *processes, unsigned int *count);
/* Part of the last second's time in which the compute engine had work, in percent. */
bool nvml_live_utilization (const struct machine_gpu *gpu, unsigned int *percent);

#endif
