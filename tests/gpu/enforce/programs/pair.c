/*
 * One process and all GPUs that it sees. Lines are of a GPU by its number in CUDA: "free_1 ..."; the first are "bus_1 ...",
 * its PCI domain << 16 | bus << 8 | device, and "count ...".
 *
 * usage: pair seen BYTES       holds BYTES on each; what each says of itself; "full", and it waits for a line
 *        pair exact            all that is free on each in one piece, then a granule more
 *        pair peers            answers about peers, copies, memory of the first that the second may use
 *        pair streams          memory of the first's pool, taken on a stream of the second
 */
#include "check.h"

#include <stdbool.h>

#define GRANULE (2 * MIB)
#define BYTES (256 * MIB)
#define MAX_GPUS 16

static CUcontext contexts[MAX_GPUS];
static int count;

static void on (int gpu) { MUST (cuCtxSetCurrent (contexts[gpu])); }

static void say_of (const char *name, int gpu, unsigned long long value)
{
    char line[96];
    snprintf (line, sizeof line, "%s_%d", name, gpu);
    say (line, value);
}

static void answer (const char *name, CUresult result) { say (name, (unsigned long long) result); }

/* "free_WHERE_GPU" of all, with nothing pending. */
static void point (const char *where)
{
    char name[64];
    snprintf (name, sizeof name, "free_%s", where);
    for (int gpu = 0; gpu < count; gpu++) {
        on (gpu);
        MUST (cuCtxSynchronize ());
        say_of (name, gpu, memory_free ());
    }
}

static void begin (void)
{
    MUST (cuInit (0));
    MUST (cuDeviceGetCount (&count));
    count = count < MAX_GPUS ? count : MAX_GPUS;
    for (int gpu = 0; gpu < count; gpu++) {
        CUdeviceptr warm;
        int domain, bus, slot;
        MUST (cuDevicePrimaryCtxRetain (&contexts[gpu], gpu));
        on (gpu);
        MUST (cuMemAlloc (&warm, BYTES));
        MUST (cuMemFree (warm));
        MUST (cuDeviceGetAttribute (&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, gpu));
        MUST (cuDeviceGetAttribute (&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, gpu));
        MUST (cuDeviceGetAttribute (&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, gpu));
        say_of ("bus", gpu, (unsigned long long) domain << 16 | (unsigned) bus << 8 | (unsigned) slot);
    }
    say ("count", (unsigned long long) count);
}

static void seen (size_t bytes)
{
    for (int gpu = 0; gpu < count; gpu++) {
        CUdeviceptr address;
        size_t total;
        on (gpu);
        MUST (cuMemAlloc (&address, bytes));
        MUST (cuDeviceTotalMem (&total, gpu));
        say_of ("total", gpu, memory_total ());
        say_of ("device_total", gpu, total);
        say_of ("free", gpu, memory_free ());
    }
    wait_for_line ("full");
}

static void exact (void)
{
    CUdeviceptr pieces[MAX_GPUS], more;
    point ("start");
    for (int gpu = 0; gpu < count; gpu++) {
        on (gpu);
        size_t all = memory_free () & ~(GRANULE - 1);
        say_of ("asked", gpu, all);
        CUresult result = cuMemAlloc (&pieces[gpu], all);
        say_of ("status_all", gpu, (unsigned long long) result);
        if (result != CUDA_SUCCESS)
            exit (1);
    }
    point ("full");
    for (int gpu = 0; gpu < count; gpu++) {
        on (gpu);
        say_of ("status_more", gpu, (unsigned long long) cuMemAlloc (&more, GRANULE));
        MUST (cuMemFree (pieces[gpu]));
    }
    point ("end");
}

static void ask_about_peers (void)
{
    static const CUdevice_P2PAttribute attributes[] = { CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK,
                                                        CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
                                                        CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                                        CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED };
    for (int from = 0; from < 2; from++) {
        int can, value;
        char name[64];
        MUST (cuDeviceCanAccessPeer (&can, from, !from));
        say_of ("can", from, (unsigned long long) can);
        for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
            MUST (cuDeviceGetP2PAttribute (&value, attributes[i], from, !from));
            snprintf (name, sizeof name, "p2p_%d", (int) attributes[i]);
            say_of (name, from, (unsigned long long) value);
        }
    }
}

