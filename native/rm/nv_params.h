/*
 * Params of classes and controls, which the structs of nvos.h point at, under NVIDIA's names. The header of the open kernel
 * modules that a struct is from stands above it. Where only a beginning is the same in every branch from 535 to 595, the struct
 * ends there, and a comment says so; sizes in all are in the tables (abi_535.c, abi_branches.c).
 */
#ifndef NVC_RM_NV_PARAMS_H
#define NVC_RM_NV_PARAMS_H

#include "nv_classes.h"

/* ctrl/ctrl0000/ctrl0000client.h. hResult: the parent's handle, or the number of the class. */
typedef struct NV_PACKED {
    NvHandle hObject;
    uint32_t index;
    union NV_PACKED {
        NvHandle hResult;
        uint64_t iResult;
    } data;
} NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS;
NV_SIZE (NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS, 16);
NV_AT (NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS, data, 8);

typedef struct {
    NvHandle hObject1;
    NvHandle hObject2;
    uint8_t bDuplicates;
} NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS;
NV_SIZE (NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS, 12);
NV_AT (NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS, bDuplicates, 8);

/* ctrl/ctrl0000/ctrl0000unix.h */
typedef struct NV_PACKED {
    uint32_t type;
    union NV_PACKED {
        struct NV_PACKED {
            NvHandle hDevice, hParent, hObject;
        } rmObject;
    } data;
} NV0000_CTRL_OS_UNIX_EXPORT_OBJECT;
NV_SIZE (NV0000_CTRL_OS_UNIX_EXPORT_OBJECT, 16);

typedef struct NV_PACKED {
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT object;
    int32_t fd;
    uint32_t flags;
} NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS;
NV_SIZE (NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS, 24);
NV_AT (NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS, object.data.rmObject.hObject, 12);
NV_AT (NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS, fd, 16);

typedef struct NV_PACKED {
    int32_t fd;
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT object;
} NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS;
NV_SIZE (NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS, 20);
NV_AT (NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS, object.data.rmObject.hParent, 12);
NV_AT (NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS, object.data.rmObject.hObject, 16);

typedef struct NV_PACKED {
    NvHandle hDevice;
    uint16_t maxObjects;
    uint8_t metadata[64], pad70[2];
    int32_t fd;
} NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS;
NV_SIZE (NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS, 76);
NV_AT (NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS, fd, 72);

typedef struct NV_PACKED {
    int32_t fd;
    NvHandle hDevice;
    uint16_t maxObjects;
    uint8_t metadata[64], pad74[2];
    NvHandle objects[512];
    uint16_t numObjects, index;
} NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS;
NV_SIZE (NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS, 2128);
NV_AT (NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS, objects, 76);
NV_AT (NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS, numObjects, 2124);
NV_AT (NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS, index, 2126);

typedef struct NV_PACKED {
    int32_t fd;
    NvHandle hParent, objects[128];
    uint8_t objectTypes[128];
    uint16_t numObjects, index;
} NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS;
NV_SIZE (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS, 652);
NV_AT (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS, hParent, 4);
NV_AT (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS, objects, 8);
NV_AT (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS, numObjects, 648);
NV_AT (NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS, index, 650);

#define SURFACE_UNIT 4096u /* NV0041_CTRL_SURFACE_INFO_PHYS_SIZE_SCALE_FACTOR */
/* ctrl/ctrl0041.h, ctrl/ctrlxxxx.h: entries lie elsewhere */
typedef struct NV_PACKED {
    uint32_t index, data;
} NV0041_CTRL_SURFACE_INFO;
NV_SIZE (NV0041_CTRL_SURFACE_INFO, 8);

typedef struct NV_PACKED {
    uint32_t surfaceInfoListSize, pad4;
    NvP64 surfaceInfoList;
} NV0041_CTRL_GET_SURFACE_INFO_PARAMS;
NV_SIZE (NV0041_CTRL_GET_SURFACE_INFO_PARAMS, 16);
NV_AT (NV0041_CTRL_GET_SURFACE_INFO_PARAMS, surfaceInfoList, 8);

/* ctrl/ctrl2080/ctrl2080gr.h. levelOfDetail 1: simple, the only one that processes get. */
typedef struct NV_PACKED {
    NvHandle hEventBuffer;
    uint32_t recordSize, levelOfDetail, eventFilter;
    uint8_t bAllUsers, pad17[3];
    uint32_t reasonCode;
} NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS;
NV_SIZE (NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS, 24);
NV_AT (NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS, bAllUsers, 16);

