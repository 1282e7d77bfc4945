/*
 * Calls of the simulated libcuda on the simulated kernel driver beyond the real interface: work that takes time on a
 * channel, the clock, and the amount of resident managed memory on a GPU. Low bytes that no escape of the real driver
 * has, on any of the manager's nodes; the type byte is 'S'. Served by the manager (manager.h; manager_clock.c) through
 * FUSE.
 */
#ifndef NVC_SIM_DEVICE_H
#define NVC_SIM_DEVICE_H

#include <stdint.h>
#include <sys/ioctl.h>

/* Submits `count` pieces of work of `nanoseconds` each (alone on the GPU) to a channel. */
struct sim_submit {
    uint32_t client, channel;
    uint64_t nanoseconds, count;
    uint32_t status; /* a status of the resource manager: 0, or 0x33 (invalid object), ... */
    uint32_t spare;
};

/* The progress of a channel. until: if not 0, the call waits until that many pieces are finished, or `timeout_ns` of
 * the simulated clock have passed, or a signal arrives (EINTR). */
struct sim_progress {
    uint32_t client, channel;
    uint64_t until, timeout_ns;
    uint64_t submitted, finished; /* pieces */
    uint64_t busy_ns;             /* on the GPU, of the channel's whole group */
    uint32_t status;
    uint32_t spare;
};

enum sim_clock_mode { SIM_CLOCK_ASK = 0, SIM_CLOCK_REAL = 1, SIM_CLOCK_MANUAL = 2, SIM_CLOCK_ADVANCE = 3 };
struct sim_clock {
    uint32_t mode;
    uint32_t spare;
    uint64_t advance_ns;
    uint64_t now_ns; /* answer */
};

/* Of the kernel: what UVM maps is duplicated for it. */
#define UVM_CLIENT 0xc1e00001u

/* Resident managed memory of this open file (of the UVM node) on a GPU changes by `bytes`. */
struct sim_resident {
    uint8_t uuid[16];
    int64_t bytes;
    uint32_t status; /* 0x51: the GPU is full */
    uint32_t spare;
};

/* The manager's objects, for tests: totals over all clients. */
struct sim_totals {
    uint64_t files, clients, objects, groups, channels;
    uint64_t bytes[32]; /* of video memory, a GPU each, managed memory included */
};

/* Fault injection: the n-th call of an escape from now on returns a status (0: no fault). Escape 0xff: the GPU is
 * lost. */
struct sim_fault {
    uint32_t escape, number; /* number: class or control, 0 any */
    uint32_t status, after;
};

/* The parameters of an object's allocation: their size in this release, and their last 8 bytes (or fewer) as they
 * arrived. For tests of software between a program and the driver. */
struct sim_parameters {
    uint32_t client, object;
    uint32_t size;
    uint32_t status;
    uint8_t tail[8];
};

/* How often processes were asked about since the manager's start, for tests: GET_PIDS, GET_PID_INFO. */
struct sim_questions {
    uint64_t pids, pid_info;
};

/* Whether video memory counts that no handle is to, as on a real GPU: contexts of graphics groups, page tables. For tests; before there are
 * any. */
struct sim_overhead {
    uint32_t is_counted, spare;
};

/* For how long a GPU's engines computed in all: what NVML's counter of energy is made of. */
struct sim_busy {
    uint8_t uuid[16];
    uint64_t now_ns, busy_ns; /* answer: the simulated clock, and of it */
    uint32_t status;
    uint32_t spare;
};

#define SIM_SUBMIT _IOWR ('S', 0xe0, struct sim_submit)
#define SIM_PROGRESS _IOWR ('S', 0xe1, struct sim_progress)
#define SIM_CLOCK _IOWR ('S', 0xe2, struct sim_clock)
#define SIM_RESIDENT _IOWR ('S', 0xe3, struct sim_resident)
#define SIM_TOTALS _IOWR ('S', 0xe4, struct sim_totals)
#define SIM_FAULT _IOWR ('S', 0xe5, struct sim_fault)
#define SIM_PARAMETERS _IOWR ('S', 0xe6, struct sim_parameters)
#define SIM_QUESTIONS _IOWR ('S', 0xe7, struct sim_questions)
#define SIM_OVERHEAD _IOWR ('S', 0xe8, struct sim_overhead)
#define SIM_BUSY _IOWR ('S', 0xe9, struct sim_busy)

#endif
