/*
 * The two files of a tenant by which its supervisor and the agent speak, without waiting for each other.
 *
 * plan:     written by the agent (root, mode 0600), open for reading in the supervisor. It stays in force without an agent.
 * counters: a memfd that is sealed against SHRINK, GROW and SEAL; written by the supervisor. The agent reads it with
 *           pread(2) and checks all that it finds: the supervisor handles what a hostile container says.
 *
 * Each holds two copies of its content and the index of the valid one: a writer that is killed leaves the other copy
 * valid, where a sequence lock would stay odd. nvc/guard/pages.py is the Python side; a test compares sizes and offsets.
 * All fields are native-endian, of fixed width, naturally aligned.
 */
#ifndef NVC_SUPERVISOR_PAGES_H
#define NVC_SUPERVISOR_PAGES_H

#include "guard/guard.h"
#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>

#define PLAN_MAGIC 0x504c564eu     /* "NVLP" */
#define COUNTERS_MAGIC 0x434c564eu /* "NVLC" */
#ifndef PAGES_VERSION /* a test has programs of another one */
#define PAGES_VERSION 1u
#endif

struct plan {
    uint64_t generation; /* goes up with each change */
    struct limits limits;
    uint32_t slice[SHARE_MAX_GPUS]; /* microseconds; 0: libcuda's own */
    uint32_t is_frozen[SHARE_MAX_GPUS];
    struct guard_phase phases[SHARE_MAX_GPUS];
};

struct plan_file {
    uint32_t magic, version;
    uint32_t index; /* of the valid plan */
    uint32_t spare;
    struct plan plans[2];
};

#define COUNTERS_EVENTS 256u
#define COUNTERS_PROCESSES 512u
#define COUNTERS_BUILD 32u

struct counters {
    uint64_t generation;   /* of the plan that is in force */
    uint64_t published_ns; /* CLOCK_MONOTONIC */
    uint32_t is_gone;      /* no listener, no process and no memory of the tenant is left */
    uint32_t sees_driver, sees_exec;
    uint32_t process_count;
    struct guard_status status;
    struct guard_attached attached; /* of a tenant that was attached */
    struct guard_process processes[COUNTERS_PROCESSES];
};

struct counters_file {
    uint32_t magic, version;
    uint32_t index; /* of the valid counters */
    uint32_t spare;
    uint64_t event_count; /* since the start; event n lies at n % COUNTERS_EVENTS */
    struct guard_event events[COUNTERS_EVENTS];
    struct counters counters[2];
    char build
        [COUNTERS_BUILD]; /* the supervisor's version, with NULs behind; written once, at its start. Last in every PAGES_VERSION */
};

/* The valid plan. 0, or -errno; -EBADMSG: it is no plan file of this version. */
int plan_read (int file, struct plan *plan);
/* A new memfd of that size, sealed and without content. -errno. */
int counters_create (void);
/* Writes down the version of this program; the same descriptor. */
int counters_name_build (int file);

#endif
