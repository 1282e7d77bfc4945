/* Wrappers of cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree. Runs as array.c. */
#include "managed.h"

CUresult cuMemAlloc_v2 (CUdeviceptr *pointer, size_t bytes)
{
    struct share share = share_of_current ();
    CUresult result;
    if (pointer == NULL || bytes == 0)
        return NEXT (cuMemAlloc_v2) (pointer, bytes);
    if (!share_take (&share, share_charge (bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool converted = managed_allocate (&share, pointer, bytes, &result);
    if (!converted)
        result = NEXT (cuMemAlloc_v2) (pointer, bytes);
    share_keep (&share, result == CUDA_SUCCESS, LEDGER_POINTER, *pointer, share_charge (bytes), converted);
    return result;
}

/* The interface of CUDA before 3.2, with addresses of 32 bits, which managed memory does not have. */
CUresult cuMemAlloc (CUdeviceptr_v1 *pointer, unsigned int bytes)
{
    struct share share = share_of_current ();
    if (pointer == NULL || bytes == 0)
        return NEXT (cuMemAlloc) (pointer, bytes);
    if (!share_take (&share, share_charge (bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = NEXT (cuMemAlloc) (pointer, bytes);
    share_keep (&share, result == CUDA_SUCCESS, LEDGER_POINTER, *pointer, share_charge (bytes), false);
    return result;
}

/* The pitch that the driver will choose: rows start at multiples of the texture alignment. 0: the driver will refuse
 * the arguments, or the alignment is unknown; then its function is called without a reservation. */
static uint64_t pitch_of (const struct share *share, uint64_t width, uint64_t height, unsigned int element)
{
    int alignment = 0;
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16) || width > UINT64_MAX / 2 || share->device < 0)
        return 0;
    NEXT (cuDeviceGetAttribute) (&alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, share->device);
    if (alignment <= 0)
        return 0;
    uint64_t step = (uint64_t) alignment, pitch = (width + step - 1) / step * step;
    return height > UINT64_MAX / 4 / pitch ? 0 : pitch;
}

/* Corrects the charge to the driver's real pitch, which may exceed the expected one. */
static CUresult correct_pitch (const struct share *share, CUresult result, uint64_t pointer, uint64_t taken, uint64_t real)
{
    if (result == CUDA_SUCCESS && share->counted && real < taken)
        share_give (share, taken - real);
    if (result == CUDA_SUCCESS && real > taken && !share_take (share, real - taken)) {
        share_give (share, taken);
        NEXT (cuMemFree_v2) (pointer);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    share_keep (share, result == CUDA_SUCCESS, LEDGER_POINTER, pointer, result == CUDA_SUCCESS ? real : taken, false);
    return result;
}

CUresult cuMemAllocPitch_v2 (CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    struct share share = share_of_current ();
    uint64_t row = share.counted || share.oversubscribed ? pitch_of (&share, width, height, element) : 0;
    CUresult result;
    if (share.blocked)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (pointer == NULL || pitch == NULL || row == 0)
        return NEXT (cuMemAllocPitch_v2) (pointer, pitch, width, height, element);
    uint64_t taken = share_charge (row * height);
    if (!share_take (&share, taken))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (managed_allocate (&share, pointer, row * height, &result)) {
        if (result == CUDA_SUCCESS)
            *pitch = row;
        share_keep (&share, result == CUDA_SUCCESS, LEDGER_POINTER, *pointer, taken, true);
        return result;
    }
    result = NEXT (cuMemAllocPitch_v2) (pointer, pitch, width, height, element);
    return correct_pitch (&share, result, *pointer, taken, share_charge (*pitch * height));
}

CUresult cuMemAllocPitch (CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                          unsigned int element)
{
    struct share share = share_of_current ();
    uint64_t row = share.counted ? pitch_of (&share, width, height, element) : 0;
    if (share.blocked)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (pointer == NULL || pitch == NULL || row == 0)
        return NEXT (cuMemAllocPitch) (pointer, pitch, width, height, element);
    uint64_t taken = share_charge (row * height);
    if (!share_take (&share, taken))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = NEXT (cuMemAllocPitch) (pointer, pitch, width, height, element);
    return correct_pitch (&share, result, *pointer, taken, share_charge ((uint64_t) *pitch * height));
}

CUresult cuMemAllocManaged (CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    struct share share = share_of_current ();
    if (pointer == NULL || bytes == 0)
        return NEXT (cuMemAllocManaged) (pointer, bytes, flags);
    if (!share_take (&share, share_charge (bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    refused_forget ();
    CUresult result = refused_result (NEXT (cuMemAllocManaged) (pointer, bytes, flags));
    share_keep (&share, result == CUDA_SUCCESS, LEDGER_POINTER, *pointer, share_charge (bytes), false);
    return result;
}

CUresult cuMemFree_v2 (CUdeviceptr pointer)
{
    struct ledger_entry entry;
    bool known = pointer != 0 && share_is_active () && share_forget (LEDGER_POINTER, pointer, &entry);
    CUresult result = NEXT (cuMemFree_v2) (pointer);
    if (known)
        share_freed (&entry, result == CUDA_SUCCESS);
    return result;
}

CUresult cuMemFree (CUdeviceptr_v1 pointer)
{
    struct ledger_entry entry;
    bool known = pointer != 0 && share_is_active () && share_forget (LEDGER_POINTER, pointer, &entry);
    CUresult result = NEXT (cuMemFree) (pointer);
    if (known)
        share_freed (&entry, result == CUDA_SUCCESS);
    return result;
}