/* Memory of the first GPU, mapped where both may use it. */
static CUdeviceptr map_for_both (CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp properties;
    CUmemAccessDesc access[2];
    CUdeviceptr address;
    memset (&properties, 0, sizeof properties);
    memset (access, 0, sizeof access);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 0;
    MUST (cuMemCreate (handle, BYTES, &properties, 0));
    MUST (cuMemAddressReserve (&address, BYTES, 0, 0, 0));
    MUST (cuMemMap (address, BYTES, 0, *handle, 0));
    for (int gpu = 0; gpu < 2; gpu++) {
        access[gpu].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[gpu].location.id = gpu;
        access[gpu].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    MUST (cuMemSetAccess (address, BYTES, access, 2));
    return address;
}

static void peers (void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr first, second, both;
    unsigned char byte = 0;
    ask_about_peers ();
    for (int gpu = 0; gpu < 2; gpu++) {
        on (gpu);
        CUresult result = cuCtxEnablePeerAccess (contexts[!gpu], 0);
        say_of ("status_enable", gpu, (unsigned long long) result);
        if (result != CUDA_SUCCESS)
            return;
    }
    point ("start");
    on (0);
    MUST (cuMemAlloc (&first, BYTES));
    MUST (cuMemsetD8 (first, 41, BYTES));
    MUST (cuCtxSynchronize ());
    point ("first");
    on (1);
    MUST (cuMemAlloc (&second, BYTES));
    MUST (cuMemcpyPeer (second, contexts[1], first, contexts[0], BYTES));
    MUST (cuMemcpyDtoH (&byte, second + BYTES - 1, 1));
    say ("byte_copied", byte);
    point ("second");
    on (0);
    MUST (cuMemFree (first));
    MUST (cuMemFree (second)); /* by the other GPU's context, which CUDA allows */
    point ("freed");
    both = map_for_both (&handle);
    on (1);
    MUST (cuMemsetD8 (both, 42, BYTES));
    MUST (cuCtxSynchronize ());
    on (0);
    MUST (cuMemcpyDtoH (&byte, both + BYTES - 1, 1));
    say ("byte_shared", byte);
    MUST (cuMemRelease (handle));
    point ("both");
    MUST (cuMemUnmap (both, BYTES));
    MUST (cuMemAddressFree (both, BYTES));
    point ("end");
}

static void streams (void)
{
    CUmemAccessDesc access;
    CUmemPoolProps properties;
    CUmemoryPool pool, own;
    CUdeviceptr address;
    CUstream stream;
    memset (&access, 0, sizeof access);
    memset (&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 0;
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = 1;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST (cuMemPoolCreate (&pool, &properties));
    MUST (cuMemPoolSetAccess (pool, &access, 1));
    on (1);
    MUST (cuStreamCreate (&stream, CU_STREAM_NON_BLOCKING));
    point ("start");
    on (1);
    answer ("status_take", cuMemAllocFromPoolAsync (&address, BYTES, pool, stream));
    MUST (cuMemsetD8Async (address, 1, BYTES, stream));
    MUST (cuStreamSynchronize (stream));
    point ("taken");
    on (1);
    MUST (cuMemFreeAsync (address, stream));
    MUST (cuStreamSynchronize (stream));
    MUST (cuMemPoolTrimTo (pool, 0));
    point ("given");
    /* The pool of the stream's GPU, whatever context is current. */
    on (0);
    CUresult result = cuMemAllocAsync (&address, BYTES, stream);
    answer ("status_own", result);
    MUST (cuStreamSynchronize (stream));
    point ("own");
    if (result == CUDA_SUCCESS) {
        MUST (cuMemFreeAsync (address, stream));
        MUST (cuStreamSynchronize (stream));
    }
    MUST (cuDeviceGetMemPool (&own, 1));
    MUST (cuMemPoolTrimTo (own, 0));
    MUST (cuMemPoolDestroy (pool));
    point ("end");
}

int main (int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";
    begin ();
    if (strcmp (scene, "seen") == 0 && argc == 3)
        seen (strtoull (argv[2], NULL, 10));
    else if (strcmp (scene, "exact") == 0)
        exact ();
    else if (strcmp (scene, "peers") == 0 && count == 2)
        peers ();
    else if (strcmp (scene, "streams") == 0 && count == 2)
        streams ();
    else
        return 2;
    return 0;
}
