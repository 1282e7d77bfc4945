/*
 * One cap for all processes of a container: pure arithmetic, as cap.h. Implemented in ring.c.
 *
 * Each process freezes and thaws its own channels, and the driver serializes these calls (a lock for each GPU): the
 * last of n processes is frozen n - 1 calls after the first, and until then the container computes. Therefore the calls
 * have an order, that of the slots in the region, and each process a rank in it: process i is thawed i thaws after the
 * first, and frozen n - 1 - i freezes before the last. The first thaw begins the container's time on the GPU and the
 * last freeze ends it, and that time is the cap's part of the period. No call waits for another one.
 *
 * A process that computes beside n - 1 idle ones then has up to n - 1 freezes less than the cap in each period. The
 * period grows with n, so that this is less than a hundredth of it.
 */
#ifndef NVC_SHIM_RING_H
#define NVC_SHIM_RING_H

#include "cap.h"

/* Length of the period for each process: a freeze takes 0.6 ms on an H200, less than a hundredth of it. */
#define RING_EACH_NS 62500000u
/* The period does not grow beyond that of this many processes: 1 s. */
#define RING_MAX_PROCESSES 16u
/* Least time on the GPU for each process: more than the 0.93 ms of a freeze and a thaw. */
#define RING_SHORTEST_NS 1500000u

/* The period for `count` processes under a cap of `share` (1/1000); `period`: that of a single process. All GPUs of a
 * container use the longest of their periods, so that a program that computes on two is off on both at once. */
uint64_t ring_period (uint64_t period, uint32_t share, uint32_t count);
/* Before each cap_next: updates a cap (after cap_begin) for the process's `rank` (from 0) among `count`, and for a
 * changed period or share. With one process the cap is as without this. */
void ring_place (struct cap *cap, uint64_t period, uint32_t share, uint32_t count, uint32_t rank, uint64_t now);

#endif
