/* Driver-reported usage. */
#ifndef NVC_GUARD_DRIVER_USAGE_H
#define NVC_GUARD_DRIVER_USAGE_H

#include <stdint.h>
#include <sys/types.h>

struct driver_usage;

/* The guard's own client of the driver, and the memory that the driver reports of processes. */
struct driver_usage *driver_usage_open (const char *device_directory);
void driver_usage_close (struct driver_usage *driver_usage);
/* Bytes of video memory of clients that this (host) process made, a GPU by its UUID; -errno. */
long driver_usage_of_process (struct driver_usage *driver_usage, const uint8_t uuid[16], pid_t pid, uint64_t *bytes);

#endif
