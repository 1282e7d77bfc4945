/* Timeslices from weights: pure arithmetic. */
#ifndef NVC_SHIM_WEIGHT_H
#define NVC_SHIM_WEIGHT_H

#include <stdint.h>

#include "shim/share.h"

#define WEIGHT_DEFAULT 10u
#define TIMESLICE_SHORTEST_US 500u
#define TIMESLICE_LONGEST_US 65000u

/* What one compute group gets, in microseconds; 0: what libcuda asks for itself (2048, which is weight 10 alone).
 * lowered: the container's own, lower weight, 0 for none. groups: of the container on this GPU; 0 counts as 1. */
uint32_t weight_timeslice (uint32_t weight, uint32_t lowered, uint32_t priority, uint32_t groups);

#endif
