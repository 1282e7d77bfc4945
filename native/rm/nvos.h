/*
 * Structs that an escape's argument points at (nvos.h of the open kernel modules), under NVIDIA's names and with NVIDIA's
 * names of fields: what native/rm, native/guard and native/sim read or write. The same from 535 to 595. nv_params.h has what
 * these structs point at.
 *
 * Packed, with every gap written out: a struct may lie at any address in a copy of a tenant's memory, and any alias may have
 * written it. NV_SIZE and NV_AT are compile-time checks; tests/contract/test_nv_numbers.py reads them for Python's layouts.
 */
#ifndef NVC_RM_NVOS_H
#define NVC_RM_NVOS_H

#include <stddef.h>
#include <stdint.h>

#define NV_PACKED __attribute__ ((packed, may_alias))
#define NV_SIZE(type, bytes) _Static_assert (sizeof (type) == (bytes), "size of " #type)
#define NV_AT(type, field, offset) _Static_assert (offsetof (type, field) == (offset), "offset of " #type "." #field)

/* A pointer of the caller's, whatever its machine's word is (nvtypes.h). */
typedef uint64_t NvP64;
typedef uint32_t NvHandle;

/* NV_ESC_RM_FREE */
typedef struct NV_PACKED {
    NvHandle hRoot, hObjectParent, hObjectOld;
    uint32_t status;
} NVOS00_PARAMETERS;
NV_SIZE (NVOS00_PARAMETERS, 16);
NV_AT (NVOS00_PARAMETERS, hObjectOld, 8);
NV_AT (NVOS00_PARAMETERS, status, 12);

/* NV_ESC_RM_ALLOC_MEMORY, with the next one around it */
typedef struct NV_PACKED {
    NvHandle hRoot, hObjectParent, hObjectNew;
    uint32_t hClass, flags, pad20;
    NvP64 pMemory;
    uint64_t limit;
    uint32_t status, pad44;
} NVOS02_PARAMETERS;
NV_SIZE (NVOS02_PARAMETERS, 48);
NV_AT (NVOS02_PARAMETERS, hClass, 12);
NV_AT (NVOS02_PARAMETERS, pMemory, 24);
NV_AT (NVOS02_PARAMETERS, limit, 32);
NV_AT (NVOS02_PARAMETERS, status, 40);

/* nv-unix-nvos-params-wrappers.h */
typedef struct NV_PACKED {
    NVOS02_PARAMETERS params;
    int32_t fd;
    uint32_t pad52;
} nv_ioctl_nvos02_parameters_with_fd;
NV_SIZE (nv_ioctl_nvos02_parameters_with_fd, 56);
NV_AT (nv_ioctl_nvos02_parameters_with_fd, fd, 48);

/* NV_ESC_RM_ALLOC, the short form */
typedef struct NV_PACKED {
    NvHandle hRoot, hObjectParent, hObjectNew;
    uint32_t hClass;
    NvP64 pAllocParms;
    uint32_t paramsSize, status;
} NVOS21_PARAMETERS;
NV_SIZE (NVOS21_PARAMETERS, 32);
NV_AT (NVOS21_PARAMETERS, hObjectNew, 8);
NV_AT (NVOS21_PARAMETERS, hClass, 12);
NV_AT (NVOS21_PARAMETERS, pAllocParms, 16);
NV_AT (NVOS21_PARAMETERS, paramsSize, 24);
NV_AT (NVOS21_PARAMETERS, status, 28);

/* NV_ESC_RM_ALLOC, the long form. Up to pAllocParms it is as the short one. */
typedef struct NV_PACKED {
    NvHandle hRoot, hObjectParent, hObjectNew;
    uint32_t hClass;
    NvP64 pAllocParms, pRightsRequested;
    uint32_t paramsSize, flags, status, pad44;
} NVOS64_PARAMETERS;
NV_SIZE (NVOS64_PARAMETERS, 48);
NV_AT (NVOS64_PARAMETERS, hObjectNew, 8);
NV_AT (NVOS64_PARAMETERS, hClass, 12);
NV_AT (NVOS64_PARAMETERS, pAllocParms, 16);
NV_AT (NVOS64_PARAMETERS, pRightsRequested, 24);
NV_AT (NVOS64_PARAMETERS, paramsSize, 32);
NV_AT (NVOS64_PARAMETERS, flags, 36);
NV_AT (NVOS64_PARAMETERS, status, 40);

#define NVOS30_FLAGS_CHANNEL_SINGLE 1u /* bits 4 to 7 of flags */

/* NV_ESC_RM_IDLE_CHANNELS: one channel, or lists of their clients, devices and handles. timeout: microseconds */
typedef struct NV_PACKED {
    NvHandle hClient, hDevice, hChannel;
    uint32_t numChannels;
    NvP64 phClients, phDevices, phChannels;
    uint32_t flags, timeout, status, pad52;
} NVOS30_PARAMETERS;
NV_SIZE (NVOS30_PARAMETERS, 56);
NV_AT (NVOS30_PARAMETERS, numChannels, 12);
NV_AT (NVOS30_PARAMETERS, phClients, 16);
NV_AT (NVOS30_PARAMETERS, timeout, 44);

