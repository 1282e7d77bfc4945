/* The functions that the simulated libcuda exports under their own names
 * (flavours of them: CUDA_ALIAS, beside each). */
#ifndef NVC_SIM_LIBCUDA_API_H
#define NVC_SIM_LIBCUDA_API_H

#include "libcuda_types.h"

#ifndef CUDA_API
#define CUDA_API __attribute__ ((visibility ("default")))
#endif
#define CUDA_FUNCTION(name, ...) CUDA_API CUresult name (__VA_ARGS__)

CUDA_FUNCTION (cuInit, unsigned int flags);
CUDA_FUNCTION (cuDriverGetVersion, int *version);
CUDA_FUNCTION (cuGetErrorString, CUresult error, const char **text);
CUDA_FUNCTION (cuGetErrorName, CUresult error, const char **text);
CUDA_FUNCTION (cuGetProcAddress, const char *symbol, void **function, int version, cuuint64_t flags);
CUDA_FUNCTION (cuGetProcAddress_v2, const char *symbol, void **function, int version, cuuint64_t flags,
               CUdriverProcAddressQueryResult *status);
CUDA_FUNCTION (cuGetExportTable, const void **table, const CUuuid *id);

CUDA_FUNCTION (cuDeviceGet, CUdevice *device, int ordinal);
CUDA_FUNCTION (cuDeviceGetCount, int *count);
CUDA_FUNCTION (cuDeviceGetName, char *name, int length, CUdevice device);
CUDA_FUNCTION (cuDeviceGetUuid, CUuuid *uuid, CUdevice device);
CUDA_FUNCTION (cuDeviceTotalMem_v2, size_t *bytes, CUdevice device);
CUDA_FUNCTION (cuDeviceGetAttribute, int *value, int attribute, CUdevice device);
CUDA_FUNCTION (cuDeviceComputeCapability, int *major, int *minor, CUdevice device);
CUDA_FUNCTION (cuDeviceGetPCIBusId, char *text, int length, CUdevice device);
CUDA_FUNCTION (cuDeviceGetByPCIBusId, CUdevice *device, const char *text);
CUDA_FUNCTION (cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device);
CUDA_FUNCTION (cuDevicePrimaryCtxRelease, CUdevice device);
CUDA_FUNCTION (cuDevicePrimaryCtxReset, CUdevice device);
CUDA_FUNCTION (cuDevicePrimaryCtxSetFlags, CUdevice device, unsigned int flags);
CUDA_FUNCTION (cuDevicePrimaryCtxGetState, CUdevice device, unsigned int *flags, int *active);

CUDA_FUNCTION (cuCtxCreate_v2, CUcontext *context, unsigned int flags, CUdevice device);
CUDA_FUNCTION (cuCtxCreate_v3, CUcontext *context, void *affinity, int affinities, unsigned int flags, CUdevice device);
CUDA_FUNCTION (cuCtxCreate_v4, CUcontext *context, void *parameters, unsigned int flags, CUdevice device);
CUDA_FUNCTION (cuCtxDestroy_v2, CUcontext context);
CUDA_FUNCTION (cuCtxPushCurrent_v2, CUcontext context);
CUDA_FUNCTION (cuCtxPopCurrent_v2, CUcontext *context);
CUDA_FUNCTION (cuCtxSetCurrent, CUcontext context);
CUDA_FUNCTION (cuCtxGetCurrent, CUcontext *context);
CUDA_FUNCTION (cuCtxGetDevice, CUdevice *device);
CUDA_FUNCTION (cuCtxGetFlags, unsigned int *flags);
CUDA_FUNCTION (cuCtxGetApiVersion, CUcontext context, unsigned int *version);
CUDA_FUNCTION (cuCtxSynchronize, void);
CUDA_FUNCTION (cuCtxGetLimit, size_t *value, int limit);
CUDA_FUNCTION (cuCtxSetLimit, int limit, size_t value);
CUDA_FUNCTION (cuCtxGetStreamPriorityRange, int *least, int *greatest);

CUDA_FUNCTION (cuMemGetInfo_v2, size_t *available, size_t *total);
CUDA_FUNCTION (cuMemAlloc_v2, CUdeviceptr *pointer, size_t size);
CUDA_FUNCTION (cuMemFree_v2, CUdeviceptr pointer);
CUDA_FUNCTION (cuMemAllocPitch_v2, CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element);
CUDA_FUNCTION (cuMemGetAddressRange_v2, CUdeviceptr *base, size_t *size, CUdeviceptr pointer);
CUDA_FUNCTION (cuPointerGetAttribute, void *data, int attribute, CUdeviceptr pointer);

