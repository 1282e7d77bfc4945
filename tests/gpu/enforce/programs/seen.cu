/*
 * What every way of asking says about the GPU's memory, while this process holds BYTES of it.
 *
 * usage: seen BYTES                "name value" lines, then "full", and it waits for a line
 */
#include "check.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#define RUNTIME(call) must_runtime ((call), #call)

/* nvml.h is not part of every toolkit; these two are what it says. */
struct memory_v1 {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};
#define MEMORY_V2 (unsigned int) (sizeof (struct memory_v2) | 2u << 24)

static void must_runtime (cudaError_t result, const char *call)
{
    if (result == cudaSuccess)
        return;
    fprintf (stderr, "seen.cu: %s: %s\n", call, cudaGetErrorString (result));
    exit (1);
}

static void *symbol (void *library, const char *name)
{
    void *found = dlsym (library, name);
    if (found == NULL) {
        fprintf (stderr, "seen.cu: %s\n", dlerror ());
        exit (1);
    }
    return found;
}

static void must_nvml (int result, const char *call)
{
    if (result == 0)
        return;
    fprintf (stderr, "seen.cu: %s: %d\n", call, result);
    exit (1);
}

static void ask_nvml (void)
{
    void *library = dlopen ("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf (stderr, "seen.cu: %s\n", dlerror ());
        exit (1);
    }
    typedef int (*init_function) (void);
    typedef int (*handle_function) (unsigned int, void **);
    typedef int (*memory_function) (void *, void *);
    void *device;
    struct memory_v1 first = {};
    struct memory_v2 second = {};
    second.version = MEMORY_V2;
    must_nvml (((init_function) symbol (library, "nvmlInit_v2")) (), "nvmlInit_v2");
    must_nvml (((handle_function) symbol (library, "nvmlDeviceGetHandleByIndex_v2")) (0, &device), "handle");
    must_nvml (((memory_function) symbol (library, "nvmlDeviceGetMemoryInfo")) (device, &first), "memory v1");
    must_nvml (((memory_function) symbol (library, "nvmlDeviceGetMemoryInfo_v2")) (device, &second), "memory v2");
    say ("nvml_v1_total", first.total);
    say ("nvml_v1_free", first.free);
    say ("nvml_v1_used", first.used);
    say ("nvml_v2_total", second.total);
    say ("nvml_v2_reserved", second.reserved);
    say ("nvml_v2_free", second.free);
    say ("nvml_v2_used", second.used);
}

int main (int argc, char **argv)
{
    if (argc != 2)
        return 2;
    CUdevice device = begin_cuda ();
    CUdeviceptr address;
    cudaDeviceProp properties;
    size_t free, total;
    RUNTIME (cudaFree (NULL)); /* what the runtime allocates once */
    MUST (cuMemAlloc (&address, (size_t) strtoull (argv[1], NULL, 10)));
    MUST (cuMemGetInfo (&free, &total));
    say ("cuMemGetInfo_free", free);
    say ("cuMemGetInfo_total", total);
    MUST (cuDeviceTotalMem (&total, device));
    say ("cuDeviceTotalMem", total);
    RUNTIME (cudaMemGetInfo (&free, &total));
    say ("cudaMemGetInfo_free", free);
    say ("cudaMemGetInfo_total", total);
    RUNTIME (cudaGetDeviceProperties (&properties, 0));
    say ("cudaGetDeviceProperties", properties.totalGlobalMem);
    ask_nvml ();
    wait_for_line ("full");
    return 0;
}
