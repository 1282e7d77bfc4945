/*
 * cuda_alloc [MAXIMUM [MEBIBYTES]]: how much memory each allocator grants, in pieces of MEBIBYTES (1024), not more than
 * MAXIMUM (8) pieces each. Prints key=value lines: for every allocator the number of pieces and the error that ended it
 * (0: none); free memory before and after (in KiB), so that a leak shows.
 */
#include "cuda_api.h"

#include <string.h>

#define MAX_PIECES 1024

static size_t size;
static int maximum;
static CUdeviceptr pointers[MAX_PIECES];
static CUmemGenericAllocationHandle handles[MAX_PIECES];

static size_t free_kibibytes (const char *key)
{
    size_t available = 0, total = 0;

    MUST (api.cuMemGetInfo_v2 (&available, &total));
    printf ("%s_free_kib=%zu\n%s_total_kib=%zu\n", key, available >> 10, key, total >> 10);
    return available >> 10;
}

static void say (const char *allocator, int count, CUresult error)
{
    printf ("%s=%d\n%s_error=%d\n", allocator, count, allocator, (int) error);
}

static void plain (void)
{
    CUresult error = CUDA_SUCCESS;
    int count = 0;

    while (count < maximum && (error = api.cuMemAlloc_v2 (&pointers[count], size)) == CUDA_SUCCESS)
        count++;
    free_kibibytes ("plain");
    say ("plain", count, error);
    while (count > 0)
        MUST (api.cuMemFree_v2 (pointers[--count]));
}

static void virtual (void)
{
    CUmemAllocationProp properties;
    CUresult error = CUDA_SUCCESS;
    int count = 0;

    memset (&properties, 0, sizeof (properties));
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    while (count < maximum && (error = api.cuMemCreate (&handles[count], size, &properties, 0)) == CUDA_SUCCESS)
        count++;
    say ("virtual", count, error);
    while (count > 0)
        MUST (api.cuMemRelease (handles[--count]));
}

static void asynchronous (CUdevice device)
{
    CUresult error = CUDA_SUCCESS;
    CUmemoryPool pool;
    int count = 0;

    while (count < maximum && (error = api.cuMemAllocAsync (&pointers[count], size, NULL)) == CUDA_SUCCESS)
        count++;
    say ("asynchronous", count, error);
    while (count > 0)
        MUST (api.cuMemFreeAsync (pointers[--count], NULL));
    MUST (api.cuStreamSynchronize (NULL));
    MUST (api.cuDeviceGetDefaultMemPool (&pool, device));
    MUST (api.cuMemPoolTrimTo (pool, 0));
}

static void managed (void)
{
    CUresult error = CUDA_SUCCESS;
    int count = 0;

    while (count < maximum && (error = api.cuMemAllocManaged (&pointers[count], size, CU_MEM_ATTACH_GLOBAL)) == CUDA_SUCCESS) {
        MUST (api.cuMemsetD8_v2 (pointers[count], 1, size));
        count++;
    }
    MUST (api.cuCtxSynchronize ());
    say ("managed", count, error);
    while (count > 0)
        MUST (api.cuMemFree_v2 (pointers[--count]));
}

static void arrays (void)
{
    /* 1 KiB a row. */
    const CUDA_ARRAY_DESCRIPTOR description = { .Width = 64, .Height = 16384, .Format = 0x20, .NumChannels = 4 };
    CUarray array;
    CUresult error = api.cuArrayCreate_v2 (&array, &description);

    say ("array", error == CUDA_SUCCESS, error);
    if (error == CUDA_SUCCESS)
        MUST (api.cuArrayDestroy (array));
}

static void host (void)
{
    void *memory;
    CUresult error = api.cuMemAllocHost_v2 (&memory, 1 << 20);

    say ("host", error == CUDA_SUCCESS, error);
    if (error == CUDA_SUCCESS)
        MUST (api.cuMemFreeHost (memory));
}

/* Many pieces of a few KiB: the driver sub-allocates them from one block. */
static void small (void)
{
    CUresult error = CUDA_SUCCESS;
    int count = 0;

    while (count < MAX_PIECES && (error = api.cuMemAlloc_v2 (&pointers[count], 1000)) == CUDA_SUCCESS)
        count++;
    say ("small", count, error);
    while (count > 0)
        MUST (api.cuMemFree_v2 (pointers[--count]));
}

int main (int argc, char **argv)
{
    CUdevice device;
    CUcontext context;

    maximum = argc > 1 ? atoi (argv[1]) : 8;
    size = (size_t) (argc > 2 ? atoi (argv[2]) : 1024) << 20;
    if (maximum < 0 || maximum > MAX_PIECES || size == 0)
        return 2;
    setvbuf (stdout, NULL, _IOLBF, 0);
    cuda_load ();
    MUST (api.cuInit (0));
    MUST (api.cuDeviceGet (&device, 0));
    CUresult error = api.cuCtxCreate_v2 (&context, 0, device);
    printf ("context_error=%d\n", (int) error);
    if (error != CUDA_SUCCESS)
        return 1;
    small ();
    size_t before = free_kibibytes ("start");
    plain ();
    virtual ();
    asynchronous (device);
    managed ();
    arrays ();
    host ();
    small ();
    size_t after = free_kibibytes ("end");
    printf ("leaked_kib=%lld\n", (long long) before - (long long) after);
    MUST (api.cuCtxDestroy_v2 (context));
    return 0;
}
