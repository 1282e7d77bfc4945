/*
 * The share of the GPU that a call concerns: the driver maps ordinals, the limits name GPUs by UUID.
 *
 * Runs in processes of a container that preload libnvc-shim-api.so, on the thread that calls the driver's function.
 */
#include "share.h"

#include "rm/rm.h"

static const struct share NOTHING = { .gpu = RM_NO_GPU, .device = -1 };

struct share share_of_device (CUdevice device)
{
    CUuuid uuid;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (!share_is_active ())
        return NOTHING;
    /* v2 distinguishes MIG devices; drivers before CUDA 11.4 have only the first version. */
    if (next_exists (ROW_cuDeviceGetUuid_v2))
        result = NEXT (cuDeviceGetUuid_v2) (&uuid, device);
    else
        result = NEXT (cuDeviceGetUuid) (&uuid, device);
    if (result != CUDA_SUCCESS) /* not a device: the driver returns the error */
        return NOTHING;
    struct share share = share_of_uuid (uuid.bytes);
    share.device = device;
    int concurrent = 0;
    if (share.oversubscribed) {
        result = NEXT (cuDeviceGetAttribute) (&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device);
        share.oversubscribed = result == CUDA_SUCCESS && concurrent != 0;
    }
    return share;
}

struct share share_of_current (void)
{
    CUdevice device;
    if (!share_is_active () || NEXT (cuCtxGetDevice) (&device) != CUDA_SUCCESS)
        return NOTHING;
    return share_of_device (device);
}

struct share share_of_stream (CUstream stream)
{
    CUcontext context, own;
    CUdevice device;
    if ((uintptr_t) stream <= 2) /* NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD: of the current context */
        return share_of_current ();
    if (!share_is_active () || NEXT (cuStreamGetCtx) (stream, &context) != CUDA_SUCCESS ||
        NEXT (cuCtxPushCurrent_v2) (context) != CUDA_SUCCESS)
        return NOTHING;
    CUresult result = NEXT (cuCtxGetDevice) (&device);
    NEXT (cuCtxPopCurrent_v2) (&own);
    return result == CUDA_SUCCESS ? share_of_device (device) : NOTHING;
}
