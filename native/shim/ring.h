/*
 * One cap for all processes of a container: pure arithmetic, as cap.h.
 *
 * Each process stops and starts its own channels, and the driver makes such calls one after the other (a lock for each
 * GPU): the last of n processes is stopped (n - 1) calls after the first, and the GPU is the container's until then.
 * So the calls have an order, that of the slots in the region, and each process a place in it: process i is started i
 * starts after the first, and stopped n - 1 - i stops before the last. The first start begins the container's time on
 * the GPU and the last stop ends it, and that time is the cap's part of the period. No call waits for another one.
 *
 * A process that computes alone beside n - 1 idle ones then has up to n - 1 stops less than the cap in each period. The
 * period grows with n, so that this is less than a hundredth of it.
 */
#ifndef NVC_SHIM_RING_H
#define NVC_SHIM_RING_H

#include "cap.h"

/* Of the period, for each process: 0.6 ms, which a stop takes on an H200, are less than a hundredth of it. */
#define RING_EACH_NS 62500000u
/* The period grows no more from so many processes on: 1 s. */
#define RING_MOST 16u
/* Of the time on the GPU, for each process: more than the 0.93 ms that a stop and a start take. */
#define RING_SHORTEST_NS 1500000u

/* The period that `count` processes keep a cap of `share` (1/1000) with; `period`: that of one alone. On a container's
 * GPUs all caps have the longest of them: a program that computes on two is then off on both at once. */
uint64_t ring_period (uint64_t period, uint32_t share, uint32_t count);
/* Before each cap_next: the process is number `rank` (from 0) of `count`. A cap that has begun (cap_begin); what
 * changed since the last time is taken up, and with one process it is what it was without this. */
void ring_place (struct cap *cap, uint64_t period, uint32_t share, uint32_t count, uint32_t rank, uint64_t now);

#endif
