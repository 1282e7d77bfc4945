/* Branch 535: the first, with every row that the later ones differ from. */
#include "abi.h"

#include "abi_controls.h"

#define COUNT(rows) (sizeof (rows) / sizeof ((rows)[0]))

/* nv_escape.h, nv-ioctl-numbers.h, nv-ioctl-numa.h; sizes of the structs in nv-ioctl.h and nvos.h */
#define ROW(number, kind, size, other, array) [number] = {number, kind, size, other, array, 0}
#define VARIES(number, kind, size, other, array) [number] = {number, kind, size, other, array, 1}
const struct rm_escape rm_abi_escapes[RM_ESCAPES] = {
    ROW (0x27, ESCAPE_MEMORY, 56, 0, 0),      /* RM_ALLOC_MEMORY: NVOS02 and a descriptor */
    ROW (0x29, ESCAPE_FREE, 16, 0, 0),        /* RM_FREE: NVOS00 */
    ROW (ESCAPE_NUMBER_CONTROL, ESCAPE_CONTROL, 32, 0, 0),     /* RM_CONTROL: NVOS54 */
    ROW (0x2b, ESCAPE_ALLOC, 48, 32, 0),      /* RM_ALLOC: NVOS64, NVOS21 */
    ROW (0x34, ESCAPE_DUP, 28, 0, 0),         /* RM_DUP_OBJECT: NVOS55 */
    ROW (0x35, ESCAPE_PLAIN, 24, 0, 0),       /* RM_SHARE: NVOS57 */
    ROW (0x41, ESCAPE_DESCRIPTOR, 56, 0, 0),  /* RM_IDLE_CHANNELS: NVOS30, with three lists */
    ROW (0x4a, ESCAPE_HEAP, 184, 0, 0),       /* RM_VID_HEAP_CONTROL: NVOS32 */
    ROW (0x4d, ESCAPE_FORBIDDEN, 0, 0, 0),    /* RM_ACCESS_REGISTRY */
    ROW (0x4e, ESCAPE_DESCRIPTOR, 56, 0, 0),  /* RM_MAP_MEMORY: NVOS33 and a descriptor */
    ROW (0x4f, ESCAPE_DESCRIPTOR, 32, 0, 0),  /* RM_UNMAP_MEMORY: NVOS34 */
    ROW (0x54, ESCAPE_PLAIN, 56, 0, 0),       /* RM_ALLOC_CONTEXT_DMA2: NVOS39 */
    VARIES (0x57, ESCAPE_PLAIN, 56, 0, 0),       /* RM_MAP_MEMORY_DMA: NVOS46 */
    VARIES (0x58, ESCAPE_PLAIN, 40, 0, 0),       /* RM_UNMAP_MEMORY_DMA: NVOS47 */
    ROW (0x5e, ESCAPE_DESCRIPTOR, 40, 0, 0),  /* RM_UPDATE_DEVICE_MAPPING_INFO: NVOS56 */
    ROW (0xc8, ESCAPE_PLAIN, 72, 0, 1),       /* CARD_INFO */
    ROW (0xc9, ESCAPE_DESCRIPTOR, 4, 0, 0),   /* REGISTER_FD */
    ROW (0xce, ESCAPE_DESCRIPTOR, 16, 0, 0),  /* ALLOC_OS_EVENT */
    ROW (0xcf, ESCAPE_DESCRIPTOR, 16, 0, 0),  /* FREE_OS_EVENT */
    ROW (0xd1, ESCAPE_PLAIN, 12, 0, 0),       /* STATUS_CODE */
    ROW (0xd2, ESCAPE_PLAIN, 72, 0, 0),       /* CHECK_VERSION_STR */
    ROW (0xd3, ESCAPE_FORBIDDEN, 0, 0, 0),    /* IOCTL_XFER_CMD: any other escape, wrapped */
    ROW (0xd4, ESCAPE_PLAIN, 4, 0, 1),        /* ATTACH_GPUS_TO_FD */
    ROW (0xd6, ESCAPE_PLAIN, 8, 0, 0),        /* SYS_PARAMS */
    ROW (0xd7, ESCAPE_PLAIN, 560, 0, 0),      /* NUMA_INFO */
    ROW (0xd8, ESCAPE_FORBIDDEN, 0, 0, 0),    /* SET_NUMA_STATUS */
    VARIES (0xd9, ESCAPE_DESCRIPTOR, 2600, 0, 0), /* EXPORT_TO_DMABUF_FD */
    VARIES (0xda, ESCAPE_UNKNOWN, 0, 0, 0),
};

