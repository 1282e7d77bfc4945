/*
 * What the simulated driver's user space asks of the simulated kernel side beyond the real interface: work that takes
 * time on a channel, the clock, and how much managed memory lies on a GPU. Low bytes that no escape of the real driver
 * has, on any of the manager's nodes; the type byte is 'S'. Served by native/sim's manager (manager.h) through FUSE.
 */
#ifndef NVC_SIM_DEVICE_H
#define NVC_SIM_DEVICE_H

#include <stdint.h>
#include <sys/ioctl.h>

/* Puts `count` pieces of work of `nanoseconds` each (alone on the GPU) behind what the channel has to do. */
struct sim_submit {
    uint32_t client, channel;
    uint64_t nanoseconds, count;
    uint32_t status; /* a status of the resource manager: 0, or 0x33 (invalid object), ... */
    uint32_t spare;
};

/* How far a channel is. `until`: when not 0, the call waits until that many pieces are finished, or `timeout_ns` of the
 * simulated clock have passed, or a signal comes (EINTR). */
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

/* Managed memory of this open file (of the UVM node) that lies on a GPU changed by `bytes`. */
struct sim_resident {
    uint8_t uuid[16];
    int64_t bytes;
    uint32_t status; /* 0x51: the GPU is full */
    uint32_t spare;
};

/* Everything that the manager keeps, for tests: totals over all clients. */
struct sim_totals {
    uint64_t files, clients, objects, groups, channels;
    uint64_t bytes[32]; /* of video memory, a GPU each, managed memory included */
};

/* From now on the n-th call of an escape answers with a status (0: no fault). Escape 0xff: the GPU is lost. */
struct sim_fault {
    uint32_t escape, number; /* number: class or control, 0 any */
    uint32_t status, after;
};

/* What an object was made with: how long its parameters are in this release, and the last 8 bytes of them (fewer where
 * there are fewer) as they arrived. For tests of who stands between a program and the driver. */
struct sim_parameters {
    uint32_t client, object;
    uint32_t size;
    uint32_t status;
    uint8_t tail[8];
};

#define SIM_SUBMIT _IOWR ('S', 0xe0, struct sim_submit)
#define SIM_PROGRESS _IOWR ('S', 0xe1, struct sim_progress)
#define SIM_CLOCK _IOWR ('S', 0xe2, struct sim_clock)
#define SIM_RESIDENT _IOWR ('S', 0xe3, struct sim_resident)
#define SIM_TOTALS _IOWR ('S', 0xe4, struct sim_totals)
#define SIM_FAULT _IOWR ('S', 0xe5, struct sim_fault)
#define SIM_PARAMETERS _IOWR ('S', 0xe6, struct sim_parameters)

#endif
