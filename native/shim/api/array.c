/*
 * Wrappers of arrays and mipmapped arrays: charged with the size that follows from their descriptor. Never converted,
 * as managed memory has no such layout.
 *
 * Runs in processes of a container that preload libnvc-shim-api.so, on the thread that calls the driver's function.
 */
#include "share.h"

/* Bytes of a block of pixels in the formats of CUarray_format (cuda.h); most blocks are one pixel. */
static uint64_t block_bytes (int format, unsigned int channels, unsigned int *side)
{
    *side = 1;
    switch (format) {
    case 0x91: /* BC1 */
    case 0x92:
    case 0x97: /* BC4 */
    case 0x98:
        *side = 4;
        return 8;
    case 0x93: /* BC2, BC3 */
    case 0x94:
    case 0x95:
    case 0x96:
    case 0x99: /* BC5 to BC7 */
    case 0x9a:
    case 0x9b:
    case 0x9c:
    case 0x9d:
    case 0x9e:
        *side = 4;
        return 16;
    case 0x01: /* 8 bits a channel */
    case 0x08:
        return channels;
    case 0x02: /* 16 bits, half */
    case 0x09:
    case 0x10:
        return 2 * (uint64_t) channels;
    case 0x03: /* 32 bits, float */
    case 0x0a:
    case 0x20:
        return 4 * (uint64_t) channels;
    case 0xc0: /* normalised integers: the format implies the channels */
    case 0xc6:
        return 1;
    case 0xc1:
    case 0xc3:
    case 0xc7:
    case 0xc9:
    case 0xb0: /* NV12, NV16, YUY2: at most 2 bytes a pixel */
    case 0xa2:
    case 0xa5:
        return 2;
    case 0xb2: /* three planes of 8 bits; P010, P016 */
    case 0xb4:
    case 0x9f:
    case 0xa1:
        return 3;
    case 0xb3: /* three planes of 10 bits */
    case 0xb5:
        return 6;
    case 0xc5: /* four channels of 16 bits, 12-bit YUV */
    case 0xcb:
    case 0xb1:
        return 8;
    default: /* all other formats of 2026; an assumption for later ones */
        return 4;
    }
}

static uint64_t at_least_1 (uint64_t number) { return number > 0 ? number : 1; }

static uint64_t product (uint64_t one, uint64_t other)
{
    uint64_t result;
    return __builtin_mul_overflow (one, other, &result) ? UINT64_MAX : result;
}

/* Layers and the faces of a cube are the depth; they stay as many on every level. */
static uint64_t array_bytes (const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    enum { LAYERED = 1, CUBEMAP = 4 };
    unsigned int side;
    uint64_t pixel = block_bytes (descriptor->Format, descriptor->NumChannels, &side), sum = 0;
    if ((descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
        return 0; /* its memory comes from cuMemCreate */
    for (unsigned int level = 0; level < levels && level < 32; level++) {
        uint64_t depth = at_least_1 (descriptor->Depth);
        if ((descriptor->Flags & (LAYERED | CUBEMAP)) == 0)
            depth = at_least_1 (depth >> level);
        uint64_t columns = (at_least_1 (descriptor->Width >> level) + side - 1) / side;
        uint64_t rows = (at_least_1 (descriptor->Height >> level) + side - 1) / side;
        uint64_t bytes = product (product (product (columns, rows), depth), pixel);
        sum = sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

/* Before and after the driver's call, which checks the arguments. */
struct creation {
    struct share share;
    uint64_t bytes;
};

static bool begin (struct creation *creation, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    creation->share = share_of_current ();
    creation->bytes = 0;
    if (creation->share.counted && descriptor != NULL)
        creation->bytes = share_charge (array_bytes (descriptor, levels));
    return share_take (&creation->share, creation->bytes);
}

static CUresult end (const struct creation *creation, CUresult result, enum ledger_kind kind, const void *array)
{
    uint64_t key = result == CUDA_SUCCESS ? *(const uintptr_t *) array : 0;
    share_keep (&creation->share, result == CUDA_SUCCESS, kind, key, creation->bytes, false);
    return result;
}

/* A creator of one ABI. wide: its descriptor in the newest form, or NULL if that was NULL. */
#define CREATE(symbol, array, kind, wide, levels, arguments)                                                                       \
    struct creation creation;                                                                                                      \
    if (!begin (&creation, wide, levels))                                                                                          \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                                           \
    return end (&creation, NEXT (symbol) arguments, kind, array)

/* Both versions of a descriptor have fields of the same names. */
#define WIDE_3D(old)                                                                                                               \
    ((old) == NULL ? NULL                                                                                                          \
                   : &(CUDA_ARRAY3D_DESCRIPTOR) { (old)->Width, (old)->Height, (old)->Depth, (old)->Format, (old)->NumChannels,    \
                                                  (old)->Flags })
#define WIDE_2D(old)                                                                                                               \
    ((old) == NULL ? NULL : &(CUDA_ARRAY3D_DESCRIPTOR) { (old)->Width, (old)->Height, 0, (old)->Format, (old)->NumChannels, 0 })

CUresult cuArray3DCreate_v2 (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    CREATE (cuArray3DCreate_v2, array, LEDGER_ARRAY, descriptor, 1, (array, descriptor));
}

CUresult cuArray3DCreate (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
    CREATE (cuArray3DCreate, array, LEDGER_ARRAY, WIDE_3D (descriptor), 1, (array, descriptor));
}

CUresult cuArrayCreate_v2 (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    CREATE (cuArrayCreate_v2, array, LEDGER_ARRAY, WIDE_2D (descriptor), 1, (array, descriptor));
}

CUresult cuArrayCreate (CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
{
    CREATE (cuArrayCreate, array, LEDGER_ARRAY, WIDE_2D (descriptor), 1, (array, descriptor));
}

CUresult cuMipmappedArrayCreate (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    CREATE (cuMipmappedArrayCreate, array, LEDGER_MIPMAP, descriptor, levels, (array, descriptor, levels));
}

/* Of either kind: the driver's function, and the handle that it is given. */
#define DESTROY(symbol, kind, handle)                                                                                              \
    struct ledger_entry entry;                                                                                                     \
    bool known = share_is_active () && share_forget (kind, (uintptr_t) (handle), &entry);                                          \
    CUresult result = NEXT (symbol) (handle);                                                                                      \
    if (known)                                                                                                                     \
        share_freed (&entry, result == CUDA_SUCCESS);                                                                              \
    return result

CUresult cuArrayDestroy (CUarray array) { DESTROY (cuArrayDestroy, LEDGER_ARRAY, array); }

CUresult cuMipmappedArrayDestroy (CUmipmappedArray array) { DESTROY (cuMipmappedArrayDestroy, LEDGER_MIPMAP, array); }
