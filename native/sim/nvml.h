/*
 * The part of NVML's ABI that the simulated library has; the nvml_*.c implement it. Types and numbers are those of the
 * public NVML API reference; tests/nvc/sim/test_nvml_abi.py compares sizes and offsets with nvidia-ml-py's structures.
 */
#ifndef NVC_SIM_NVML_H
#define NVC_SIM_NVML_H

#define NVML_API __attribute__ ((visibility ("default")))

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

#define NVML_DEVICE_MIG_DISABLE 0u
#define NVML_DEVICE_MIG_ENABLE 1u

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef unsigned int nvmlBrandType_t;

/* nvmlDeviceGetPciInfo_v3; the first 52 bytes are also the structure of _v2, except for the bus id after them. */
typedef struct {
    char busIdLegacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    char busId[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    unsigned int reserved[4];
} nvmlPciInfo_v2_t;

/* For the unversioned nvmlDeviceGetPciInfo of NVML 1, which must not write past this struct. */
typedef struct {
    char busId[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
} nvmlPciInfo_v1_t;

typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

/* Percent of the time of the last sampling. */
typedef struct {
    unsigned int gpu;
    unsigned int memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int version; /* size of the structure | 2 << 24 */
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int multiprocessorCount;
    unsigned int sharedCopyEngineCount;
    unsigned int sharedDecoderCount;
    unsigned int sharedEncoderCount;
    unsigned int sharedJpegCount;
    unsigned int sharedOfaCount;
    unsigned int gpuInstanceSliceCount;
    unsigned int computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;

/* Of GPU instances and of compute instances: the first slice, and how many. */
typedef struct {
    unsigned int start;
    unsigned int size;
} nvmlPlacement_t;

typedef struct {
    nvmlDevice_t device;
    unsigned int id;
    unsigned int profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned int id;
    unsigned int profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned int id;
    unsigned int isP2pSupported;
    unsigned int sliceCount;
    unsigned int instanceCount;
    unsigned int multiprocessorCount;
    unsigned int copyEngineCount;
    unsigned int decoderCount;
    unsigned int encoderCount;
    unsigned int jpegCount;
    unsigned int ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned int id;
    unsigned int sliceCount;
    unsigned int instanceCount;
    unsigned int multiprocessorCount;
    unsigned int sharedCopyEngineCount;
    unsigned int sharedDecoderCount;
    unsigned int sharedEncoderCount;
    unsigned int sharedJpegCount;
    unsigned int sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

/* nvmlDeviceGet{Compute,Graphics}RunningProcesses without and with _v2, _v3. */
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlProcessInfo_t;

/* Every exported function. */
#define NVML_DEVICE_FUNCTION(name, ...) NVML_API nvmlReturn_t name (nvmlDevice_t device, __VA_ARGS__)

NVML_API nvmlReturn_t nvmlInit (void);
NVML_API nvmlReturn_t nvmlInit_v2 (void);
NVML_API nvmlReturn_t nvmlInitWithFlags (unsigned int flags);
NVML_API nvmlReturn_t nvmlShutdown (void);
NVML_API const char *nvmlErrorString (nvmlReturn_t result);
NVML_API nvmlReturn_t nvmlSystemGetDriverVersion (char *version, unsigned int length);
NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion (char *version, unsigned int length);
NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion (int *version);
NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2 (int *version);
NVML_API nvmlReturn_t nvmlDeviceGetCount (unsigned int *count);
NVML_API nvmlReturn_t nvmlDeviceGetCount_v2 (unsigned int *count);
NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex (unsigned int index, nvmlDevice_t *device);
NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2 (unsigned int index, nvmlDevice_t *device);
NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID (const char *uuid, nvmlDevice_t *device);
NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId (const char *bus_id, nvmlDevice_t *device);
NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2 (const char *bus_id, nvmlDevice_t *device);
NVML_DEVICE_FUNCTION (nvmlDeviceGetPciInfo, nvmlPciInfo_v1_t *pci);
NVML_DEVICE_FUNCTION (nvmlDeviceGetPciInfo_v2, nvmlPciInfo_v2_t *pci);
NVML_DEVICE_FUNCTION (nvmlDeviceGetPciInfo_v3, nvmlPciInfo_t *pci);
NVML_DEVICE_FUNCTION (nvmlDeviceGetUUID, char *uuid, unsigned int length);
NVML_DEVICE_FUNCTION (nvmlDeviceGetName, char *name, unsigned int length);
NVML_DEVICE_FUNCTION (nvmlDeviceGetBrand, nvmlBrandType_t *brand);
NVML_DEVICE_FUNCTION (nvmlDeviceGetIndex, unsigned int *index);
NVML_DEVICE_FUNCTION (nvmlDeviceGetMinorNumber, unsigned int *minor);
NVML_DEVICE_FUNCTION (nvmlDeviceGetCudaComputeCapability, int *major, int *minor);
NVML_DEVICE_FUNCTION (nvmlDeviceGetMemoryInfo, nvmlMemory_t *memory);
NVML_DEVICE_FUNCTION (nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t *memory);
NVML_DEVICE_FUNCTION (nvmlDeviceGetUtilizationRates, nvmlUtilization_t *utilization);
NVML_DEVICE_FUNCTION (nvmlDeviceGetPowerUsage, unsigned int *milliwatts);
NVML_DEVICE_FUNCTION (nvmlDeviceGetEnforcedPowerLimit, unsigned int *milliwatts);
NVML_DEVICE_FUNCTION (nvmlDeviceGetTotalEnergyConsumption, unsigned long long *energy);
NVML_DEVICE_FUNCTION (nvmlDeviceGetComputeRunningProcesses, unsigned int *count, nvmlProcessInfo_v1_t *infos);
NVML_DEVICE_FUNCTION (nvmlDeviceGetComputeRunningProcesses_v2, unsigned int *count, nvmlProcessInfo_t *infos);
NVML_DEVICE_FUNCTION (nvmlDeviceGetComputeRunningProcesses_v3, unsigned int *count, nvmlProcessInfo_t *infos);
NVML_DEVICE_FUNCTION (nvmlDeviceGetGraphicsRunningProcesses, unsigned int *count, nvmlProcessInfo_v1_t *infos);
NVML_DEVICE_FUNCTION (nvmlDeviceGetGraphicsRunningProcesses_v2, unsigned int *count, nvmlProcessInfo_t *infos);
NVML_DEVICE_FUNCTION (nvmlDeviceGetGraphicsRunningProcesses_v3, unsigned int *count, nvmlProcessInfo_t *infos);
NVML_DEVICE_FUNCTION (nvmlDeviceGetMigMode, unsigned int *current, unsigned int *pending);
NVML_DEVICE_FUNCTION (nvmlDeviceGetMaxMigDeviceCount, unsigned int *count);
NVML_DEVICE_FUNCTION (nvmlDeviceGetMigDeviceHandleByIndex, unsigned int index, nvmlDevice_t *mig);
NVML_DEVICE_FUNCTION (nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t *parent);
NVML_DEVICE_FUNCTION (nvmlDeviceIsMigDeviceHandle, unsigned int *is_mig);
NVML_DEVICE_FUNCTION (nvmlDeviceGetGpuInstanceId, unsigned int *id);
NVML_DEVICE_FUNCTION (nvmlDeviceGetComputeInstanceId, unsigned int *id);
NVML_DEVICE_FUNCTION (nvmlDeviceGetAttributes, nvmlDeviceAttributes_t *attributes);
NVML_DEVICE_FUNCTION (nvmlDeviceGetAttributes_v2, nvmlDeviceAttributes_t *attributes);
NVML_DEVICE_FUNCTION (nvmlDeviceGetGpuInstanceById, unsigned int id, nvmlGpuInstance_t *instance);
NVML_DEVICE_FUNCTION (nvmlDeviceGetGpuInstanceProfileInfo, unsigned int number, nvmlGpuInstanceProfileInfo_t *info);
NVML_API nvmlReturn_t nvmlGpuInstanceGetInfo (nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info);
NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById (nvmlGpuInstance_t instance, unsigned int id,
                                                             nvmlComputeInstance_t *compute);
NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo (nvmlGpuInstance_t instance, unsigned int number,
                                                                    unsigned int engine, nvmlComputeInstanceProfileInfo_t *info);
NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo (nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info);
NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2 (nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info);

/* Not in NVML: the name of the simulated machine, or the reason why there is none. Never NULL; valid after nvmlInit. */
NVML_API const char *nvcSimMachineName (void);
NVML_API const char *nvcSimProblem (void);

#endif
