#include "managed.h"

bool managed_allocate (const struct share *share, CUdeviceptr *pointer, uint64_t bytes, CUresult *result)
{
    if (!share->oversubscribed)
        return false;
    /* The other library charges the mapping, and cannot see from a mapping which GPU it is meant for. */
    if (&nvc_shim_next_managed != NULL)
        nvc_shim_next_managed (share->uuid.bytes);
    refused_forget ();
    *result = refused_result (NEXT (cuMemAllocManaged) (pointer, bytes, CU_MEM_ATTACH_GLOBAL));
    if (*result == CUDA_ERROR_NOT_SUPPORTED || *result == CUDA_ERROR_NOT_FOUND)
        return false;
    /* Advice only: memory that ignores it is as good. */
    if (*result == CUDA_SUCCESS)
        NEXT (cuMemAdvise) (*pointer, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, share->device);
    return true;
}