CUDA_FUNCTION (cuStreamCreate, CUstream *stream, unsigned int flags);
CUDA_FUNCTION (cuStreamCreateWithPriority, CUstream *stream, unsigned int flags, int priority);
CUDA_FUNCTION (cuStreamDestroy_v2, CUstream stream);
CUDA_FUNCTION (cuStreamSynchronize, CUstream stream);
CUDA_FUNCTION (cuStreamQuery, CUstream stream);
CUDA_FUNCTION (cuStreamWaitEvent, CUstream stream, CUevent event, unsigned int flags);
CUDA_FUNCTION (cuEventCreate, CUevent *event, unsigned int flags);
CUDA_FUNCTION (cuEventRecord, CUevent event, CUstream stream);
CUDA_FUNCTION (cuEventQuery, CUevent event);
CUDA_FUNCTION (cuEventSynchronize, CUevent event);
CUDA_FUNCTION (cuEventDestroy_v2, CUevent event);
CUDA_FUNCTION (cuEventElapsedTime, float *milliseconds, CUevent from, CUevent to);

CUDA_FUNCTION (cuModuleLoadData, CUmodule *module, const void *image);
CUDA_FUNCTION (cuModuleLoadDataEx, CUmodule *module, const void *image, unsigned int count, int *options, void **values);
CUDA_FUNCTION (cuModuleUnload, CUmodule module);
CUDA_FUNCTION (cuModuleGetFunction, CUfunction *function, CUmodule module, const char *name);
CUDA_FUNCTION (cuLaunchKernel, CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
               unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream,
               void **parameters, void **extra);