/* rmapi/resource_list.h and class/; what only the kernel or root can allocate is forbidden where it reaches memory */
static const struct rm_class classes[] = {
    {0x0000, CLASS_CLIENT, 4, 0}, /* NV01_ROOT */
    {0x0001, CLASS_CLIENT, 4, 0}, /* NV01_ROOT_NON_PRIV */
    {0x0002, CLASS_PLAIN, 32, 0}, /* NV01_CONTEXT_DMA */
    {0x0004, CLASS_PLAIN, 0, 0}, /* NV01_TIMER */
    {0x003e, CLASS_SYSTEM_MEMORY, 120, 0}, /* NV01_MEMORY_SYSTEM */
    {0x003f, CLASS_SYSTEM_MEMORY, 0, 0}, /* NV01_MEMORY_LOCAL_PRIVILEGED */
    {0x0040, CLASS_VIDEO_MEMORY, 120, 64}, /* NV01_MEMORY_LOCAL_USER */
    {0x0041, CLASS_CLIENT, 4, 0}, /* NV01_ROOT_CLIENT */
    {0x0050, CLASS_FORBIDDEN, 16, 0}, /* NV_CE_UTILS */
    {0x0060, CLASS_PLAIN, 4, 0}, /* NV0060_SYNC_GPU_BOOST */
    {0x0070, CLASS_VIRTUAL_RANGE, 24, 0}, /* NV01_MEMORY_VIRTUAL */
    {0x0071, CLASS_CALLER, 40, 0}, /* NV01_MEMORY_SYSTEM_OS_DESCRIPTOR */
    {0x0073, CLASS_PLAIN, 0, 0}, /* NV04_DISPLAY_COMMON */
    {0x0076, CLASS_FORBIDDEN, 0, 0}, /* NV01_MEMORY_FRAMEBUFFER_CONSOLE */
    {0x0079, CLASS_PLAIN, 24, 0}, /* NV01_EVENT_OS_EVENT: its descriptor is a name that ALLOC_OS_EVENT gave, no more */
    {0x0080, CLASS_DEVICE, 56, 0}, /* NV01_DEVICE_0 */
    {0x0081, CLASS_FORBIDDEN, 152, 0}, /* NV01_MEMORY_LIST_SYSTEM */
    {0x0082, CLASS_FORBIDDEN, 152, 0}, /* NV01_MEMORY_LIST_FBMEM */
    {0x0083, CLASS_FORBIDDEN, 152, 0}, /* NV01_MEMORY_LIST_OBJECT */
    {0x0092, CLASS_FORBIDDEN, 32, 0}, /* NV0092_RG_LINE_CALLBACK */
    {0x00c2, CLASS_FORBIDDEN, 24, 0}, /* NV01_MEMORY_LOCAL_PHYSICAL */
    {0x00da, CLASS_PLAIN, 16, 0}, /* NV_SEMAPHORE_SURFACE */
    {0x00de, CLASS_PLAIN, 4, 0}, /* RM_USER_SHARED_DATA */
    {0x00f8, CLASS_VIDEO_MEMORY, 48, 8}, /* NV_MEMORY_FABRIC */
    {0x00fd, CLASS_CALLER, 40, 0}, /* NV_MEMORY_MULTICAST_FABRIC */
    {0x00fe, CLASS_PLAIN, 1, 0}, /* NV_MEMORY_MAPPER */
    {0x2080, CLASS_SUBDEVICE, 4, 0}, /* NV20_SUBDEVICE_0 */
    {0x2081, CLASS_PLAIN, 4, 0}, /* NV2081_BINAPI */
    {0x2082, CLASS_FORBIDDEN, 4, 0}, /* NV2082_BINAPI_PRIVILEGED */
    {0x208f, CLASS_PLAIN, 0, 0}, /* NV20_SUBDEVICE_DIAG */
    {0x503b, CLASS_PLAIN, 72, 0}, /* NV50_P2P */
    {0x503c, CLASS_PLAIN, 4, 0}, /* NV50_THIRD_PARTY_P2P */
    {0x50a0, CLASS_VIRTUAL_RANGE, 120, 0}, /* NV50_MEMORY_VIRTUAL */
    {0x83de, CLASS_PLAIN, 12, 0}, /* GT200_DEBUGGER */
    {0x900e, CLASS_PLAIN, 0, 0}, /* MPS_COMPUTE */
    {0x902d, CLASS_COMPUTE, 16, 0}, /* FERMI_TWOD_A */
    {0x9067, CLASS_CONTEXT_SHARE, 12, 0}, /* FERMI_CONTEXT_SHARE_A */
    {0x906f, CLASS_CHANNEL, 360, 0}, /* GF100_CHANNEL_GPFIFO */
    {0x9072, CLASS_PLAIN, 12, 0}, /* GF100_DISP_SW */
    {0x9096, CLASS_PLAIN, 0, 0}, /* GF100_ZBC_CLEAR */
    {0x90e6, CLASS_PLAIN, 0, 0}, /* GF100_SUBDEVICE_MASTER */
    {0x90e7, CLASS_PLAIN, 0, 0}, /* GF100_SUBDEVICE_INFOROM */
    {0x90f1, CLASS_PLAIN, 48, 0}, /* FERMI_VASPACE_A */
    {0xa06c, CLASS_GROUP, 20, 0}, /* KEPLER_CHANNEL_GROUP_A */
    {0xa06f, CLASS_CHANNEL, 360, 0}, /* KEPLER_CHANNEL_GPFIFO_A */
    {0xa140, CLASS_COMPUTE, 16, 0}, /* KEPLER_INLINE_TO_MEMORY_B */
    {0xa16f, CLASS_CHANNEL, 360, 0}, /* KEPLER_CHANNEL_GPFIFO_B */
    {0xb06f, CLASS_CHANNEL, 360, 0}, /* MAXWELL_CHANNEL_GPFIFO_A */
    {0xb0b5, CLASS_ENGINE, 8, 0}, /* MAXWELL_DMA_COPY_A */
    {0xb4b7, CLASS_ENGINE, 12, 0}, /* NVB4B7_VIDEO_ENCODER */
    {0xb8b0, CLASS_ENGINE, 12, 0}, /* NVB8B0_VIDEO_DECODER */
    {0xb8d1, CLASS_ENGINE, 12, 0}, /* NVB8D1_VIDEO_NVJPG */
    {0xb8fa, CLASS_ENGINE, 8, 0}, /* NVB8FA_VIDEO_OFA */
    {0xc06f, CLASS_CHANNEL, 360, 0}, /* PASCAL_CHANNEL_GPFIFO_A */
    {0xc0b5, CLASS_ENGINE, 8, 0}, /* PASCAL_DMA_COPY_A */
    {0xc361, CLASS_USERMODE, 0, 0}, /* VOLTA_USERMODE_A */
    {0xc36f, CLASS_CHANNEL, 360, 0}, /* VOLTA_CHANNEL_GPFIFO_A */
    {0xc461, CLASS_USERMODE, 0, 0}, /* TURING_USERMODE_A */
    {0xc46f, CLASS_CHANNEL, 360, 0}, /* TURING_CHANNEL_GPFIFO_A */
    {0xc4b0, CLASS_ENGINE, 12, 0}, /* NVC4B0_VIDEO_DECODER */
    {0xc4b7, CLASS_ENGINE, 12, 0}, /* NVC4B7_VIDEO_ENCODER */
    {0xc4d1, CLASS_ENGINE, 12, 0}, /* NVC4D1_VIDEO_NVJPG */
    {0xc561, CLASS_USERMODE, 0, 0}, /* AMPERE_USERMODE_A */
    {0xc56f, CLASS_CHANNEL, 360, 0}, /* AMPERE_CHANNEL_GPFIFO_A */
    {0xc597, CLASS_COMPUTE, 16, 0}, /* TURING_A */
    {0xc5b5, CLASS_ENGINE, 8, 0}, /* TURING_DMA_COPY_A */
    {0xc5c0, CLASS_COMPUTE, 16, 0}, /* TURING_COMPUTE_A */
    {0xc637, CLASS_CALLER, 16, 0}, /* AMPERE_SMC_PARTITION_REF: a descriptor of nvidia-caps, as the next three */
    {0xc638, CLASS_CALLER, 16, 0}, /* AMPERE_SMC_EXEC_PARTITION_REF */
    {0xc639, CLASS_CALLER, 8, 0}, /* AMPERE_SMC_CONFIG_SESSION */
    {0xc640, CLASS_CALLER, 8, 0}, /* AMPERE_SMC_MONITOR_SESSION */
    {0xc661, CLASS_USERMODE, 2, 0}, /* HOPPER_USERMODE_A */
    {0xc697, CLASS_COMPUTE, 16, 0}, /* AMPERE_A */
    {0xc6b0, CLASS_ENGINE, 12, 0}, /* NVC6B0_VIDEO_DECODER */
    {0xc6b5, CLASS_ENGINE, 8, 0}, /* AMPERE_DMA_COPY_A */
    {0xc6c0, CLASS_COMPUTE, 16, 0}, /* AMPERE_COMPUTE_A */
    {0xc6fa, CLASS_ENGINE, 8, 0}, /* NVC6FA_VIDEO_OFA */
    {0xc797, CLASS_COMPUTE, 16, 0}, /* AMPERE_B */
    {0xc7b0, CLASS_ENGINE, 12, 0}, /* NVC7B0_VIDEO_DECODER */
    {0xc7b5, CLASS_ENGINE, 8, 0}, /* AMPERE_DMA_COPY_B */
    {0xc7b7, CLASS_ENGINE, 12, 0}, /* NVC7B7_VIDEO_ENCODER */
    {0xc7c0, CLASS_COMPUTE, 16, 0}, /* AMPERE_COMPUTE_B */
    {0xc7fa, CLASS_ENGINE, 8, 0}, /* NVC7FA_VIDEO_OFA */
    {0xc86f, CLASS_CHANNEL, 360, 0}, /* HOPPER_CHANNEL_GPFIFO_A */
    {0xc8b5, CLASS_ENGINE, 8, 0}, /* HOPPER_DMA_COPY_A */
    {0xc997, CLASS_COMPUTE, 16, 0}, /* ADA_A */
    {0xc9b0, CLASS_ENGINE, 12, 0}, /* NVC9B0_VIDEO_DECODER */
    {0xc9b7, CLASS_ENGINE, 12, 0}, /* NVC9B7_VIDEO_ENCODER */
    {0xc9c0, CLASS_COMPUTE, 16, 0}, /* ADA_COMPUTE_A */
    {0xc9d1, CLASS_ENGINE, 12, 0}, /* NVC9D1_VIDEO_NVJPG */
    {0xc9fa, CLASS_ENGINE, 8, 0}, /* NVC9FA_VIDEO_OFA */
    {0xcb33, CLASS_PLAIN, 4, 0}, /* NV_CONFIDENTIAL_COMPUTE */
    {0xcb97, CLASS_COMPUTE, 16, 0}, /* HOPPER_A */
    {0xcba2, CLASS_PLAIN, 0, 0}, /* HOPPER_SEC2_WORK_LAUNCH_A */
    {0xcbc0, CLASS_COMPUTE, 16, 0}, /* HOPPER_COMPUTE_A */
};

const struct rm_abi rm_abi_535 = {
    .branch = 535,
    .parent = NULL,
    .escapes = rm_abi_escapes,
    .escape_count = COUNT (rm_abi_escapes),
    .classes = classes,
    .class_count = COUNT (classes),
    .controls = controls,
    .control_count = COUNT (controls),
    .first_graphics = 1,
    .last_graphics = 8,
};
