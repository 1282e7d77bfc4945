/* The guard's clock: alone in its file, so that a test can have another one. */
#include "clock.h"

uint64_t guard_now (void) { return clock_ns (CLOCK_MONOTONIC); }