/* NV_ESC_RM_VID_HEAP_CONTROL: the functions that rm performs */
typedef struct NV_PACKED {
    NvHandle hRoot, hObjectParent;
    uint32_t function;
    NvHandle hVASpace;
    int16_t ivcHeapNumber;
    uint16_t pad18;
    uint32_t status;
    uint64_t total, free; /* bytes */
    union NV_PACKED {
        struct NV_PACKED {
            uint32_t owner;
            NvHandle hMemory;
            uint32_t type, flags, attr, format, comprCovg, zcullCovg, partitionStride, width, height, pad84;
            uint64_t size, alignment, offset, limit;
            NvP64 address;
            uint64_t rangeBegin, rangeEnd;
            uint32_t attr2, ctagOffset;
        } AllocSize;
        struct NV_PACKED {
            uint32_t owner;
            NvHandle hMemory;
            uint32_t type, flags, height;
            int32_t pitch;
            uint32_t attr, width, format, comprCovg, zcullCovg, partitionStride;
            uint64_t size, alignment, offset, limit;
            NvP64 address;
            uint64_t rangeBegin, rangeEnd;
            uint32_t attr2, ctagOffset;
        } AllocTiledPitchHeight;
        struct NV_PACKED {
            uint32_t owner;
            NvHandle hMemory;
            uint32_t flags;
        } Free;
        struct NV_PACKED {
            uint32_t attr, pad44;
            uint64_t offset, size, base;
        } Info;
        struct NV_PACKED {
            uint32_t owner;
            NvHandle hMemory;
            uint32_t type, flags, attr, format, comprCovg, zcullCovg, partitionStride, pad76;
            uint64_t size, alignment, offset, limit, rangeBegin, rangeEnd;
            NvP64 address;
            uint32_t attr2, ctagOffset;
        } AllocSizeRange;
        uint8_t longest[144]; /* HwAlloc's */
    } data;
} NVOS32_PARAMETERS;
NV_SIZE (NVOS32_PARAMETERS, 184);
NV_AT (NVOS32_PARAMETERS, function, 8);
NV_AT (NVOS32_PARAMETERS, status, 20);
NV_AT (NVOS32_PARAMETERS, total, 24);
NV_AT (NVOS32_PARAMETERS, free, 32);
NV_AT (NVOS32_PARAMETERS, data.AllocSize.hMemory, 44);
NV_AT (NVOS32_PARAMETERS, data.AllocSize.flags, 52);
NV_AT (NVOS32_PARAMETERS, data.AllocSize.attr, 56);
NV_AT (NVOS32_PARAMETERS, data.AllocSize.size, 88);
NV_AT (NVOS32_PARAMETERS, data.AllocSize.address, 120);
NV_AT (NVOS32_PARAMETERS, data.AllocTiledPitchHeight.hMemory, 44);
NV_AT (NVOS32_PARAMETERS, data.AllocTiledPitchHeight.flags, 52);
NV_AT (NVOS32_PARAMETERS, data.AllocTiledPitchHeight.height, 56);
NV_AT (NVOS32_PARAMETERS, data.AllocTiledPitchHeight.pitch, 60);
NV_AT (NVOS32_PARAMETERS, data.AllocTiledPitchHeight.attr, 64);
NV_AT (NVOS32_PARAMETERS, data.AllocTiledPitchHeight.size, 88);
NV_AT (NVOS32_PARAMETERS, data.AllocTiledPitchHeight.address, 120);
NV_AT (NVOS32_PARAMETERS, data.Free.hMemory, 44);
NV_AT (NVOS32_PARAMETERS, data.Info.offset, 48);
NV_AT (NVOS32_PARAMETERS, data.Info.size, 56);
NV_AT (NVOS32_PARAMETERS, data.AllocSizeRange.hMemory, 44);
NV_AT (NVOS32_PARAMETERS, data.AllocSizeRange.flags, 52);
NV_AT (NVOS32_PARAMETERS, data.AllocSizeRange.attr, 56);
NV_AT (NVOS32_PARAMETERS, data.AllocSizeRange.size, 80);
NV_AT (NVOS32_PARAMETERS, data.AllocSizeRange.address, 128);

/* NV_ESC_RM_MAP_MEMORY, and nv-unix-nvos-params-wrappers.h: with the open file that is then mapped */
typedef struct NV_PACKED {
    NvHandle hClient, hDevice, hMemory;
    uint32_t pad12;
    uint64_t offset, length;
    NvP64 pLinearAddress;
    uint32_t status, flags;
} NVOS33_PARAMETERS;
NV_SIZE (NVOS33_PARAMETERS, 48);
NV_AT (NVOS33_PARAMETERS, hMemory, 8);
NV_AT (NVOS33_PARAMETERS, length, 24);
NV_AT (NVOS33_PARAMETERS, status, 40);

