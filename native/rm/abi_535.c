/* Branch 535: the first, with every row that the later ones differ from. */
#include "abi.h"

#include "abi_controls.h"
#include "nv_params.h"

#define COUNT(rows) (sizeof (rows) / sizeof ((rows)[0]))

/* Sizes of the structs in nvos.h, nv-unix-nvos-params-wrappers.h and nv-ioctl.h. */
#define ROW(number, kind, size, other, array) [number] = { number, kind, size, other, array, 0 }
#define VARIES(number, kind, size, other, array) [number] = { number, kind, size, other, array, 1 }
const struct rm_escape rm_abi_escapes[RM_ESCAPES] = {
    ROW (NV_ESC_RM_ALLOC_MEMORY, ESCAPE_MEMORY, sizeof (nv_ioctl_nvos02_parameters_with_fd), 0, 0),
    ROW (NV_ESC_RM_ALLOC_OBJECT, ESCAPE_FORBIDDEN, 20, 0, 0), /* NVOS05: ALLOC without params */
    ROW (NV_ESC_RM_FREE, ESCAPE_FREE, sizeof (NVOS00_PARAMETERS), 0, 0),
    ROW (NV_ESC_RM_CONTROL, ESCAPE_CONTROL, sizeof (NVOS54_PARAMETERS), 0, 0),
    ROW (NV_ESC_RM_ALLOC, ESCAPE_ALLOC, sizeof (NVOS64_PARAMETERS), sizeof (NVOS21_PARAMETERS), 0),
    ROW (NV_ESC_RM_DUP_OBJECT, ESCAPE_DUP, sizeof (NVOS55_PARAMETERS), 0, 0),
    ROW (NV_ESC_RM_SHARE, ESCAPE_PLAIN, sizeof (NVOS57_PARAMETERS), 0, 0),
    ROW (NV_ESC_RM_I2C_ACCESS, ESCAPE_FORBIDDEN, 32, 0, 0),
    ROW (NV_ESC_RM_IDLE_CHANNELS, ESCAPE_IDLE, sizeof (NVOS30_PARAMETERS), 0, 0),
    ROW (NV_ESC_RM_VID_HEAP_CONTROL, ESCAPE_HEAP, sizeof (NVOS32_PARAMETERS), 0, 0),
    ROW (NV_ESC_RM_ACCESS_REGISTRY, ESCAPE_FORBIDDEN, 72, 0, 0),
    ROW (NV_ESC_RM_MAP_MEMORY, ESCAPE_DESCRIPTOR, 56, 0, 0), /* NVOS33 and a descriptor */
    ROW (NV_ESC_RM_UNMAP_MEMORY, ESCAPE_DESCRIPTOR, 32, 0, 0), /* NVOS34 */
    ROW (NV_ESC_RM_GET_EVENT_DATA, ESCAPE_DESCRIPTOR, 16, 0, 0), /* NVOS41 */
    ROW (NV_ESC_RM_ALLOC_CONTEXT_DMA2, ESCAPE_PLAIN, 56, 0, 0), /* NVOS39 */
    VARIES (NV_ESC_RM_MAP_MEMORY_DMA, ESCAPE_PLAIN, 56, 0, 0), /* NVOS46 */
    VARIES (NV_ESC_RM_UNMAP_MEMORY_DMA, ESCAPE_PLAIN, 40, 0, 0), /* NVOS47 */
    ROW (NV_ESC_RM_BIND_CONTEXT_DMA, ESCAPE_PLAIN, 16, 0, 0), /* NVOS49 */
    ROW (NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, ESCAPE_DESCRIPTOR, 40, 0, 0), /* NVOS56 */
    ROW (NV_ESC_RM_LOCKLESS_DIAGNOSTIC, ESCAPE_FORBIDDEN, 4024, 15412, 0), /* the log; NVLOG_CTRL before 545 */
    ROW (NV_ESC_CARD_INFO, ESCAPE_PLAIN, 72, 0, 1),
    ROW (NV_ESC_REGISTER_FD, ESCAPE_DESCRIPTOR, 4, 0, 0),
    ROW (NV_ESC_ALLOC_OS_EVENT, ESCAPE_DESCRIPTOR, 16, 0, 0),
    ROW (NV_ESC_FREE_OS_EVENT, ESCAPE_DESCRIPTOR, 16, 0, 0),
    ROW (NV_ESC_STATUS_CODE, ESCAPE_PLAIN, 12, 0, 0),
    ROW (NV_ESC_CHECK_VERSION_STR, ESCAPE_PLAIN, 72, 0, 0),
    ROW (NV_ESC_IOCTL_XFER_CMD, ESCAPE_FORBIDDEN, 16, 0, 0), /* any other escape, wrapped */
    ROW (NV_ESC_ATTACH_GPUS_TO_FD, ESCAPE_PLAIN, 4, 0, 1),
    ROW (NV_ESC_QUERY_DEVICE_INTR, ESCAPE_PLAIN, 8, 0, 0), /* before 595 also a longer one */
    ROW (NV_ESC_SYS_PARAMS, ESCAPE_ANSWERED, 8, 0, 0), /* the first value is every program's */
    ROW (NV_ESC_NUMA_INFO, ESCAPE_PLAIN, 560, 0, 0),
    ROW (NV_ESC_SET_NUMA_STATUS, ESCAPE_FORBIDDEN, 4, 0, 0),
    VARIES (NV_ESC_EXPORT_TO_DMABUF_FD, ESCAPE_DESCRIPTOR, 2600, 0, 0),
    VARIES (NV_ESC_WAIT_OPEN_COMPLETE, ESCAPE_UNKNOWN, 0, 0, 0),
};

