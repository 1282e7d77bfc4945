/* Oversubscription: managed memory, which the driver moves to the host when a GPU is full, in place of device memory.
 * Implemented in managed.c. */
#ifndef NVC_API_MANAGED_H
#define NVC_API_MANAGED_H

#include "refused.h"
#include "share.h"

/* Allocates managed memory with the share's device as its preferred location. false: the share is not oversubscribed or
 * the driver does not support it, so that the driver's own function must be called. */
bool managed_allocate (const struct share *share, CUdeviceptr *pointer, uint64_t bytes, CUresult *result);

/* Of libnvc-shim.so: the next managed mapping of this thread is charged to this GPU. NULL without that library. */
void nvc_shim_next_managed (const uint8_t uuid[16]) __attribute__ ((weak, visibility ("default")));
#endif
