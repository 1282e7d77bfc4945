/* Params of classes, as nv_params.h has them of controls. */
#ifndef NVC_RM_NV_CLASSES_H
#define NVC_RM_NV_CLASSES_H

#include "nvos.h"

/* nvos.h: NV01_MEMORY_SYSTEM, NV01_MEMORY_LOCAL_USER, NV50_MEMORY_VIRTUAL. From 545 on numaNode follows. */
typedef struct NV_PACKED {
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attr, attr2, format, comprCovg, zcullCovg, pad44;
    uint64_t rangeLo, rangeHi, size, alignment, offset, limit;
    NvP64 address;
    uint32_t ctagOffset;
    NvHandle hVASpace;
    uint32_t internalflags, tag;
} NV_MEMORY_ALLOCATION_PARAMS;
NV_SIZE (NV_MEMORY_ALLOCATION_PARAMS, 120);
NV_AT (NV_MEMORY_ALLOCATION_PARAMS, flags, 8);
NV_AT (NV_MEMORY_ALLOCATION_PARAMS, attr, 24);
NV_AT (NV_MEMORY_ALLOCATION_PARAMS, size, 64);
NV_AT (NV_MEMORY_ALLOCATION_PARAMS, address, 96);
NV_AT (NV_MEMORY_ALLOCATION_PARAMS, hVASpace, 108);

/* class/cl0080.h, class/cl2080.h. deviceId: the driver's device instance. */
typedef struct NV_PACKED {
    uint32_t deviceId;
    NvHandle hClientShare, hTargetClient, hTargetDevice;
    uint32_t flags, pad20;
    uint64_t vaSpaceSize, vaStartInternal, vaLimitInternal;
    uint32_t vaMode, pad52;
} NV0080_ALLOC_PARAMETERS;
NV_SIZE (NV0080_ALLOC_PARAMETERS, 56);
NV_AT (NV0080_ALLOC_PARAMETERS, deviceId, 0);
NV_AT (NV0080_ALLOC_PARAMETERS, hClientShare, 4);
NV_AT (NV0080_ALLOC_PARAMETERS, vaMode, 48);
#define NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES 2u /* no address space without a handle */

/* class/cl0005.h: NV01_EVENT_OS_EVENT. hParentClient: the client of the object that it is about; 0: the caller. */
typedef struct NV_PACKED {
    NvHandle hParentClient, hSrcResource;
    uint32_t hClass, notifyIndex;
    NvP64 data;
} NV0005_ALLOC_PARAMETERS;
NV_SIZE (NV0005_ALLOC_PARAMETERS, 24);

/* nvos.h: FERMI_VASPACE_A. The beginning: 48 bytes in all, from 580.65 on 56. */
typedef struct NV_PACKED {
    uint32_t index, flags;
} NV_VASPACE_ALLOCATION_PARAMETERS;
#define NV_VASPACE_ALLOCATION_FLAGS_IS_FLA 0x200u
#define NV_VASPACE_ALLOCATION_INDEX_GPU_NEW 0u
#define NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE 3u /* the device's default one */

/* nvos.h: NV01_MEMORY_VIRTUAL */
typedef struct NV_PACKED {
    uint64_t offset, limit;
    NvHandle hVASpace;
    uint32_t pad20;
} NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS;
NV_SIZE (NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS, 24);

/* nvos.h: FERMI_CONTEXT_SHARE_A */
typedef struct NV_PACKED {
    NvHandle hVASpace;
    uint32_t flags, subctxId;
} NV_CTXSHARE_ALLOCATION_PARAMETERS;
NV_SIZE (NV_CTXSHARE_ALLOCATION_PARAMETERS, 12);

typedef struct NV_PACKED {
    uint32_t subDeviceId;
} NV2080_ALLOC_PARAMETERS;
NV_SIZE (NV2080_ALLOC_PARAMETERS, 4);