/* rmapi/resource_list.h and class/; what only the kernel or root can allocate is forbidden where it reaches memory */
static const struct rm_class classes[] = {
    { NV01_ROOT, CLASS_CLIENT, 4, 0 },
    { NV01_ROOT_NON_PRIV, CLASS_CLIENT, 4, 0 },
    { 0x0002, CLASS_PLAIN, 32, 0 }, /* NV01_CONTEXT_DMA */
    { 0x0004, CLASS_PLAIN, 0, 0 }, /* NV01_TIMER */
    { NV01_EVENT, CLASS_PLAIN, 24, 0 }, /* its params name the class (rmapi_specific.c): Vulkan's */
    { NV01_MEMORY_SYSTEM, CLASS_SYSTEM_MEMORY, 120, 0 },
    { NV01_MEMORY_LOCAL_PRIVILEGED, CLASS_SYSTEM_MEMORY, 0, 0 },
    { NV01_MEMORY_LOCAL_USER, CLASS_VIDEO_MEMORY, 120, offsetof (NV_MEMORY_ALLOCATION_PARAMS, size) },
    { NV01_ROOT_CLIENT, CLASS_CLIENT, 4, 0 },
    { 0x0050, CLASS_FORBIDDEN, 16, 0 }, /* NV_CE_UTILS */
    { 0x0060, CLASS_FORBIDDEN, 4, 0 }, /* NV0060_SYNC_GPU_BOOST: ties the clocks of several GPUs together, for all clients */
    { 0x0070, CLASS_VIRTUAL_RANGE, 24, 0 }, /* NV01_MEMORY_VIRTUAL */
    { NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, CLASS_CALLER_BOUND, 40, 0 },
    { 0x0073, CLASS_PLAIN, 0, 0 }, /* NV04_DISPLAY_COMMON */
    { 0x0076, CLASS_FORBIDDEN, 0, 0 }, /* NV01_MEMORY_FRAMEBUFFER_CONSOLE */
    { NV01_EVENT_OS_EVENT, CLASS_PLAIN, 24, 0 }, /* its descriptor is a name that ALLOC_OS_EVENT gave, no more */
    { NV01_DEVICE_0, CLASS_DEVICE, 56, 0 },
    { 0x0081, CLASS_FORBIDDEN, 152, 0 }, /* NV01_MEMORY_LIST_SYSTEM */
    { 0x0082, CLASS_FORBIDDEN, 152, 0 }, /* NV01_MEMORY_LIST_FBMEM */
    { 0x0083, CLASS_FORBIDDEN, 152, 0 }, /* NV01_MEMORY_LIST_OBJECT */
    { 0x0092, CLASS_FORBIDDEN, 32, 0 }, /* NV0092_RG_LINE_CALLBACK */
    { NV01_MEMORY_LOCAL_PHYSICAL, CLASS_FORBIDDEN, 24, 0 },
    { 0x00da, CLASS_PLAIN, 16, 0 }, /* NV_SEMAPHORE_SURFACE */
    { 0x00de, CLASS_PLAIN, 4, 0 }, /* RM_USER_SHARED_DATA */
    { NV_MEMORY_FABRIC, CLASS_VIDEO_MEMORY, 48, offsetof (NV00F8_ALLOCATION_PARAMETERS, allocSize) },
    { NV_MEMORY_MULTICAST_FABRIC, CLASS_CALLER_BOUND, 40, 0 },
    { 0x00fe, CLASS_PLAIN, 1, 0 }, /* NV_MEMORY_MAPPER */
    { NV20_SUBDEVICE_0, CLASS_SUBDEVICE, 4, 0 },
    { NV2081_BINAPI, CLASS_PLAIN, 4, 0 },
    { 0x2082, CLASS_FORBIDDEN, 4, 0 }, /* NV2082_BINAPI_PRIVILEGED */
    { 0x208f, CLASS_PLAIN, 0, 0 }, /* NV20_SUBDEVICE_DIAG */
    { 0x503b, CLASS_PLAIN, 72, 0 }, /* NV50_P2P */
    { NV50_THIRD_PARTY_P2P, CLASS_PLAIN, 4, 0 },
    { NV50_MEMORY_VIRTUAL, CLASS_VIRTUAL_RANGE, 120, 0 },
    { 0x83de, CLASS_DEBUGGER, 12, 0 }, /* GT200_DEBUGGER */
    { 0x900e, CLASS_PLAIN, 0, 0 }, /* MPS_COMPUTE */
    { FERMI_TWOD_A, CLASS_COMPUTE, 16, 0 },
    { FERMI_CONTEXT_SHARE_A, CLASS_CONTEXT_SHARE, 12, 0 },
    { 0x906f, CLASS_CHANNEL, 360, 0 }, /* GF100_CHANNEL_GPFIFO */
    { 0x9072, CLASS_PLAIN, 12, 0 }, /* GF100_DISP_SW */
    { 0x9096, CLASS_PLAIN, 0, 0 }, /* GF100_ZBC_CLEAR */
    { GF100_SUBDEVICE_MASTER, CLASS_PLAIN, 0, 0 },
    { 0x90e7, CLASS_PLAIN, 0, 0 }, /* GF100_SUBDEVICE_INFOROM */
    { FERMI_VASPACE_A, CLASS_PLAIN, 48, 0 },
    { KEPLER_CHANNEL_GROUP_A, CLASS_GROUP, 20, 0 },
    { 0xa06f, CLASS_CHANNEL, 360, 0 }, /* KEPLER_CHANNEL_GPFIFO_A */
    { 0xa140, CLASS_COMPUTE, 16, 0 }, /* KEPLER_INLINE_TO_MEMORY_B */
    { 0xa16f, CLASS_CHANNEL, 360, 0 }, /* KEPLER_CHANNEL_GPFIFO_B */
    { 0xb06f, CLASS_CHANNEL, 360, 0 }, /* MAXWELL_CHANNEL_GPFIFO_A */
    { 0xb0b5, CLASS_ENGINE, 8, 0 }, /* MAXWELL_DMA_COPY_A */
    { 0xb4b7, CLASS_ENGINE, 12, 0 }, /* NVB4B7_VIDEO_ENCODER */
    { 0xb8b0, CLASS_ENGINE, 12, 0 }, /* NVB8B0_VIDEO_DECODER */
    { 0xb8d1, CLASS_ENGINE, 12, 0 }, /* NVB8D1_VIDEO_NVJPG */
    { 0xb8fa, CLASS_ENGINE, 8, 0 }, /* NVB8FA_VIDEO_OFA */
    { 0xc06f, CLASS_CHANNEL, 360, 0 }, /* PASCAL_CHANNEL_GPFIFO_A */
    { 0xc0b5, CLASS_ENGINE, 8, 0 }, /* PASCAL_DMA_COPY_A */
    { 0xc361, CLASS_USERMODE, 0, 0 }, /* VOLTA_USERMODE_A */
    { 0xc36f, CLASS_CHANNEL, 360, 0 }, /* VOLTA_CHANNEL_GPFIFO_A */
    { 0xc461, CLASS_USERMODE, 0, 0 }, /* TURING_USERMODE_A */
    { TURING_CHANNEL_GPFIFO_A, CLASS_CHANNEL, 360, 0 },
    { 0xc4b0, CLASS_ENGINE, 12, 0 }, /* NVC4B0_VIDEO_DECODER */
    { 0xc4b7, CLASS_ENGINE, 12, 0 }, /* NVC4B7_VIDEO_ENCODER */
    { 0xc4d1, CLASS_ENGINE, 12, 0 }, /* NVC4D1_VIDEO_NVJPG */
    { 0xc561, CLASS_USERMODE, 0, 0 }, /* AMPERE_USERMODE_A */
    { 0xc56f, CLASS_CHANNEL, 360, 0 }, /* AMPERE_CHANNEL_GPFIFO_A */
    { 0xc597, CLASS_COMPUTE, 16, 0 }, /* TURING_A */
    { 0xc5b5, CLASS_ENGINE, 8, 0 }, /* TURING_DMA_COPY_A */
    { TURING_COMPUTE_A, CLASS_COMPUTE, 16, 0 },
    { 0xc637, CLASS_CALLER_BOUND, 16, 0 }, /* AMPERE_SMC_PARTITION_REF: a descriptor of nvidia-caps, as the next three */
    { 0xc638, CLASS_CALLER_BOUND, 16, 0 }, /* AMPERE_SMC_EXEC_PARTITION_REF */
    { 0xc639, CLASS_CALLER_BOUND, 8, 0 }, /* AMPERE_SMC_CONFIG_SESSION */
    { 0xc640, CLASS_CALLER_BOUND, 8, 0 }, /* AMPERE_SMC_MONITOR_SESSION */
    { 0xc661, CLASS_USERMODE, 2, 0 }, /* HOPPER_USERMODE_A */
    { 0xc697, CLASS_COMPUTE, 16, 0 }, /* AMPERE_A */
    { 0xc6b0, CLASS_ENGINE, 12, 0 }, /* NVC6B0_VIDEO_DECODER */
    { 0xc6b5, CLASS_ENGINE, 8, 0 }, /* AMPERE_DMA_COPY_A */
    { 0xc6c0, CLASS_COMPUTE, 16, 0 }, /* AMPERE_COMPUTE_A */
    { 0xc6fa, CLASS_ENGINE, 8, 0 }, /* NVC6FA_VIDEO_OFA */
    { 0xc797, CLASS_COMPUTE, 16, 0 }, /* AMPERE_B */
    { 0xc7b0, CLASS_ENGINE, 12, 0 }, /* NVC7B0_VIDEO_DECODER */
    { 0xc7b5, CLASS_ENGINE, 8, 0 }, /* AMPERE_DMA_COPY_B */
    { 0xc7b7, CLASS_ENGINE, 12, 0 }, /* NVC7B7_VIDEO_ENCODER */
    { 0xc7c0, CLASS_COMPUTE, 16, 0 }, /* AMPERE_COMPUTE_B */
    { 0xc7fa, CLASS_ENGINE, 8, 0 }, /* NVC7FA_VIDEO_OFA */
    { HOPPER_CHANNEL_GPFIFO_A, CLASS_CHANNEL, 360, 0 },
    { 0xc8b5, CLASS_ENGINE, 8, 0 }, /* HOPPER_DMA_COPY_A */
    { 0xc997, CLASS_COMPUTE, 16, 0 }, /* ADA_A */
    { 0xc9b0, CLASS_ENGINE, 12, 0 }, /* NVC9B0_VIDEO_DECODER */
    { 0xc9b7, CLASS_ENGINE, 12, 0 }, /* NVC9B7_VIDEO_ENCODER */
    { 0xc9c0, CLASS_COMPUTE, 16, 0 }, /* ADA_COMPUTE_A */
    { 0xc9d1, CLASS_ENGINE, 12, 0 }, /* NVC9D1_VIDEO_NVJPG */
    { 0xc9fa, CLASS_ENGINE, 8, 0 }, /* NVC9FA_VIDEO_OFA */
    { 0xcb33, CLASS_PLAIN, 4, 0 }, /* NV_CONFIDENTIAL_COMPUTE */
    { 0xcb97, CLASS_COMPUTE, 16, 0 }, /* HOPPER_A */
    { 0xcba2, CLASS_PLAIN, 0, 0 }, /* HOPPER_SEC2_WORK_LAUNCH_A */
    { HOPPER_COMPUTE_A, CLASS_COMPUTE, 16, 0 },
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