/* ctrl/ctrl90cd.h */
typedef struct NV_PACKED {
    uint8_t enable, pad1[3];
    uint32_t flags;
} NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS;
NV_SIZE (NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS, 8);

/* ctrl/ctrl0080/ctrl0080fifo.h */
typedef struct NV_PACKED {
    NvHandle hChannel;
    uint32_t property;
    uint64_t value;
} NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS;
NV_SIZE (NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS, 16);
NV_AT (NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS, value, 8);

/* ctrl/ctrl2080/ctrl2080fb.h: an entry; FB_GET_INFO, whose entries lie elsewhere, and FB_GET_INFO_V2, whose room for
 * them grows from branch to branch */
typedef struct NV_PACKED {
    uint32_t index, data;
} NV2080_CTRL_FB_INFO;
NV_SIZE (NV2080_CTRL_FB_INFO, 8);

typedef struct NV_PACKED {
    uint32_t fbInfoListSize, pad4;
    NvP64 fbInfoList;
} NV2080_CTRL_FB_GET_INFO_PARAMS;
NV_SIZE (NV2080_CTRL_FB_GET_INFO_PARAMS, 16);
NV_AT (NV2080_CTRL_FB_GET_INFO_PARAMS, fbInfoList, 8);

typedef struct NV_PACKED {
    uint32_t fbInfoListSize;
    NV2080_CTRL_FB_INFO fbInfoList[];
} NV2080_CTRL_FB_GET_INFO_V2_PARAMS;
NV_AT (NV2080_CTRL_FB_GET_INFO_V2_PARAMS, fbInfoList, 4);

/* ctrl/ctrl0000/ctrl0000gpu.h */
typedef struct NV_PACKED {
    uint32_t gpuIds[32]; /* NV0000_CTRL_GPU_INVALID_ID behind the last */
} NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS;
NV_SIZE (NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS, 128);

typedef struct NV_PACKED {
    uint32_t gpuId, gpuFlags, deviceInstance, subDeviceInstance, sliStatus, boardId, gpuInstance;
    int32_t numaId;
} NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS;
NV_SIZE (NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS, 32);
NV_AT (NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS, deviceInstance, 8);

/* ctrl/ctrl2080/ctrl2080gpu.h */
typedef struct NV_PACKED {
    uint32_t index, flags, length;
    uint8_t data[256];
} NV2080_CTRL_GPU_GET_GID_INFO_PARAMS;
NV_SIZE (NV2080_CTRL_GPU_GET_GID_INFO_PARAMS, 268);
NV_AT (NV2080_CTRL_GPU_GET_GID_INFO_PARAMS, flags, 4);
NV_AT (NV2080_CTRL_GPU_GET_GID_INFO_PARAMS, length, 8);
NV_AT (NV2080_CTRL_GPU_GET_GID_INFO_PARAMS, data, 12);

typedef struct NV_PACKED {
    uint32_t idType, id, pidTblCount, pidTbl[950];
} NV2080_CTRL_GPU_GET_PIDS_PARAMS;
NV_SIZE (NV2080_CTRL_GPU_GET_PIDS_PARAMS, 3812);
NV_AT (NV2080_CTRL_GPU_GET_PIDS_PARAMS, pidTblCount, 8);
NV_AT (NV2080_CTRL_GPU_GET_PIDS_PARAMS, pidTbl, 12);

/* Bytes. */
typedef struct NV_PACKED {
    uint64_t memPrivate, memSharedOwned, memSharedDuped;
    uint64_t protectedMemPrivate, protectedMemSharedOwned, protectedMemSharedDuped;
} NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA;
NV_SIZE (NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA, 48);

typedef struct NV_PACKED {
    uint32_t computeInstanceId, gpuInstanceId;
} NV2080_CTRL_SMC_SUBSCRIPTION_INFO;

typedef struct NV_PACKED {
    uint32_t pid, index, result, pad12;
    union NV_PACKED {
        NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA vidMemUsage;
    } data;
    NV2080_CTRL_SMC_SUBSCRIPTION_INFO smcSubscription;
} NV2080_CTRL_GPU_PID_INFO;
NV_SIZE (NV2080_CTRL_GPU_PID_INFO, 72);
NV_AT (NV2080_CTRL_GPU_PID_INFO, data, 16);
NV_AT (NV2080_CTRL_GPU_PID_INFO, smcSubscription, 64);

