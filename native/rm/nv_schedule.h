/* Params of controls that schedule, as nv_params.h has others. */
#ifndef NVC_RM_NV_SCHEDULE_H
#define NVC_RM_NV_SCHEDULE_H

#include "nvos.h"

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

/* ctrl/ctrl2080/ctrl2080ce.h */
typedef struct NV_PACKED {
    uint32_t ceEngineType;
    uint8_t capsTbl[2], pad6[2];
} NV2080_CTRL_CE_GET_CAPS_V2_PARAMS;
NV_SIZE (NV2080_CTRL_CE_GET_CAPS_V2_PARAMS, 8);

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
