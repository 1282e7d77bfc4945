/* Branches after 535: what changed in each. A branch without changes of its own would be one line of the list below. */
#include "abi.h"
#include "nv_params.h"

#define COUNT(rows) (sizeof (rows) / sizeof ((rows)[0]))

/* 545 */
static const struct rm_class classes_545[] = {
    { NV01_MEMORY_SYSTEM, CLASS_SYSTEM_MEMORY, 128, 0 },
    { NV01_MEMORY_LOCAL_USER, CLASS_VIDEO_MEMORY, 128, offsetof (NV_MEMORY_ALLOCATION_PARAMS, size) },
    { 0x00de, CLASS_PLAIN, 8, 0 }, /* RM_USER_SHARED_DATA */
    { 0x00e0, CLASS_FORBIDDEN, 244, 0 }, /* NV_MEMORY_EXPORT */
    { NV_MEMORY_MULTICAST_FABRIC, CLASS_CALLER_BOUND, 80, 0 },
    { NV50_MEMORY_VIRTUAL, CLASS_VIRTUAL_RANGE, 128, 0 },
    { 0xb8fa, CLASS_ENGINE, 12, 0 }, /* NVB8FA_VIDEO_OFA */
    { 0xc6fa, CLASS_ENGINE, 12, 0 }, /* NVC6FA_VIDEO_OFA */
    { 0xc7fa, CLASS_ENGINE, 12, 0 }, /* NVC7FA_VIDEO_OFA */
    { 0xc9fa, CLASS_ENGINE, 12, 0 }, /* NVC9FA_VIDEO_OFA */
};
static const struct rm_control controls_545[] = {
    { NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, CONTROL_DESCRIPTOR, 80 },
};
static const struct rm_abi abi_545 = {
    .branch = 545,
    .parent = &rm_abi_535,
    .classes = classes_545,
    .class_count = COUNT (classes_545),
    .controls = controls_545,
    .control_count = COUNT (controls_545),
    .first_graphics = 1,
    .last_graphics = 8,
};

/* 550 */
static const struct rm_escape escapes_550[] = {
    { NV_ESC_RM_UNMAP_MEMORY_DMA, ESCAPE_MAPPING, sizeof (NVOS47_PARAMETERS), 0, 0, 0 },
    { NV_ESC_WAIT_OPEN_COMPLETE, ESCAPE_PLAIN, 8, 0, 0, 0 },
};
static const struct rm_class classes_550[] = {
    { 0x0050, CLASS_FORBIDDEN, 24, 0 }, /* NV_CE_UTILS */
    { 0x00fe, CLASS_PLAIN, 8, 0 }, /* NV_MEMORY_MAPPER */
};
static const struct rm_control controls_550[] = {
    { NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, CONTROL_POINTER, 176 }, /* a second list */
};
static const struct rm_abi abi_550 = {
    .branch = 550,
    .parent = &abi_545,
    .escapes = escapes_550,
    .escape_count = COUNT (escapes_550),
    .classes = classes_550,
    .class_count = COUNT (classes_550),
    .controls = controls_550,
    .control_count = COUNT (controls_550),
    .first_graphics = 1,
    .last_graphics = 8,
};

/* 555 */
static const struct rm_class classes_555[] = {
    { 0x00fe, CLASS_PLAIN, 24, 0 }, /* NV_MEMORY_MAPPER */
};
static const struct rm_abi abi_555 = {
    .branch = 555,
    .parent = &abi_550,
    .classes = classes_555,
    .class_count = COUNT (classes_555),
    .first_graphics = 1,
    .last_graphics = 8,
};

/* 560 */
static const struct rm_class classes_560[] = {
    { 0xc96f, CLASS_CHANNEL, 360, 0 }, /* BLACKWELL_CHANNEL_GPFIFO_A */
    { 0xc9b5, CLASS_ENGINE, 8, 0 }, /* BLACKWELL_DMA_COPY_A */
    { 0xcd40, CLASS_COMPUTE, 16, 0 }, /* BLACKWELL_INLINE_TO_MEMORY_A */
    { 0xcd97, CLASS_COMPUTE, 16, 0 }, /* BLACKWELL_A */
    { 0xcdb0, CLASS_ENGINE, 12, 0 }, /* NVCDB0_VIDEO_DECODER */
    { 0xcdc0, CLASS_COMPUTE, 16, 0 }, /* BLACKWELL_COMPUTE_A */
    { 0xcdd1, CLASS_ENGINE, 12, 0 }, /* NVCDD1_VIDEO_NVJPG */
    { 0xcdfa, CLASS_ENGINE, 12, 0 }, /* NVCDFA_VIDEO_OFA */
};
static const struct rm_abi abi_560 = {
    .branch = 560,
    .parent = &abi_555,
    .classes = classes_560,
    .class_count = COUNT (classes_560),
    .first_graphics = 1,
    .last_graphics = 8,
};

