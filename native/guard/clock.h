/* Time, in nanoseconds unless the name says another unit. */
#ifndef NVC_GUARD_CLOCK_H
#define NVC_GUARD_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t guard_now (void); /* CLOCK_MONOTONIC, ns */
static inline uint64_t guard_now_ms (void) { return guard_now () / 1000000u; }
/* So many ns from now, by that clock. */
struct timespec guard_time_in (uint64_t nanoseconds, clockid_t clock);

#endif
