/* Time, in nanoseconds. */
#ifndef NVC_GUARD_CLOCK_H
#define NVC_GUARD_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t guard_now (void); /* CLOCK_MONOTONIC, ns */
/* So many ns from now, by that clock. */
struct timespec guard_time_in (uint64_t nanoseconds, clockid_t clock);

#endif
