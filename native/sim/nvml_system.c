/* Questions about the whole machine. */
#include "nvml_state.h"

#include <stddef.h>

/* The texts of the public header's comments, as nvidia-ml-py and the real library spell them. */
const char *nvmlErrorString (nvmlReturn_t result)
{
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires reset",
        "GPU access blocked by the operating system",
        "Driver/library version mismatch",
        "In use by another client",
        "Insufficient Memory",
        "No data",
        "The requested vgpu operation is not available on target device, becasue ECC is enabled",
        "Insufficient Resources",
        "Requested frequency not supported",
        "Argument Version Mismatch",
        "Deprecated",
        "System is not ready for the request",
        "No GPUs were found",
        "Invalid State",
    };
    unsigned int number = (unsigned int) result;

    return number < sizeof (texts) / sizeof (texts[0]) ? texts[number] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion (char *version, unsigned int length)
{
    ENTER ();
    return nvml_copy (version, length, nvml_state.machine.driver);
}

nvmlReturn_t nvmlSystemGetNVMLVersion (char *version, unsigned int length)
{
    ENTER ();
    return nvml_copy (version, length, nvml_state.machine.nvml);
}

static nvmlReturn_t cuda_version (int *version)
{
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int) nvml_state.machine.cuda;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion (int *version)
{
    ENTER ();
    return cuda_version (version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2 (int *version)
{
    ENTER ();
    return cuda_version (version);
}
