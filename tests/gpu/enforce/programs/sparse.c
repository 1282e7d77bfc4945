/*
 * Arrays without memory of their own: it is made apart and mapped into them.
 *
 * usage: sparse sparse | deferred
 * Says "supported" (the device's own word) and "status_..." of what could be refused, and goes on as far as it comes.
 */
#include "check.h"

#include <stdbool.h>

#define TILE (64 * KIB)

static CUdevice device;
static CUstream stream;

static bool good (const char *name, CUresult result)
{
    say (name, (unsigned long long) result);
    return result == CUDA_SUCCESS;
}

/* 8192 by 8192 elements of four floats: 1 GiB if it had memory. */
static CUresult make_array (CUarray *array, unsigned int flags)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    memset (&shape, 0, sizeof shape);
    shape.Width = 8192;
    shape.Height = 8192;
    shape.Format = CU_AD_FORMAT_FLOAT;
    shape.NumChannels = 4;
    shape.Flags = flags;
    return cuArray3DCreate (array, &shape);
}

static CUresult make_tiles (CUmemGenericAllocationHandle *handle, size_t bytes)
{
    CUmemAllocationProp properties;
    memset (&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    return cuMemCreate (handle, bytes, &properties, 0);
}

/* height: of the part from the first row on, in elements; the whole width. handle 0: what is mapped there goes. */
static CUresult map (CUarray array, unsigned int height, CUmemGenericAllocationHandle handle)
{
    CUarrayMapInfo info;
    memset (&info, 0, sizeof info);
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.resource.array = array;
    info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    info.subresource.sparseLevel.extentWidth = 8192;
    info.subresource.sparseLevel.extentHeight = height;
    info.subresource.sparseLevel.extentDepth = 1;
    info.memOperationType = handle != 0 ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info.memHandle.memHandle = handle;
    info.deviceBitMask = 1u << device;
    CUresult result = cuMemMapArrayAsync (&info, 1, stream);
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize (stream);
}

/* bytes: what is mapped; height: of the part of the array. */
static void with_memory (CUarray array, size_t bytes, unsigned int height)
{
    CUmemGenericAllocationHandle handle;
    say ("bytes", bytes);
    if (!good ("status_tiles", make_tiles (&handle, bytes)))
        return;
    say ("free_made", memory_free ());
    if (good ("status_map", map (array, height, handle))) {
        say ("free_mapped", memory_free ());
        MUST (cuMemRelease (handle));
        say ("free_released", memory_free ());
        good ("status_unmap", map (array, height, 0));
    } else {
        MUST (cuMemRelease (handle));
    }
    say ("free_unmapped", memory_free ());
}

static void sparse (void)
{
    CUarray array;
    CUDA_ARRAY_SPARSE_PROPERTIES properties;
    if (!good ("status_array", make_array (&array, CUDA_ARRAY3D_SPARSE)))
        return;
    say ("free_array", memory_free ());
    MUST (cuArrayGetSparseProperties (&properties, array));
    /* A quarter of the array, in whole tiles. */
    unsigned int height = 2048 / properties.tileExtent.height * properties.tileExtent.height;
    size_t tiles = (size_t) (8192 / properties.tileExtent.width) * (height / properties.tileExtent.height);
    with_memory (array, tiles * TILE, height);
    MUST (cuArrayDestroy (array));
}

static void deferred (void)
{
    CUarray array;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    if (!good ("status_array", make_array (&array, CUDA_ARRAY3D_DEFERRED_MAPPING)))
        return;
    say ("free_array", memory_free ());
    MUST (cuArrayGetMemoryRequirements (&needs, array, device));
    with_memory (array, (needs.size + 2 * MIB - 1) & ~(2 * MIB - 1), 8192);
    MUST (cuArrayDestroy (array));
}

int main (int argc, char **argv)
{
    const char *scene = argc == 2 ? argv[1] : "";
    bool is_sparse = strcmp (scene, "sparse") == 0;
    CUmemGenericAllocationHandle handle;
    int supported = 0;
    if (!is_sparse && strcmp (scene, "deferred") != 0)
        return 2;
    device = begin_cuda ();
    MUST (cuStreamCreate (&stream, CU_STREAM_NON_BLOCKING));
    MUST (cuDeviceGetAttribute (&supported,
                                is_sparse ? CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED
                                          : CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
                                device));
    say ("supported", (unsigned long long) supported);
    /* What the driver allocates once. */
    MUST (make_tiles (&handle, 2 * MIB));
    MUST (cuMemRelease (handle));
    say ("free_start", memory_free ());
    if (is_sparse)
        sparse ();
    else
        deferred ();
    say ("free_end", memory_free ());
    return 0;
}
