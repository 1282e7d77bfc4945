/* Queries of the whole machine. Runs in the program's process, on the calling thread. */
#include "nvml_state.h"

#include <stddef.h>

/* The texts of libnvidia-ml.so.580.159.04 on an H200 for 0 to 30. */
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
        "vGPU ECC not supported",
        "Insufficient Resources",
        "Invalid Frequency",
        "Argument version mismatch",
        "Requested functionality has been deprecated",
        "System is not in ready state",
        "No supported GPUs were found",
        "Resource not in correct state to perform requested operation",
        "Reset type is not supported for given device",
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
