/*
 * The wrappers of libnvc-shim-managed.so: every call goes to the driver, and one error of the result is replaced. The
 * exported functions are for programs that are linked with the driver, answer_... are the results of lookups.
 *
 * Runs in processes of a container with a limit of memory, on the thread that calls the driver's function.
 */
#include "refused.h"
#include "wrap.h"

#define LINKED(symbol) ((type_##symbol) next_in_scope (ROW_##symbol, __builtin_return_address (0)))

#define BOTH_WAYS(symbol, parameters, arguments)                                                                                   \
    CUresult symbol parameters                                                                                                     \
    {                                                                                                                              \
        refused_forget ();                                                                                                         \
        return refused_result (LINKED (symbol) arguments);                                                                         \
    }                                                                                                                              \
    CUresult answer_##symbol parameters                                                                                            \
    {                                                                                                                              \
        refused_forget ();                                                                                                         \
        return refused_result (NEXT (symbol) arguments);                                                                           \
    }

BOTH_WAYS (cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags), (pointer, bytes, flags))
BOTH_WAYS (cuMemAllocFromPoolAsync, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
           (pointer, bytes, pool, stream))
BOTH_WAYS (cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
           (pointer, bytes, pool, stream))

CUresult cuGetProcAddress (const char *symbol, void **function, int version, uint64_t flags)
{
    CUresult result = LINKED (cuGetProcAddress) (symbol, function, version, flags);
    if (result == CUDA_SUCCESS)
        proc_address_replace (symbol, function);
    return result;
}

CUresult cuGetProcAddress_v2 (const char *symbol, void **function, int version, uint64_t flags,
                              CUdriverProcAddressQueryResult *status)
{
    CUresult result = LINKED (cuGetProcAddress_v2) (symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS)
        proc_address_replace (symbol, function);
    return result;
}
