/* The error of managed memory beyond a share: libcuda takes a mapping that fails for an unknown error (999), whatever
 * the errno. The library that refused the mapping knows better. */
#ifndef NVC_API_REFUSED_H
#define NVC_API_REFUSED_H

#include "abi.h"

/* libnvc-shim.so: 1, once, when it has just refused this thread a managed mapping. Absent where it is not loaded. */
int nvc_shim_managed_refused (void) __attribute__ ((weak, visibility ("default")));

/* Before a call of the driver: what was refused earlier in this thread is not about this call. */
void refused_forget (void);
/* What the driver said, or CUDA_ERROR_OUT_OF_MEMORY in place of CUDA_ERROR_UNKNOWN for a mapping that was refused. */
CUresult refused_result (CUresult result);

#endif
