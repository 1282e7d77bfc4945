/*
 * Sizes of structs that differ between the driver's releases, for the simulated libraries and the manager.
 *
 * Not taken from native/rm: compiled from the headers of the open kernel modules (nvos.h, nv-ioctl.h, alloc/, class/,
 * ctrl/) of 535.104.05, 545.29.06, 550.163.01, 555.42.02, 560.28.03, 565.57.01, 570.86.16, 575.51.02, 580.65.06,
 * 590.48.01 and 595.45.04, so that tests of the one against the other are independent. UVM's are in manager_uvm.c.
 */
#ifndef NVC_SIM_VERSIONS_H
#define NVC_SIM_VERSIONS_H

#include <stdint.h>

enum version_struct {
    VERSION_NONE,        /* the same in every release */
    VERSION_MEMORY,      /* NV_MEMORY_ALLOCATION_PARAMS: class 0x40 and similar */
    VERSION_CHANNEL,     /* NV_CHANNEL_ALLOC_PARAMS */
    VERSION_SPACE,       /* NV_VASPACE_ALLOCATION_PARAMETERS: class 0x90F1 */
    VERSION_COUNTERS,    /* NV00DE_ALLOC_PARAMETERS */
    VERSION_SCHEDULE,    /* NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS, NVA06F's */
    VERSION_RESET,       /* NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS */
    VERSION_FB_INFO,     /* NV2080_CTRL_FB_GET_INFO_V2_PARAMS: a count, then entries of 8 bytes */
    VERSION_PROBED,      /* NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS */
    VERSION_EXPORT_INFO, /* NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS */
    VERSION_MAP_DMA,     /* NVOS46 */
    VERSION_UNMAP_DMA,   /* NVOS47 */
    VERSION_WAIT_OPEN,   /* nv_ioctl_wait_open_complete_t; 0: there is no such call */
    VERSION_SAMPLES,     /* NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS: 72 samples, with four engines up to 545 */
    VERSION_UVM_GPUS,    /* UVM_MAX_GPUS: a number, not a size */
    VERSION_STRUCTS
};

struct version_row {
    uint8_t of;
    uint16_t since; /* release; 0: the first */
    uint16_t size;
};

/* release: 580. Bytes of the struct in it. */
static inline uint32_t version_size (enum version_struct of, int release)
{
    /* By struct, the oldest first. */
    static const struct version_row rows[] = {
        { VERSION_MEMORY, 0, 120 },      { VERSION_MEMORY, 545, 128 },   { VERSION_CHANNEL, 0, 360 },
        { VERSION_CHANNEL, 570, 368 },   { VERSION_SPACE, 0, 48 },       { VERSION_SPACE, 580, 56 },
        { VERSION_COUNTERS, 0, 4 },      { VERSION_COUNTERS, 545, 8 },   { VERSION_SCHEDULE, 0, 2 },
        { VERSION_SCHEDULE, 575, 3 },    { VERSION_FB_INFO, 0, 436 },    { VERSION_FB_INFO, 545, 444 },
        { VERSION_FB_INFO, 560, 460 },   { VERSION_FB_INFO, 580, 1028 }, { VERSION_PROBED, 0, 256 },
        { VERSION_PROBED, 580, 384 },    { VERSION_EXPORT_INFO, 0, 76 }, { VERSION_EXPORT_INFO, 545, 80 },
        { VERSION_MAP_DMA, 0, 56 },      { VERSION_MAP_DMA, 580, 64 },   { VERSION_UNMAP_DMA, 0, 40 },
        { VERSION_UNMAP_DMA, 550, 48 },  { VERSION_WAIT_OPEN, 550, 8 },  { VERSION_UVM_GPUS, 0, 32 },
        { VERSION_UVM_GPUS, 550, 256 },  { VERSION_SAMPLES, 0, 34000 },  { VERSION_SAMPLES, 550, 50704 },
        { VERSION_SAMPLES, 570, 55888 }, { VERSION_RESET, 0, 12 },       { VERSION_RESET, 550, 16 },
    };
    uint32_t size = 0;

    for (unsigned i = 0; i < sizeof (rows) / sizeof (rows[0]); i++) {
        if (rows[i].of == of && release >= rows[i].since)
            size = rows[i].size;
    }
    return size;
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
