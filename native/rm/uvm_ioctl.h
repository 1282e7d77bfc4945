/*
 * Structs of UVM's ioctl interface that rm reads, under NVIDIA's names: uvm_ioctl.h and uvm_types.h of the open kernel
 * modules. Packed for the same reason as those of nvos.h. Where rmStatus stands is in rm_abi_uvm_calls (abi.c), for FREE and
 * MAP_EXTERNAL_ALLOCATION differ by branch.
 */
#ifndef NVC_RM_UVM_IOCTL_H
#define NVC_RM_UVM_IOCTL_H

#include "nvos.h"

typedef struct NV_PACKED {
    uint8_t uuid[16];
} NvProcessorUuid;

typedef struct NV_PACKED {
    NvProcessorUuid gpu_uuid;
    uint8_t numaEnabled, pad17[3];
    int32_t numaNodeId, rmCtrlFd;
    NvHandle hClient, hSmcPartRef;
    uint32_t rmStatus;
} UVM_REGISTER_GPU_PARAMS;
NV_SIZE (UVM_REGISTER_GPU_PARAMS, 40);
NV_AT (UVM_REGISTER_GPU_PARAMS, rmStatus, 36);

typedef struct NV_PACKED {
    NvProcessorUuid gpu_uuid;
    uint32_t rmStatus;
} UVM_UNREGISTER_GPU_PARAMS;
NV_SIZE (UVM_UNREGISTER_GPU_PARAMS, 20);
NV_AT (UVM_UNREGISTER_GPU_PARAMS, rmStatus, 16);

typedef struct NV_PACKED {
    NvProcessorUuid gpuUuid;
    uint32_t rmStatus;
} UVM_UNREGISTER_GPU_VASPACE_PARAMS;
NV_SIZE (UVM_UNREGISTER_GPU_VASPACE_PARAMS, 20);
NV_AT (UVM_UNREGISTER_GPU_VASPACE_PARAMS, rmStatus, 16);

/* UVM_CREATE_EXTERNAL_RANGE; UVM_FREE before 590, which has no length from there on. */
typedef struct NV_PACKED {
    uint64_t base, length;
    uint32_t rmStatus, pad20;
} UVM_CREATE_EXTERNAL_RANGE_PARAMS;
NV_SIZE (UVM_CREATE_EXTERNAL_RANGE_PARAMS, 24);
NV_AT (UVM_CREATE_EXTERNAL_RANGE_PARAMS, length, 8);
NV_AT (UVM_CREATE_EXTERNAL_RANGE_PARAMS, rmStatus, 16);

typedef struct NV_PACKED {
    uint64_t base;
    uint32_t rmStatus, pad12;
} UVM_FREE_PARAMS;
NV_SIZE (UVM_FREE_PARAMS, 16);
NV_AT (UVM_FREE_PARAMS, rmStatus, 8);

/* UVM_MAP_EXTERNAL_SPARSE too. */
typedef struct NV_PACKED {
    uint64_t base, length;
    NvProcessorUuid gpuUuid;
    uint32_t rmStatus, pad36;
} UVM_UNMAP_EXTERNAL_PARAMS;
NV_SIZE (UVM_UNMAP_EXTERNAL_PARAMS, 40);
NV_AT (UVM_UNMAP_EXTERNAL_PARAMS, gpuUuid, 16);
NV_AT (UVM_UNMAP_EXTERNAL_PARAMS, rmStatus, 32);

typedef struct NV_PACKED {
    NvProcessorUuid gpuUuid;
    uint32_t gpuMappingType, gpuCachingType, gpuFormatType, gpuElementBits, gpuCompressionType;
} UvmGpuMappingAttributes;
NV_SIZE (UvmGpuMappingAttributes, 36);

/* UVM_MAP_EXTERNAL_ALLOCATION_PARAMS in two pieces: between them lies an array of UvmGpuMappingAttributes, of 32 up to 545
 * and of 256 from 550 on. */
typedef struct NV_PACKED {
    uint64_t base, length, offset;
    UvmGpuMappingAttributes perGpuAttributes[];
} uvm_map_external_allocation_begin;
NV_AT (uvm_map_external_allocation_begin, perGpuAttributes, 24);

typedef struct NV_PACKED {
    uint64_t gpuAttributesCount;
    int32_t rmCtrlFd;
    NvHandle hClient, hMemory;
    uint32_t rmStatus;
} uvm_map_external_allocation_end;
NV_SIZE (uvm_map_external_allocation_end, 24);
NV_AT (uvm_map_external_allocation_end, hClient, 12);
NV_AT (uvm_map_external_allocation_end, hMemory, 16);
NV_AT (uvm_map_external_allocation_end, rmStatus, 20);

typedef struct NV_PACKED {
    uint64_t flags;
    uint32_t rmStatus, pad12;
} UVM_INITIALIZE_PARAMS;
NV_SIZE (UVM_INITIALIZE_PARAMS, 16);
NV_AT (UVM_INITIALIZE_PARAMS, rmStatus, 8);

typedef struct NV_PACKED {
    uint8_t pageableMemAccess, pad1[3];
    uint32_t rmStatus;
} UVM_PAGEABLE_MEM_ACCESS_PARAMS;
NV_SIZE (UVM_PAGEABLE_MEM_ACCESS_PARAMS, 8);
NV_AT (UVM_PAGEABLE_MEM_ACCESS_PARAMS, rmStatus, 4);

#endif