/* class/cl83de.h: GT200_DEBUGGER. hAppClient: the client of the object that it is about; 0: the caller. */
typedef struct NV_PACKED {
    NvHandle hDebuggerClient_Obsolete, hAppClient, hClass3dObject;
} NV83DE_ALLOC_PARAMETERS;
NV_SIZE (NV83DE_ALLOC_PARAMETERS, 12);
NV_AT (NV83DE_ALLOC_PARAMETERS, hAppClient, 4);

/* class/cl00f8.h: NV_MEMORY_FABRIC */
typedef struct NV_PACKED {
    uint64_t alignment, allocSize, pageSize;
    uint32_t allocFlags, pad28;
    struct NV_PACKED {
        uint64_t offset;
        NvHandle hVidMem;
        uint32_t flags;
    } map;
} NV00F8_ALLOCATION_PARAMETERS;
NV_SIZE (NV00F8_ALLOCATION_PARAMETERS, 48);
NV_AT (NV00F8_ALLOCATION_PARAMETERS, allocSize, 8);
NV_AT (NV00F8_ALLOCATION_PARAMETERS, map.hVidMem, 40);

/* nvos.h: KEPLER_CHANNEL_GROUP_A */
typedef struct NV_PACKED {
    NvHandle hObjectError, hObjectEccError, hVASpace;
    uint32_t engineType;
    uint8_t bIsCallingContextVgpuPlugin, pad17[3];
} NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS;
NV_SIZE (NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, 20);
NV_AT (NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, engineType, 12);

/* alloc/alloc_channel.h: *_CHANNEL_GPFIFO_*. The beginning: in all it is 360 bytes, from 570 on 368. */
typedef struct NV_PACKED {
    NvHandle hObjectError, hObjectBuffer;
    uint64_t gpFifoOffset;
    uint32_t gpFifoEntries, flags;
    NvHandle hContextShare, hVASpace, hUserdMemory[8];
    uint64_t userdOffset[8];
    uint32_t engineType;
} NV_CHANNEL_ALLOC_PARAMS;
NV_AT (NV_CHANNEL_ALLOC_PARAMS, engineType, 128);

/* class/cl90cd.h: NV_EVENT_BUFFER. The driver writes records into one memory and where the next one goes into another. */
typedef struct NV_PACKED {
    NvP64 bufferHeader, recordBuffer;
    uint32_t recordSize, recordCount;
    NvP64 vardataBuffer;
    uint32_t vardataBufferSize, recordsFreeThreshold;
    uint64_t notificationHandle;
    uint32_t vardataFreeThreshold;
    NvHandle hSubDevice;
    uint32_t flags;
    NvHandle hBufferHeader, hRecordBuffer, hVardataBuffer;
} NV_EVENT_BUFFER_ALLOC_PARAMETERS;
NV_SIZE (NV_EVENT_BUFFER_ALLOC_PARAMETERS, 72);
NV_AT (NV_EVENT_BUFFER_ALLOC_PARAMETERS, recordCount, 20);
NV_AT (NV_EVENT_BUFFER_ALLOC_PARAMETERS, hSubDevice, 52);
NV_AT (NV_EVENT_BUFFER_ALLOC_PARAMETERS, hRecordBuffer, 64);

/* class/cl90cd.h, class/cl90cdfecs.h: a record of a context switch, NV_EVENT_BUFFER_RECORD_HEADER and NV_EVENT_BUFFER_FECS_RECORD_V2. On x86
 * the time stamp is written last. */
typedef struct NV_PACKED {
    uint16_t type, subtype;
    uint32_t varData;
    uint8_t tag, vmid;
    uint16_t seqno;
    uint32_t context_id, pid;
    uint16_t context_type;
    uint8_t migGpuInstanceId, migComputeInstanceId;
    uint64_t timestamp;
} NV_EVENT_BUFFER_FECS_RECORD;
NV_SIZE (NV_EVENT_BUFFER_FECS_RECORD, 32);
NV_AT (NV_EVENT_BUFFER_FECS_RECORD, tag, 8);
NV_AT (NV_EVENT_BUFFER_FECS_RECORD, seqno, 10);
NV_AT (NV_EVENT_BUFFER_FECS_RECORD, pid, 16);
NV_AT (NV_EVENT_BUFFER_FECS_RECORD, timestamp, 24);

#endif
