/* Driver-reported usage. */
#ifndef NVC_GUARD_DRIVER_USAGE_H
#define NVC_GUARD_DRIVER_USAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "rm/nv_params.h"

struct driver_client;
struct driver_usage;
struct privsep;

/* The guard's own client of the driver, and the memory that the driver reports of processes. */
struct driver_usage *driver_usage_open (struct privsep *privsep);
void driver_usage_close (struct driver_usage *driver_usage);
/* Video memory that clients of a process have handles to, in bytes. */
struct process_usage {
    uint64_t own;        /* pieces that no other handle is to, or whose owner one of its handles is: each piece once */
    uint64_t duplicated; /* handles of pieces that another handle owns, which may be UVM's or another tenant's: each handle */
};
/* Of clients that this (host) process made, a GPU by its UUID; -errno. */
long driver_usage_of_process (struct driver_usage *driver_usage, const uint8_t uuid[16], pid_t pid, struct process_usage *found);
/* Whether there is a client of this number, of whichever process. */
bool driver_usage_has_client (struct driver_usage *driver_usage, uint32_t client);
/* The same of up to DRIVER_USAGE_PIDS processes in one question. gpu: the place in the client's. answer: room for it. */
#define DRIVER_USAGE_PIDS 200u /* NV2080_CTRL_GPU_GET_PID_INFO_MAX_COUNT */
long driver_usage_ask (const struct driver_client *client, int gpu, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *answer,
                       const uint32_t *pids, unsigned count, struct process_usage *found);

#endif
