/* Timeslices from weights: pure arithmetic. Implemented in weight.c. */
#ifndef NVC_SHIM_WEIGHT_H
#define NVC_SHIM_WEIGHT_H

#include <stdint.h>

#include "shim/share.h"

#define WEIGHT_DEFAULT 10u
#define TIMESLICE_SHORTEST_US 500u
#define TIMESLICE_LONGEST_US 65000u

/* The timeslice of one compute group in microseconds; 0: libcuda's own (2048, that of weight 10 with one group).
 * lowered: a lower weight set by the container itself, 0: none. groups: of the container on this GPU; 0 counts as 1. */
uint32_t weight_timeslice (uint32_t weight, uint32_t lowered, uint32_t priority, uint32_t groups);

#endif
