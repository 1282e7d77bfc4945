/* The error of refused managed memory (refused.h). Runs as proc_address.c. */
#include "refused.h"

static int refused (void) { return &nvc_shim_managed_refused != NULL && nvc_shim_managed_refused () != 0; }

void refused_forget (void) { refused (); }

CUresult refused_result (CUresult result) { return result == CUDA_ERROR_UNKNOWN && refused () ? CUDA_ERROR_OUT_OF_MEMORY : result; }
