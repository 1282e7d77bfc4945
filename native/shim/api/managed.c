/* Oversubscription (managed.h). Runs as array.c. */
#include "managed.h"

bool managed_allocate (const struct share *share, CUdeviceptr *pointer, uint64_t bytes, CUresult *result)
{
    if (!share->oversubscribed)
        return false;
    /* libnvc-shim.so charges the mapping, from which it cannot derive the GPU. */
    if (&nvc_shim_next_managed != NULL)
        nvc_shim_next_managed (share->uuid.bytes);
    refused_forget ();
    *result = refused_result (NEXT (cuMemAllocManaged) (pointer, bytes, CU_MEM_ATTACH_GLOBAL));
    if (*result == CUDA_ERROR_NOT_SUPPORTED || *result == CUDA_ERROR_NOT_FOUND)
        return false;
    /* An optimisation: its failure is ignored. */
    if (*result == CUDA_SUCCESS)
        NEXT (cuMemAdvise) (*pointer, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, share->device);
    return true;
}
