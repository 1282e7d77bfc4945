/* Names and texts of errors, as in the real library. Runs in the program's process, on the calling thread, without a
 * lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stddef.h>

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
#define ERROR(error, text) { error, #error, text }
    ERROR (CUDA_SUCCESS, "no error"),
    ERROR (CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR (CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR (CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR (CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR (CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR (CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR (CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR (CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR (CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    ERROR (CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR (CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR (CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR (CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR (CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR (CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    ERROR (CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ERROR (CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ERROR (CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ERROR (CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR (CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ERROR (CUDA_ERROR_UNKNOWN, "unknown error"),
};

static CUresult tell (CUresult error, const char **text, int wants_name)
{
    if (text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof (errors) / sizeof (*errors); i++) {
        if (errors[i].error == error) {
            *text = wants_name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString (CUresult error, const char **text) { return tell (error, text, 0); }

CUresult cuGetErrorName (CUresult error, const char **text) { return tell (error, text, 1); }