typedef struct NV_PACKED {
    uint32_t pidInfoListCount, pad4;
    NV2080_CTRL_GPU_PID_INFO pidInfoList[200];
} NV2080_CTRL_GPU_GET_PID_INFO_PARAMS;
NV_SIZE (NV2080_CTRL_GPU_GET_PID_INFO_PARAMS, 14408);
NV_AT (NV2080_CTRL_GPU_GET_PID_INFO_PARAMS, pidInfoList, 8);

/* ctrl/ctrl2080/ctrl2080fifo.h */
typedef struct NV_PACKED {
    uint8_t bDisable, pad1[3];
    uint32_t numChannels;
    uint8_t bOnlyDisableScheduling, bRewindGpPut, pad10[6];
    NvP64 pRunlistPreemptEvent;
    NvHandle hClientList[64], hChannelList[64];
} NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS;
NV_SIZE (NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, 536);
NV_AT (NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, numChannels, 4);
NV_AT (NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, pRunlistPreemptEvent, 16);
NV_AT (NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, hClientList, 24);
NV_AT (NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, hChannelList, 280);

/* ctrl/ctrl2080/ctrl2080{gpumon,perf}.h. Samples follow the head, NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL of them: each a time stamp in
 * nanoseconds, then the engines fb, gr, nvenc, nvdec, and from 550 on nvjpg and nvofa. Of an engine this is the beginning; a name of 100 bytes
 * follows, and from 570 on a pointer. util: 1/10000. */
#define NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL 2u
#define NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL 72u
typedef struct NV_PACKED {
    uint8_t type, pad1[3];
    uint32_t bufSize, count, tracker;
} NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS;
NV_SIZE (NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS, 16);

typedef struct NV_PACKED {
    uint32_t util, vgpuScale, procId, subProcessID;
} NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE;
NV_SIZE (NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE, 16);

/* ctrl/ctrl503c.h */
typedef struct NV_PACKED {
    NvHandle hMemory;
    uint32_t pad4;
    uint64_t address, size, offset;
} NV503C_CTRL_REGISTER_VIDMEM_PARAMS;
NV_SIZE (NV503C_CTRL_REGISTER_VIDMEM_PARAMS, 32);
NV_AT (NV503C_CTRL_REGISTER_VIDMEM_PARAMS, address, 8);

/* ctrl/ctrl906f.h. Since 550 a byte follows that the driver writes. */
typedef struct NV_PACKED {
    uint32_t engineID, subdeviceInstance, resetReason;
} NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS;
NV_SIZE (NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS, 12);

/* ctrl/ctrla06c.h. Microseconds. */
typedef struct NV_PACKED {
    uint8_t bWait, bManualTimeout, pad2[2];
    uint32_t timeoutUs;
} NVA06C_CTRL_PREEMPT_PARAMS;
NV_SIZE (NVA06C_CTRL_PREEMPT_PARAMS, 8);
NV_AT (NVA06C_CTRL_PREEMPT_PARAMS, timeoutUs, 4);

typedef struct NV_PACKED {
    uint64_t timesliceUs;
} NVA06C_CTRL_TIMESLICE_PARAMS;
NV_SIZE (NVA06C_CTRL_TIMESLICE_PARAMS, 8);

/* ctrl/ctrl2080/ctrl2080gr.h: GR_SET_CTXSW_PREEMPTION_MODE; and where compute stops when its time is over. */
#define NV2080_GR_PREEMPTION_FLAGS_CILP_SET 0x1u
#define NV2080_GR_PREEMPTION_FLAGS_GFXP_SET 0x2u
#define NV2080_GR_PREEMPTION_COMPUTE_CTA 0x1u
#define NV2080_GR_PREEMPTION_COMPUTE_CILP 0x2u /* at any instruction; 1: at the end of a block, 0: of the kernel */
typedef struct NV_PACKED {
    uint32_t flags;
    NvHandle hChannel;
    uint32_t gfxpPreemptMode, cilpPreemptMode;
    uint64_t grRouteInfo[2];
} NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS;
NV_SIZE (NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS, 32);
NV_AT (NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS, cilpPreemptMode, 12);

#endif
