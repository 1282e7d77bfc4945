/* The functions that the simulated libcuda exports under their own names (flavours of them: CUDA_ALIAS, beside each). */
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
CUDA_FUNCTION (cuMemAllocPitch_v2, CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
               unsigned int element);
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
CUDA_FUNCTION (cuLaunchCooperativeKernel, CUfunction function, unsigned int grid_x, unsigned int grid_y,
               unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
               unsigned int shared, CUstream stream, void **parameters);

#endif
