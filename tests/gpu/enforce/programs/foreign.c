/*
 * Frees that are wrong, and memory that came from elsewhere: the driver's own answers, as "status_..." lines.
 *
 * usage: foreign frees | releases | importer | external
 */
#include "peers.h"

#define BYTES (64 * MIB)

static CUdevice device;

static void answer (const char *name, CUresult result) { say (name, (unsigned long long) result); }

static CUmemAllocationProp exportable (void)
{
    CUmemAllocationProp properties;
    memset (&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}

/* CUDA begins; and what the driver allocates once. */
static void prepare (void)
{
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    CUdeviceptr address;
    device = begin_cuda ();
    properties = exportable ();
    MUST (cuMemCreate (&handle, BYTES, &properties, 0));
    MUST (cuMemRelease (handle));
    MUST (cuMemAlloc (&address, BYTES));
    MUST (cuMemFree (address));
    MUST (cuMemAllocAsync (&address, BYTES, NULL));
    MUST (cuMemFreeAsync (address, NULL));
    MUST (cuStreamSynchronize (NULL));
    MUST (cuDeviceGetDefaultMemPool (&pool, device));
    MUST (cuMemPoolTrimTo (pool, 0));
}

static void frees (void)
{
    CUdeviceptr twice, live, pooled;
    CUmemoryPool pool;
    void *host;
    static char own[4096];
    MUST (cuMemAlloc (&twice, BYTES));
    MUST (cuMemAlloc (&live, BYTES));
    MUST (cuMemAllocHost (&host, MIB));
    say ("free_taken", memory_free ());
    answer ("status_first", cuMemFree (twice));
    answer ("status_twice", cuMemFree (twice));
    say ("free_twice", memory_free ());
    answer ("status_null", cuMemFree (0));
    answer ("status_inside", cuMemFree (live + 4096));
    answer ("status_unknown", cuMemFree (0x123456000ull));
    answer ("status_host", cuMemFree ((CUdeviceptr) (uintptr_t) host));
    answer ("status_not_host", cuMemFreeHost (own));
    answer ("status_not_opened", cuIpcCloseMemHandle (live));
    answer ("status_unmap", cuMemUnmap (0x123400000ull, 2 * MIB));
    MUST (cuMemFreeHost (host));
    say ("free_wrong", memory_free ()); /* of all these only the first may have freed anything */
    answer ("status_live", cuMemFree (live));
    MUST (cuMemAllocAsync (&pooled, BYTES, NULL));
    answer ("status_pooled_unknown", cuMemFreeAsync (0x123456000ull, NULL));
    answer ("status_pooled_first", cuMemFreeAsync (pooled, NULL));
    answer ("status_pooled_twice", cuMemFreeAsync (pooled, NULL));
    MUST (cuMemAllocAsync (&pooled, BYTES, NULL));
    answer ("status_pooled_plain", cuMemFree (pooled));
    MUST (cuStreamSynchronize (NULL));
    MUST (cuDeviceGetDefaultMemPool (&pool, device));
    MUST (cuMemPoolTrimTo (pool, 0));
}

static void releases (void)
{
    CUmemAllocationProp properties = exportable ();
    CUmemGenericAllocationHandle handle;
    MUST (cuMemCreate (&handle, BYTES, &properties, 0));
    say ("free_taken", memory_free ());
    answer ("status_first", cuMemRelease (handle));
    answer ("status_twice", cuMemRelease (handle));
}

static void owner (void)
{
    CUdeviceptr address;
    CUipcMemHandle handle;
    MUST (cuMemAlloc (&address, BYTES));
    MUST (cuIpcGetMemHandle (&handle, address));
    meet ();
    say ("free_taken", memory_free ());
    send_message (&handle, sizeof handle, -1);
    meet (); /* freed there, which is wrong, and closed */
    say ("free_freed_there", memory_free ());
    answer ("status_owner", cuMemFree (address));
    answer ("status_owner_twice", cuMemFree (address));
    say ("free_freed", memory_free ());
    meet ();
}

static void user (void)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    meet ();
    receive_message (&handle, sizeof handle);
    MUST (cuIpcOpenMemHandle (&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    answer ("status_free_opened", cuMemFree (address));
    answer ("status_close", cuIpcCloseMemHandle (address));
    answer ("status_close_twice", cuIpcCloseMemHandle (address));
    meet ();
    meet ();
}

/* Memory of our own by the door that is for Vulkan's: a descriptor that names it. */
static void external (void)
{
    CUmemAllocationProp properties = exportable ();
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from;
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC part;
    CUmemGenericAllocationHandle handle;
    CUexternalMemory memory;
    CUdeviceptr address;
    int descriptor = -1;
    memset (&from, 0, sizeof from);
    memset (&part, 0, sizeof part);
    MUST (cuMemCreate (&handle, BYTES, &properties, 0));
    MUST (cuMemExportToShareableHandle (&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    say ("free_taken", memory_free ());
    from.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    from.handle.fd = descriptor; /* the driver's, if it takes it */
    from.size = BYTES;
    CUresult result = cuImportExternalMemory (&memory, &from);
    answer ("status_import", result);
    if (result == CUDA_SUCCESS) {
        part.size = BYTES;
        result = cuExternalMemoryGetMappedBuffer (&address, memory, &part);
        answer ("status_map", result);
        say ("free_mapped", memory_free ());
        if (result == CUDA_SUCCESS) {
            answer ("status_set", cuMemsetD8 (address, 1, BYTES));
            answer ("status_free", cuMemFree (address));
        }
        answer ("status_destroy", cuDestroyExternalMemory (memory));
        say ("free_destroyed", memory_free ());
    } else {
        close (descriptor);
    }
    MUST (cuMemRelease (handle));
}

int main (int argc, char **argv)
{
    const char *scene = argc == 2 ? argv[1] : "";
    if (strcmp (scene, "frees") == 0)
        return alone (prepare, frees);
    if (strcmp (scene, "releases") == 0)
        return alone (prepare, releases);
    if (strcmp (scene, "external") == 0)
        return alone (prepare, external);
    if (strcmp (scene, "importer") == 0)
        return together (prepare, owner, user);
    return 2;
}
