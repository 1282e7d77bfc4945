/* The error of managed memory beyond a quota: libcuda reports a failed mapping as CUDA_ERROR_UNKNOWN (999), whatever
 * the errno. libnvc-shim.so, which refused the mapping, provides the reason. Implemented in refused.c. */
#ifndef NVC_API_REFUSED_H
#define NVC_API_REFUSED_H

#include "abi.h"

/* Of libnvc-shim.so: 1, once, after it refused a managed mapping of this thread. NULL without that library. */
int nvc_shim_managed_refused (void) __attribute__ ((weak, visibility ("default")));

/* Before a call of the driver: discards an earlier refusal in this thread. */
void refused_forget (void);
/* The driver's result, with CUDA_ERROR_OUT_OF_MEMORY in place of CUDA_ERROR_UNKNOWN for a refused mapping. */
CUresult refused_result (CUresult result);

#endif
