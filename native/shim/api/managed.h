/* Oversubscription: managed memory in place of device memory, which the driver moves to the host when a GPU is full. */
#ifndef NVC_API_MANAGED_H
#define NVC_API_MANAGED_H

#include "refused.h"
#include "share.h"

/* Tries to allocate managed memory that likes to be on the share's device. false: this is not the way here, ask the
 * driver for what the program asked for. */
bool managed_allocate (const struct share *share, CUdeviceptr *pointer, uint64_t bytes, CUresult *result);

/* libnvc-shim.so: the next managed mapping of this thread is for this GPU. Absent where that library is not loaded. */
void nvc_shim_next_managed (const uint8_t uuid[16]) __attribute__ ((weak, visibility ("default")));
#endif