/* 570 */
static const struct rm_escape escapes_570[] = {
    { NV_ESC_EXPORT_TO_DMABUF_FD, ESCAPE_DESCRIPTOR, 2608, 0, 0, 0 },
};
static const struct rm_class classes_570[] = {
    { 0x906f, CLASS_CHANNEL, 368, 0 }, /* GF100_CHANNEL_GPFIFO */
    { 0xa06f, CLASS_CHANNEL, 368, 0 }, /* KEPLER_CHANNEL_GPFIFO_A */
    { 0xa16f, CLASS_CHANNEL, 368, 0 }, /* KEPLER_CHANNEL_GPFIFO_B */
    { 0xb06f, CLASS_CHANNEL, 368, 0 }, /* MAXWELL_CHANNEL_GPFIFO_A */
    { 0xc06f, CLASS_CHANNEL, 368, 0 }, /* PASCAL_CHANNEL_GPFIFO_A */
    { 0xc36f, CLASS_CHANNEL, 368, 0 }, /* VOLTA_CHANNEL_GPFIFO_A */
    { TURING_CHANNEL_GPFIFO_A, CLASS_CHANNEL, 368, 0 },
    { 0xc56f, CLASS_CHANNEL, 368, 0 }, /* AMPERE_CHANNEL_GPFIFO_A */
    { 0xc761, CLASS_USERMODE, 2, 0 }, /* BLACKWELL_USERMODE_A */
    { HOPPER_CHANNEL_GPFIFO_A, CLASS_CHANNEL, 368, 0 },
    { 0xc96f, CLASS_CHANNEL, 368, 0 }, /* BLACKWELL_CHANNEL_GPFIFO_A */
    { 0xca6f, CLASS_CHANNEL, 368, 0 }, /* BLACKWELL_CHANNEL_GPFIFO_B */
    { 0xcab5, CLASS_ENGINE, 8, 0 }, /* BLACKWELL_DMA_COPY_B */
    { 0xce97, CLASS_COMPUTE, 16, 0 }, /* BLACKWELL_B */
    { 0xcec0, CLASS_COMPUTE, 16, 0 }, /* BLACKWELL_COMPUTE_B */
    { 0xcfb0, CLASS_ENGINE, 12, 0 }, /* NVCFB0_VIDEO_DECODER */
    { 0xcfb7, CLASS_ENGINE, 12, 0 }, /* NVCFB7_VIDEO_ENCODER */
    { 0xcfd1, CLASS_ENGINE, 12, 0 }, /* NVCFD1_VIDEO_NVJPG */
    { 0xcffa, CLASS_ENGINE, 12, 0 }, /* NVCFFA_VIDEO_OFA */
};
static const struct rm_abi abi_570 = {
    .branch = 570,
    .parent = &abi_560,
    .escapes = escapes_570,
    .escape_count = COUNT (escapes_570),
    .classes = classes_570,
    .class_count = COUNT (classes_570),
    .first_graphics = 1,
    .last_graphics = 8,
};

/* 580 */
static const struct rm_escape escapes_580[] = {
    { NV_ESC_RM_MAP_MEMORY_DMA, ESCAPE_MAPPING, sizeof (NVOS46_PARAMETERS), 0, 0, 0 }, /* flags2 and kindOverride */
};
static const struct rm_class classes_580[] = {
    { FERMI_VASPACE_A, CLASS_SPACE, 56, 0 }, { 0xceb0, CLASS_ENGINE, 12, 0 }, /* NVCEB0_VIDEO_DECODER */
    { 0xceb7, CLASS_ENGINE, 12, 0 }, /* NVCEB7_VIDEO_ENCODER */
    { 0xced0, CLASS_ENGINE, 12, 0 }, /* NVCED0_VIDEO_NVJPG */
    { 0xcefa, CLASS_ENGINE, 12, 0 }, /* NVCEFA_VIDEO_OFA */
    { 0xd1b0, CLASS_ENGINE, 12, 0 }, /* NVD1B0_VIDEO_DECODER */
    { 0xd1b7, CLASS_ENGINE, 12, 0 }, /* NVD1B7_VIDEO_ENCODER */
    { 0xd1fa, CLASS_ENGINE, 12, 0 }, /* NVD1FA_VIDEO_OFA */
};
static const struct rm_abi abi_580 = {
    .branch = 580,
    .parent = &abi_570,
    .escapes = escapes_580,
    .escape_count = COUNT (escapes_580),
    .classes = classes_580,
    .class_count = COUNT (classes_580),
    .first_graphics = 1,
    .last_graphics = 8,
};

/* 590 */
static const struct rm_class classes_590[] = {
    { 0x503b, CLASS_PLAIN, 88, 0 }, /* NV50_P2P */
};
static const struct rm_abi abi_590 = {
    .branch = 590,
    .parent = &abi_580,
    .classes = classes_590,
    .class_count = COUNT (classes_590),
    .first_graphics = 1,
    .last_graphics = 8,
};

/* 595 */
static const struct rm_abi abi_595 = {
    .branch = 595,
    .parent = &abi_590,
    .first_graphics = 1,
    .last_graphics = 8,
};

const struct rm_abi *const rm_abi_branches[] = { &rm_abi_535, &abi_545, &abi_550, &abi_555, &abi_560,
                                                 &abi_570,    &abi_580, &abi_590, &abi_595 };
const unsigned rm_abi_branch_count = COUNT (rm_abi_branches);
