/*
 * The node's usage page: one file, written by the node's prober (supervisor/prober.c) alone. Supervisors have it open for reading, and the
 * agent reads it (nvc/guard/usage.py; a test compares sizes and offsets).
 *
 * First which tenants called the driver last (struct guard_contention, fair.c); then, in two copies and the index of the valid one, what the
 * driver reports of each process that has an object on a GPU: memory, and time (supervisor/prober_time.c, prober_trace.c).
 * Pids are the host's. All fields are native-endian and naturally aligned.
 */
#ifndef NVC_GUARD_USAGE_PAGE_H
#define NVC_GUARD_USAGE_PAGE_H

#include "driver_usage.h"
#include "guard.h"

#include <stdbool.h>
#include <stdint.h>

#define USAGE_MAGIC 0x554c564eu /* "NVLU" */
#define USAGE_VERSION 3u
/* Processes, once for each GPU. Of one that has no place there, its supervisor asks the driver itself. */
#define USAGE_ROWS 8192u
/* An answer so old is none: the prober asks twice a second, unless the driver keeps it waiting. */
#define USAGE_FRESH_NS UINT64_C (5000000000)

struct usage_row {
    uint32_t pid, spare;
    uint64_t own, duplicated; /* bytes, struct process_usage */
    uint64_t busy_ns;         /* of the GPU's busy_ns: while a sample found this process on the engine */
    uint64_t traced_ns;       /* of the GPU's traced_ns: while a context of this process was on the engine, busy or not */
};

struct usage_gpu {
    uint8_t uuid[16];
    uint64_t asked_ns;    /* CLOCK_MONOTONIC, before the question; 0: the driver did not answer */
    uint64_t used, total; /* bytes of its heap, of whichever owner */
    uint64_t idle;        /* `used` beyond all reported memory, when the prober first asked */
    uint64_t sampled_ns,
        busy_ns; /* since the prober's start: time of which there are samples, and of it that in which it computed */
    uint64_t traced_ns, untraced_ns; /* by its clock, since its first context switch; of it, of which nothing is known */
    uint32_t first, count;           /* its rows */
};

struct usage_head {
    uint64_t sequence;  /* goes up with each writing; written first */
    uint64_t questions; /* GET_PID_INFO since the prober's start */
    uint32_t gpu_count, row_count;
    struct usage_gpu gpus[SHARE_MAX_GPUS];
};

struct usage {
    struct usage_head head;
    struct usage_row rows[USAGE_ROWS];
};

struct usage_page {
    struct guard_contention contention;
    uint32_t magic, version;
    uint32_t index; /* of the valid copy */
    uint32_t prober; /* its pid */
    struct usage copies[2];
};

struct process;
struct tenant;

/* What the page says of the process on each of the tenant's GPUs, into process->driver_usage; what the driver said to this tenant later stays.
 * false: it does not say. Under the tenant's lock. */
bool usage_page_take (struct tenant *tenant, struct process *process, uint64_t now);

#endif
