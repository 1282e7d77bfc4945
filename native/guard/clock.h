/* Time, in nanoseconds unless the name says another unit. */
#ifndef NVC_GUARD_CLOCK_H
#define NVC_GUARD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns (clockid_t clock)
{
    struct timespec now;

    clock_gettime (clock, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

uint64_t guard_now (void); /* CLOCK_MONOTONIC */
static inline uint64_t guard_now_ms (void) { return guard_now () / 1000000u; }
/* So many ns from now, by that clock. */
struct timespec guard_time_in (uint64_t nanoseconds, clockid_t clock);

#endif
