/*
 * Every function that the simulated libcuda exports. ROW (name to ask cuGetProcAddress for, symbol, first CUDA version that
 * hands out this symbol under that name, 1 for the flavour with a default stream per thread).
 *
 * Source of the versions: the public headers' cudaTypedefs.h (PFN_<name>_v<version>).
 */
/* clang-format off */
#define CUDA_ROWS(ROW)                                                                                                 \
    ROW (cuInit, cuInit, 2000, 0)                                                                                      \
    ROW (cuDriverGetVersion, cuDriverGetVersion, 2020, 0)                                                              \
    ROW (cuGetErrorString, cuGetErrorString, 6000, 0)                                                                  \
    ROW (cuGetErrorName, cuGetErrorName, 6000, 0)                                                                      \
    ROW (cuGetProcAddress, cuGetProcAddress, 11030, 0)                                                                 \
    ROW (cuGetProcAddress, cuGetProcAddress_v2, 12000, 0)                                                              \
    ROW (cuGetExportTable, cuGetExportTable, 3000, 0)                                                                  \
    ROW (cuDeviceGet, cuDeviceGet, 2000, 0)                                                                            \
    ROW (cuDeviceGetCount, cuDeviceGetCount, 2000, 0)                                                                  \
    ROW (cuDeviceGetName, cuDeviceGetName, 2000, 0)                                                                    \
    ROW (cuDeviceGetUuid, cuDeviceGetUuid, 9020, 0)                                                                    \
    ROW (cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, 0)                                                                \
    ROW (cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, 0)                                                               \
    ROW (cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, 0)                                                          \
    ROW (cuDeviceComputeCapability, cuDeviceComputeCapability, 2000, 0)                                                \
    ROW (cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, 0)                                                            \
    ROW (cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, 0)                                                        \
    ROW (cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0)                                                  \
    ROW (cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, 0)                                                \
    ROW (cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, 0)                                            \
    ROW (cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 0)                                                    \
    ROW (cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, 0)                                                \
    ROW (cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags, 7000, 0)                                              \
    ROW (cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 11000, 0)                                          \
    ROW (cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, 0)                                              \
    ROW (cuCtxCreate, cuCtxCreate, 2000, 0)                                                                            \
    ROW (cuCtxCreate, cuCtxCreate_v2, 3020, 0)                                                                         \
    ROW (cuCtxCreate, cuCtxCreate_v3, 11040, 0)                                                                        \
    ROW (cuCtxCreate, cuCtxCreate_v4, 12050, 0)                                                                        \
    ROW (cuCtxDestroy, cuCtxDestroy, 2000, 0)                                                                          \
    ROW (cuCtxDestroy, cuCtxDestroy_v2, 4000, 0)                                                                       \
    ROW (cuCtxPushCurrent, cuCtxPushCurrent, 2000, 0)                                                                  \
    ROW (cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, 0)                                                               \
    ROW (cuCtxPopCurrent, cuCtxPopCurrent, 2000, 0)                                                                    \
    ROW (cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, 0)                                                                 \
    ROW (cuCtxSetCurrent, cuCtxSetCurrent, 4000, 0)                                                                    \
    ROW (cuCtxGetCurrent, cuCtxGetCurrent, 4000, 0)                                                                    \
    ROW (cuCtxGetDevice, cuCtxGetDevice, 2000, 0)                                                                      \
    ROW (cuCtxGetFlags, cuCtxGetFlags, 7000, 0)                                                                        \
    ROW (cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, 0)                                                              \
    ROW (cuCtxSynchronize, cuCtxSynchronize, 2000, 0)                                                                  \
    ROW (cuCtxGetLimit, cuCtxGetLimit, 3010, 0)                                                                        \
    ROW (cuCtxSetLimit, cuCtxSetLimit, 3010, 0)                                                                        \
    ROW (cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, 0)                                            \
    ROW (cuMemGetInfo, cuMemGetInfo_v2, 3020, 0)                                                                       \
    ROW (cuMemAlloc, cuMemAlloc_v2, 3020, 0)                                                                           \
    ROW (cuMemFree, cuMemFree_v2, 3020, 0)                                                                             \
    ROW (cuMemAllocPitch, cuMemAllocPitch_v2, 3020, 0)                                                                 \
    ROW (cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, 0)                                                       \
    ROW (cuPointerGetAttribute, cuPointerGetAttribute, 4000, 0)                                                        \
    ROW (cuStreamCreate, cuStreamCreate, 2000, 0)                                                                      \
    ROW (cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, 0)                                              \
    ROW (cuStreamDestroy, cuStreamDestroy, 2000, 0)                                                                    \
    ROW (cuStreamDestroy, cuStreamDestroy_v2, 4000, 0)                                                                 \
    ROW (cuStreamSynchronize, cuStreamSynchronize, 2000, 0)                                                            \
    ROW (cuStreamSynchronize, cuStreamSynchronize_ptsz, 7000, 1)                                                       \
    ROW (cuStreamQuery, cuStreamQuery, 2000, 0)                                                                        \
    ROW (cuStreamQuery, cuStreamQuery_ptsz, 7000, 1)                                                                   \
    ROW (cuStreamWaitEvent, cuStreamWaitEvent, 3020, 0)                                                                \
    ROW (cuStreamWaitEvent, cuStreamWaitEvent_ptsz, 7000, 1)                                                           \
    ROW (cuEventCreate, cuEventCreate, 2000, 0)                                                                        \
    ROW (cuEventRecord, cuEventRecord, 2000, 0)                                                                        \
    ROW (cuEventRecord, cuEventRecord_ptsz, 7000, 1)                                                                   \
    ROW (cuEventQuery, cuEventQuery, 2000, 0)                                                                          \
    ROW (cuEventSynchronize, cuEventSynchronize, 2000, 0)                                                              \
    ROW (cuEventDestroy, cuEventDestroy, 2000, 0)                                                                      \
    ROW (cuEventDestroy, cuEventDestroy_v2, 4000, 0)                                                                   \
    ROW (cuEventElapsedTime, cuEventElapsedTime, 2000, 0)                                                              \
    ROW (cuModuleLoadData, cuModuleLoadData, 2000, 0)                                                                  \
    ROW (cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, 0)                                                              \
    ROW (cuModuleUnload, cuModuleUnload, 2000, 0)                                                                      \
    ROW (cuModuleGetFunction, cuModuleGetFunction, 2000, 0)                                                            \
    ROW (cuLaunchKernel, cuLaunchKernel, 4000, 0)                                                                      \
    ROW (cuLaunchKernel, cuLaunchKernel_ptsz, 7000, 1)                                                                 \
    ROW (cuLaunchKernelEx, cuLaunchKernelEx, 11060, 0)                                                                 \
    ROW (cuLaunchKernelEx, cuLaunchKernelEx_ptsz, 11060, 1)                                                            \
    ROW (cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, 0)                                                \
    ROW (cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, 9000, 1)                                           \
    CUDA_ROWS_MEMORY (ROW)                                                                                             \
    CUDA_ROWS_GRAPH (ROW)
#define CUDA_ROWS_MEMORY(ROW)
#define CUDA_ROWS_GRAPH(ROW)
/* clang-format on */