typedef struct NV_PACKED {
    NVOS33_PARAMETERS params;
    int32_t fd;
    uint32_t pad52;
} nv_ioctl_nvos33_parameters_with_fd;
NV_SIZE (nv_ioctl_nvos33_parameters_with_fd, 56);
NV_AT (nv_ioctl_nvos33_parameters_with_fd, fd, 48);

/* NV_ESC_RM_MAP_MEMORY_DMA: memory at addresses of a range (hDma). Before 580 without flags2 and kindOverride. */
typedef struct NV_PACKED {
    NvHandle hClient, hDevice, hDma, hMemory;
    uint64_t offset, length;
    uint32_t flags, flags2, kindOverride, pad44;
    uint64_t dmaOffset;
    uint32_t status, pad60;
} NVOS46_PARAMETERS;
NV_SIZE (NVOS46_PARAMETERS, 64);
NV_AT (NVOS46_PARAMETERS, dmaOffset, 48);
NV_AT (NVOS46_PARAMETERS, status, 56);

typedef struct NV_PACKED {
    NvHandle hClient, hDevice, hDma, hMemory;
    uint64_t offset, length;
    uint32_t flags, pad36;
    uint64_t dmaOffset;
    uint32_t status, pad52;
} NVOS46_PARAMETERS_535;
NV_SIZE (NVOS46_PARAMETERS_535, 56);
NV_AT (NVOS46_PARAMETERS_535, dmaOffset, 40);
NV_AT (NVOS46_PARAMETERS_535, status, 48);

/* NV_ESC_RM_UNMAP_MEMORY_DMA. Before 550 without size. */
typedef struct NV_PACKED {
    NvHandle hClient, hDevice, hDma, hMemory;
    uint32_t flags, pad20;
    uint64_t dmaOffset, size;
    uint32_t status, pad44;
} NVOS47_PARAMETERS;
NV_SIZE (NVOS47_PARAMETERS, 48);
NV_AT (NVOS47_PARAMETERS, dmaOffset, 24);
NV_AT (NVOS47_PARAMETERS, status, 40);

typedef struct NV_PACKED {
    NvHandle hClient, hDevice, hDma, hMemory;
    uint32_t flags, pad20;
    uint64_t dmaOffset;
    uint32_t status, pad36;
} NVOS47_PARAMETERS_535;
NV_SIZE (NVOS47_PARAMETERS_535, 40);
NV_AT (NVOS47_PARAMETERS_535, dmaOffset, 24);
NV_AT (NVOS47_PARAMETERS_535, status, 32);

/* NV_ESC_RM_CONTROL */
typedef struct NV_PACKED {
    NvHandle hClient, hObject;
    uint32_t cmd, flags;
    NvP64 params;
    uint32_t paramsSize, status;
} NVOS54_PARAMETERS;
NV_SIZE (NVOS54_PARAMETERS, 32);
NV_AT (NVOS54_PARAMETERS, hObject, 4);
NV_AT (NVOS54_PARAMETERS, cmd, 8);
NV_AT (NVOS54_PARAMETERS, flags, 12);
NV_AT (NVOS54_PARAMETERS, params, 16);
NV_AT (NVOS54_PARAMETERS, paramsSize, 24);
NV_AT (NVOS54_PARAMETERS, status, 28);

/* NV_ESC_RM_DUP_OBJECT. hObject: the new handle, 0: the driver picks it. */
typedef struct NV_PACKED {
    NvHandle hClient, hParent, hObject, hClientSrc, hObjectSrc;
    uint32_t flags, status;
} NVOS55_PARAMETERS;
NV_SIZE (NVOS55_PARAMETERS, 28);
NV_AT (NVOS55_PARAMETERS, hObject, 8);
NV_AT (NVOS55_PARAMETERS, hClientSrc, 12);
NV_AT (NVOS55_PARAMETERS, hObjectSrc, 16);
NV_AT (NVOS55_PARAMETERS, status, 24);

/* rs_access.h. accessMask: RS_ACCESS_MASK, of one limb. */
typedef struct NV_PACKED {
    uint32_t target, accessMask;
    uint16_t type;
    uint8_t action, pad11;
} RS_SHARE_POLICY;
NV_SIZE (RS_SHARE_POLICY, 12);

/* NV_ESC_RM_SHARE */
typedef struct NV_PACKED {
    NvHandle hClient, hObject;
    RS_SHARE_POLICY sharePolicy;
    uint32_t status;
} NVOS57_PARAMETERS;
NV_SIZE (NVOS57_PARAMETERS, 24);
NV_AT (NVOS57_PARAMETERS, sharePolicy, 8);
NV_AT (NVOS57_PARAMETERS, sharePolicy.type, 16);
NV_AT (NVOS57_PARAMETERS, status, 20);

#endif
