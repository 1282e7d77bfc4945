/* Primary contexts: one a device, with a count of references. Runs in the program's process, on the calling thread,
 * under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stddef.h>

CUresult cuDevicePrimaryCtxRetain (CUcontext *context, CUdevice ordinal)
{
    CUresult result = CUDA_SUCCESS;

    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (context == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    if (device->primary == NULL) {
        result = cuda_context_create (device, device->primary_flags, &device->primary);
        if (result != CUDA_SUCCESS)
            return CUDA_LEAVE (result);
        device->primary->primary = true;
    }
    device->primary_references++;
    *context = device->primary;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease (CUdevice ordinal)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    if (device->primary_references == 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_CONTEXT);
    if (--device->primary_references == 0 && device->primary != NULL)
        cuda_context_destroy (device->primary);
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease);

/* Destroys everything in it, also with references left; the next retain builds a new one. */
CUresult cuDevicePrimaryCtxReset (CUdevice ordinal)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    if (device->primary != NULL)
        cuda_context_destroy (device->primary);
    device->primary_references = 0;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset);

CUresult cuDevicePrimaryCtxSetFlags (CUdevice ordinal, unsigned int flags)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    device->primary_flags = flags;
    if (device->primary != NULL)
        device->primary->flags = flags;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags);

CUresult cuDevicePrimaryCtxGetState (CUdevice ordinal, unsigned int *flags, int *active)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (flags == NULL || active == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