CUDA_FUNCTION (cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
CUDA_FUNCTION (cuLaunchCooperativeKernel, CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
               unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream,
               void **parameters);

CUDA_FUNCTION (cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
               unsigned long long flags);
CUDA_FUNCTION (cuMemRelease, CUmemGenericAllocationHandle handle);
CUDA_FUNCTION (cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *handle, void *address);
CUDA_FUNCTION (cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);
CUDA_FUNCTION (cuMemGetAllocationGranularity, size_t *granularity, const CUmemAllocationProp *properties, int option);
CUDA_FUNCTION (cuMemAddressReserve, CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
               unsigned long long flags);
CUDA_FUNCTION (cuMemAddressFree, CUdeviceptr address, size_t size);
CUDA_FUNCTION (cuMemMap, CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
               unsigned long long flags);
CUDA_FUNCTION (cuMemUnmap, CUdeviceptr address, size_t size);
CUDA_FUNCTION (cuMemSetAccess, CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count);
CUDA_FUNCTION (cuMemExportToShareableHandle, void *shareable, CUmemGenericAllocationHandle handle, int type,
               unsigned long long flags);
CUDA_FUNCTION (cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *handle, void *shareable, int type);
CUDA_FUNCTION (cuMemAllocAsync, CUdeviceptr *pointer, size_t size, CUstream stream);
CUDA_FUNCTION (cuMemAllocFromPoolAsync, CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream);
CUDA_FUNCTION (cuMemFreeAsync, CUdeviceptr pointer, CUstream handle);
CUDA_FUNCTION (cuDeviceGetDefaultMemPool, CUmemoryPool *pool, CUdevice ordinal);
CUDA_FUNCTION (cuDeviceGetMemPool, CUmemoryPool *pool, CUdevice ordinal);
CUDA_FUNCTION (cuDeviceSetMemPool, CUdevice ordinal, CUmemoryPool pool);
CUDA_FUNCTION (cuMemPoolCreate, CUmemoryPool *pool, const CUmemPoolProps *properties);
CUDA_FUNCTION (cuMemPoolDestroy, CUmemoryPool pool);
CUDA_FUNCTION (cuMemPoolTrimTo, CUmemoryPool pool, size_t keep);
CUDA_FUNCTION (cuMemPoolGetAttribute, CUmemoryPool pool, int attribute, void *value);
CUDA_FUNCTION (cuMemPoolSetAttribute, CUmemoryPool pool, int attribute, void *value);
CUDA_FUNCTION (cuMemPoolSetAccess, CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);
CUDA_FUNCTION (cuGraphCreate, CUgraph *graph, unsigned int flags);
CUDA_FUNCTION (cuGraphDestroy, CUgraph graph);
CUDA_FUNCTION (cuGraphAddEmptyNode, CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count);
CUDA_FUNCTION (cuGraphAddKernelNode, CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
               const CUDA_KERNEL_NODE_PARAMS *parameters);
CUDA_FUNCTION (cuGraphAddMemAllocNode, CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
               CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUDA_FUNCTION (cuGraphAddMemFreeNode, CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
               CUdeviceptr pointer);
CUDA_FUNCTION (cuStreamBeginCapture_v2, CUstream handle, int mode);
CUDA_FUNCTION (cuStreamEndCapture, CUstream handle, CUgraph *graph);
CUDA_FUNCTION (cuStreamIsCapturing, CUstream handle, int *status);
CUDA_FUNCTION (cuGraphInstantiate, CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size);
CUDA_FUNCTION (cuGraphInstantiateWithFlags, CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUDA_FUNCTION (cuGraphLaunch, CUgraphExec exec, CUstream handle);
CUDA_FUNCTION (cuGraphExecDestroy, CUgraphExec exec);
CUDA_FUNCTION (cuDeviceGraphMemTrim, CUdevice ordinal);
CUDA_FUNCTION (cuMemAllocManaged, CUdeviceptr *pointer, size_t size, unsigned int flags);
CUDA_FUNCTION (cuMemPrefetchAsync, CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream);
CUDA_FUNCTION (cuMemPrefetchAsync_v2, CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags,
               CUstream stream);
CUDA_FUNCTION (cuMemHostAlloc, void **pointer, size_t size, unsigned int flags);
CUDA_FUNCTION (cuMemAllocHost_v2, void **pointer, size_t size);
CUDA_FUNCTION (cuMemFreeHost, void *pointer);
CUDA_FUNCTION (cuMemHostRegister_v2, void *pointer, size_t size, unsigned int flags);
CUDA_FUNCTION (cuMemHostUnregister, void *pointer);
CUDA_FUNCTION (cuMemHostGetDevicePointer_v2, CUdeviceptr *device, void *pointer, unsigned int flags);
CUDA_FUNCTION (cuMemHostGetFlags, unsigned int *flags, void *pointer);
CUDA_FUNCTION (cuArray3DCreate_v2, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description);
CUDA_FUNCTION (cuArrayCreate_v2, CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description);
CUDA_FUNCTION (cuMipmappedArrayCreate, CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels);
CUDA_FUNCTION (cuArrayDestroy, CUarray array);
CUDA_FUNCTION (cuMipmappedArrayDestroy, CUmipmappedArray array);
CUDA_FUNCTION (cuIpcGetMemHandle, CUipcMemHandle *handle, CUdeviceptr pointer);
CUDA_FUNCTION (cuIpcOpenMemHandle_v2, CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
CUDA_FUNCTION (cuIpcCloseMemHandle, CUdeviceptr pointer);
CUDA_FUNCTION (cuMemcpy, CUdeviceptr to, CUdeviceptr from, size_t size);
CUDA_FUNCTION (cuMemcpyHtoD_v2, CUdeviceptr to, const void *from, size_t size);
CUDA_FUNCTION (cuMemcpyDtoH_v2, void *to, CUdeviceptr from, size_t size);
CUDA_FUNCTION (cuMemcpyDtoD_v2, CUdeviceptr to, CUdeviceptr from, size_t size);
CUDA_FUNCTION (cuMemcpyAsync, CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
CUDA_FUNCTION (cuMemcpyHtoDAsync_v2, CUdeviceptr to, const void *from, size_t size, CUstream stream);
CUDA_FUNCTION (cuMemcpyDtoHAsync_v2, void *to, CUdeviceptr from, size_t size, CUstream stream);
CUDA_FUNCTION (cuMemcpyDtoDAsync_v2, CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
CUDA_FUNCTION (cuMemsetD8_v2, CUdeviceptr pointer, unsigned char value, size_t count);
CUDA_FUNCTION (cuMemsetD8Async, CUdeviceptr pointer, unsigned char value, size_t count, CUstream stream);
CUDA_FUNCTION (cuMemsetD16_v2, CUdeviceptr pointer, unsigned short value, size_t count);
CUDA_FUNCTION (cuMemsetD16Async, CUdeviceptr pointer, unsigned short value, size_t count, CUstream stream);
CUDA_FUNCTION (cuMemsetD32_v2, CUdeviceptr pointer, unsigned int value, size_t count);
CUDA_FUNCTION (cuMemsetD32Async, CUdeviceptr pointer, unsigned int value, size_t count, CUstream stream);

CUDA_FUNCTION (cuCheckpointProcessGetState, int pid, CUprocessState *state);
CUDA_FUNCTION (cuCheckpointProcessGetRestoreThreadId, int pid, int *thread);
CUDA_FUNCTION (cuCheckpointProcessLock, int pid, CUcheckpointLockArgs *arguments);
CUDA_FUNCTION (cuCheckpointProcessCheckpoint, int pid, CUcheckpointCheckpointArgs *arguments);
CUDA_FUNCTION (cuCheckpointProcessRestore, int pid, CUcheckpointRestoreArgs *arguments);
CUDA_FUNCTION (cuCheckpointProcessUnlock, int pid, CUcheckpointUnlockArgs *arguments);

#endif
