/* Arrays: video memory of the size of their texels, without contents. Runs in the program's process, on the calling
 * thread, under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdlib.h>

#define GRANULE ((uint64_t) 64 << 10)

struct CUarray_st {
    struct cuda_entry entry;
    struct cuda_memory memory;
};

/* Bytes of one component; 0: no such format. */
static size_t component (int format)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 1;
    case 0x02:
    case 0x09:
    case 0x10:
        return 2;
    case 0x03:
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 0;
    }
}

static size_t one_or (size_t extent) { return extent > 0 ? extent : 1; }

/* Bytes of all levels; false: the descriptor is invalid. */
static bool size_of (const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels, uint64_t *size)
{
    size_t width = description->Width, height = one_or (description->Height), depth = one_or (description->Depth);
    size_t texel = component (description->Format) * description->NumChannels;
    uint64_t level;

    if (texel == 0 || width == 0 ||
        (description->NumChannels != 1 && description->NumChannels != 2 && description->NumChannels != 4))
        return false;
    for (*size = 0; levels > 0; levels--) {
        if (__builtin_mul_overflow (width, height, &level) || __builtin_mul_overflow (level, depth, &level) ||
            __builtin_mul_overflow (level, texel, &level) || __builtin_add_overflow (*size, level, size))
            return false;
        width = one_or (width / 2);
        height = one_or (height / 2);
        depth = one_or (depth / 2);
    }
    return *size < UINT64_MAX - GRANULE;
}

static CUresult create (void **array, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels, enum cuda_kind kind)
{
    CUcontext context;
    uint64_t size;

    CUDA_ENTER_CONTEXT (context);
    if (!size_of (description, levels, &size))
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct CUarray_st *made = calloc (1, sizeof (*made));
    if (made == NULL)
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = cuda_memory_allocate (context->device, cuda_round (size, GRANULE), ATTRIBUTES_ARRAY, &made->memory);
    if (result == CUDA_SUCCESS && !cuda_add_handle (&made->entry, kind, context)) {
        cuda_memory_free (context->device, &made->memory);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        *array = made;
    else
        free (made);
    return CUDA_LEAVE (result);
}

void cuda_array_release (struct cuda_entry *entry)
{
    cuda_remove (entry);
    cuda_memory_free (entry->context->device, &((struct CUarray_st *) entry)->memory);
    free (entry);
}

CUresult cuArray3DCreate_v2 (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description)
{
    void *made = NULL;

    if (array == NULL || description == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = create (&made, description, 1, KIND_ARRAY);
    if (result == CUDA_SUCCESS)
        *array = made;
    return result;
}

CUresult cuArrayCreate_v2 (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description)
{
    if (array == NULL || description == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR whole = { .Width = description->Width,
                                            .Height = description->Height,
                                            .Format = description->Format,
                                            .NumChannels = description->NumChannels };
    return cuArray3DCreate_v2 (array, &whole);
}

CUresult cuMipmappedArrayCreate (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels)
{
    void *made = NULL;

    if (array == NULL || description == NULL || levels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = create (&made, description, levels < 32 ? levels : 32, KIND_MIPMAP);
    if (result == CUDA_SUCCESS)
        *array = made;
    return result;
}

static CUresult destroy (const void *array, enum cuda_kind kind)
{
    CUDA_ENTER ();
    struct cuda_entry *entry = cuda_find (array, kind);
    if (entry == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    cuda_array_release (entry);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuArrayDestroy (CUarray array) { return destroy (array, KIND_ARRAY); }

CUresult cuMipmappedArrayDestroy (CUmipmappedArray array) { return destroy (array, KIND_MIPMAP); }
