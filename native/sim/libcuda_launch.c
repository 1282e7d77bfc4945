/* Launch of a kernel: submits one piece of work of the kernel's duration. Runs in the program's process, on the calling
 * thread, under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

static CUresult launch (CUfunction function, const unsigned int dimensions[6], CUstream handle)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    for (int i = 0; i < 6; i++) {
        if (dimensions[i] == 0)
            return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    }
    CUstream stream = cuda_stream (context, handle);
    if (stream == NULL || cuda_find (function, KIND_FUNCTION) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    uint64_t nanoseconds = cuda_function_nanoseconds (function);
    if (stream->capture != NULL)
        return CUDA_LEAVE (cuda_capture_kernel (stream, nanoseconds));
    return CUDA_LEAVE (cuda_submit (stream->entry.context, stream, nanoseconds, 1));
}

CUresult cuLaunchKernel (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                         unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters,
                         void **extra)
{
    const unsigned int dimensions[] = { grid_x, grid_y, grid_z, block_x, block_y, block_z };

    (void) shared;
    (void) parameters;
    (void) extra;
    return launch (function, dimensions, stream);
}
CUDA_ALIAS (cuLaunchKernel_ptsz, cuLaunchKernel);

CUresult cuLaunchCooperativeKernel (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                                    CUstream stream, void **parameters)
{
    return cuLaunchKernel (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, NULL);
}
CUDA_ALIAS (cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel);

CUresult cuLaunchKernelEx (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return cuLaunchKernel (function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                           config->blockDimZ, config->sharedMemBytes, config->hStream, parameters, extra);
}
CUDA_ALIAS (cuLaunchKernelEx_ptsz, cuLaunchKernelEx);
