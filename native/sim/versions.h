/* Sizes that differ between the driver's releases, for the simulated driver's both sides. */
#ifndef NVC_SIM_VERSIONS_H
#define NVC_SIM_VERSIONS_H

#include <stdint.h>

/* NV2080_CTRL_FB_GET_INFO_V2_PARAMS: a count, and as many entries of 8 bytes as the release has things to tell
 * (NV2080_CTRL_FB_INFO_MAX_LIST_SIZE: 54 in 535, 55 in 550, 57 in 560, 128 since 580). version: 580. */
static inline uint32_t version_fb_info_size (int version)
{
    uint32_t entries = version >= 580 ? 128 : version >= 560 ? 57 : version >= 545 ? 55 : 54;

    return 4 + 8 * entries;
}

/* GPUs that a call of UVM can name (UVM_MAX_GPUS): every GPU, since 550 every one's MIG devices too. */
static inline uint32_t version_uvm_gpus (int version)
{
    return version >= 550 ? 256 : 32;
}

/* "580.159.04": 580. */
static inline int version_release (const char *driver)
{
    int number = 0;

    for (; *driver >= '0' && *driver <= '9' && number < 100000; driver++)
        number = number * 10 + (*driver - '0');
    return number;
}

#endif
