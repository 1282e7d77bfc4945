/* Ioctls of rm's own, on the files of clients. */
#ifndef NVC_GUARD_REACH_H
#define NVC_GUARD_REACH_H

#include <stdbool.h>
#include <stdint.h>

struct process;
struct tenant;

/* An ioctl of rm's own on the file of a client, whose handle the struct begins with. 0 or -errno. */
long reach_ioctl (struct tenant *tenant, struct process *process, uint32_t request, void *argument);
/* The same through this file: -EBADF: it is not the client's (rmclientValidate, open-gpu-kernel-modules). */
long reach_through (int file, uint32_t request, void *argument);
/* Whether it is the client's file, as the driver says: handles of clients are any program's to name. */
bool reach_is_file_of (int file, uint32_t client);
/* No file of the client is held: its process's descriptors are looked through soon. */
void reach_missing (struct tenant *tenant, struct process *process, uint32_t client);
/* Looks for the files of clients that were not reached; when to do so again (CLOCK_MONOTONIC ns), 0: no need. */
uint64_t reach_check (struct tenant *tenant, uint64_t now);

#endif
