/*
 * cuda_claims: behaviour of libcuda that programs depend on, one claim a line: "ok NAME" or "not ok NAME (line)".
 * Public API only, so that a real driver can be held to the same claims as the simulated one.
 */
/* clang-format off */
#define CUDA_WANTED(ROW)                                                                                               \
    ROW (cuInit) ROW (cuDeviceGet) ROW (cuDeviceGetUuid) ROW (cuDeviceTotalMem_v2) ROW (cuCtxCreate_v2)                \
    ROW (cuCtxDestroy_v2) ROW (cuCtxSynchronize) ROW (cuCtxGetCurrent) ROW (cuCtxPopCurrent_v2)                        \
    ROW (cuCtxPushCurrent_v2) ROW (cuCtxSetCurrent) ROW (cuDevicePrimaryCtxRetain) ROW (cuDevicePrimaryCtxRelease)     \
    ROW (cuMemGetInfo_v2) ROW (cuMemAlloc_v2) ROW (cuMemFree_v2) ROW (cuMemAllocPitch_v2) ROW (cuMemCreate)            \
    ROW (cuMemRelease) ROW (cuMemAddressReserve) ROW (cuMemAddressFree) ROW (cuMemMap) ROW (cuMemUnmap)                \
    ROW (cuMemExportToShareableHandle) ROW (cuMemImportFromShareableHandle) ROW (cuMemAllocAsync)                      \
    ROW (cuMemFreeAsync) ROW (cuStreamSynchronize) ROW (cuStreamCreate) ROW (cuStreamBeginCapture_v2)                  \
    ROW (cuStreamEndCapture) ROW (cuGraphInstantiateWithFlags) ROW (cuGraphLaunch) ROW (cuGraphExecDestroy)            \
    ROW (cuGraphDestroy) ROW (cuDeviceGraphMemTrim) ROW (cuMemAllocManaged) ROW (cuMemsetD8_v2)                        \
    ROW (cuMemcpyHtoD_v2) ROW (cuMemcpyDtoH_v2) ROW (cuMemHostRegister_v2) ROW (cuMemHostUnregister)                   \
    ROW (cuIpcGetMemHandle) ROW (cuIpcOpenMemHandle_v2) ROW (cuIpcCloseMemHandle) ROW (cuMemPoolSetAttribute)          \
    ROW (cuDeviceGetDefaultMemPool) ROW (cuMemPoolTrimTo)
/* clang-format on */
#include "cuda_api.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t) 1 << 20)

static bool failed;
static CUdevice device;
static CUcontext context;

static void claim (bool holds, const char *name, int line)
{
    if (holds)
        printf ("ok %s\n", name);
    else
        printf ("not ok %s (line %d)\n", name, line);
    failed |= !holds;
}
#define CLAIM(name, condition) claim (condition, name, __LINE__)

static size_t unused (void)
{
    size_t available = 0, total = 0;

    MUST (api.cuMemGetInfo_v2 (&available, &total));
    return available;
}

/* Memory behind a descriptor is freed when the descriptor's last reference is: FUSE, which serves the simulated nodes, is not waited for
 * by close(2). */
static bool is_soon_unused (size_t bytes)
{
    for (int i = 0; i < 1000 && unused () != bytes; i++)
        usleep (1000);
    return unused () == bytes;
}

static void contexts (void)
{
    CUcontext other = NULL, current = NULL;

    CLAIM ("memory-information-takes-null", api.cuMemGetInfo_v2 (NULL, NULL) == CUDA_SUCCESS);
    CLAIM ("popping-leaves-no-context", api.cuCtxPopCurrent_v2 (&other) == CUDA_SUCCESS && other == context &&
                                            api.cuCtxGetCurrent (&current) == CUDA_SUCCESS && current == NULL);
    CLAIM ("without-context-is-an-error", api.cuCtxSynchronize () == CUDA_ERROR_INVALID_CONTEXT);
    CLAIM ("pushing-brings-it-back", api.cuCtxPushCurrent_v2 (context) == CUDA_SUCCESS);
    size_t before = unused ();
    MUST (api.cuDevicePrimaryCtxRetain (&other, device));
    CLAIM ("primary-context-is-one", api.cuDevicePrimaryCtxRetain (&current, device) == CUDA_SUCCESS && other == current);
    CLAIM ("primary-context-takes-memory", before - unused () > 400 * MIB);
    MUST (api.cuDevicePrimaryCtxRelease (device));
    MUST (api.cuDevicePrimaryCtxRelease (device));
    CLAIM ("released-primary-context-gives-it-back", before - unused () < 16 * MIB);
    CLAIM ("released-once-too-often", api.cuDevicePrimaryCtxRelease (device) == CUDA_ERROR_INVALID_CONTEXT);
}

static void plain_memory (void)
{
    CUdeviceptr pointer = 0;
    size_t pitch = 0, before = unused ();
    char text[] = "contents", back[sizeof (text)] = "";

    CLAIM ("nothing-cannot-be-allocated", api.cuMemAlloc_v2 (&pointer, 0) == CUDA_ERROR_INVALID_VALUE);
    CLAIM ("too-much-is-out-of-memory", api.cuMemAlloc_v2 (&pointer, (size_t) 1 << 45) == CUDA_ERROR_OUT_OF_MEMORY);
    CLAIM ("refusal-takes-nothing", unused () == before);
    MUST (api.cuMemAlloc_v2 (&pointer, 64 * MIB));
    CLAIM ("allocation-takes-its-size", before - unused () == 64 * MIB);
    CLAIM ("only-the-start-is-freed", api.cuMemFree_v2 (pointer + 512) == CUDA_ERROR_INVALID_VALUE);
    MUST (api.cuMemcpyHtoD_v2 (pointer + MIB, text, sizeof (text)));
    MUST (api.cuMemcpyDtoH_v2 (back, pointer + MIB, sizeof (text)));
    CLAIM ("small-copies-keep-contents", strcmp (text, back) == 0);
    MUST (api.cuMemFree_v2 (pointer));
    CLAIM ("freeing-gives-it-back", unused () == before);
    CLAIM ("freeing-twice-is-an-error", api.cuMemFree_v2 (pointer) == CUDA_ERROR_INVALID_VALUE);
    CLAIM ("freeing-null-is-none", api.cuMemFree_v2 (0) == CUDA_SUCCESS);
    bool is_every_size = true;
    for (size_t size = MIB; size <= 3 * MIB; size += MIB / 2)
        is_every_size = is_every_size && api.cuMemAlloc_v2 (&pointer, size) == CUDA_SUCCESS &&
                        api.cuMemFree_v2 (pointer) == CUDA_SUCCESS;
    CLAIM ("sizes-between-blocks-are-given", is_every_size);
    MUST (api.cuMemAllocPitch_v2 (&pointer, &pitch, 1000, 100, 4));
    CLAIM ("pitch-is-a-multiple-of-512", pitch == 1024);
    MUST (api.cuMemFree_v2 (pointer));
}

static void virtual_memory (void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties;
    CUdeviceptr address = 0;
    size_t before = unused ();
    int fd = -1;

    memset (&properties, 0, sizeof (properties));
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST (api.cuMemCreate (&handle, 64 * MIB, &properties, 0));
    MUST (api.cuMemAddressReserve (&address, 64 * MIB, 0, 0, 0));
    MUST (api.cuMemMap (address, 64 * MIB, 0, handle, 0));
    MUST (api.cuMemRelease (handle));
    CLAIM ("mapped-memory-outlives-its-handle", before - unused () == 64 * MIB);
    MUST (api.cuMemUnmap (address, 64 * MIB));
    CLAIM ("unmapping-the-last-frees", unused () == before);
    MUST (api.cuMemAddressFree (address, 64 * MIB));
    MUST (api.cuMemCreate (&handle, 64 * MIB, &properties, 0));
    MUST (api.cuMemExportToShareableHandle (&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST (api.cuMemRelease (handle));
    CLAIM ("exported-memory-stays", before - unused () == 64 * MIB);
    MUST (api.cuMemImportFromShareableHandle (&handle, (void *) (intptr_t) fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close (fd);
    CLAIM ("imported-memory-is-the-same", before - unused () == 64 * MIB);
    MUST (api.cuMemRelease (handle));
    CLAIM ("the-last-one-frees-exports", is_soon_unused (before));
}

static void pools_and_graphs (void)
{
    size_t before = unused ();
    uint64_t threshold = (uint64_t) 1 << 40;
    CUdeviceptr pointer = 0;
    CUmemoryPool pool;
    CUstream stream;
    CUgraph graph;
    CUgraphExec ready;

    MUST (api.cuMemAllocAsync (&pointer, 100 * MIB, NULL));
    MUST (api.cuStreamSynchronize (NULL));
    CLAIM ("pools-grow-by-32-mib", before - unused () >= 128 * MIB && before - unused () <= 136 * MIB);
    MUST (api.cuMemFreeAsync (pointer, NULL));
    MUST (api.cuStreamSynchronize (NULL));
    size_t after = unused (); /* a real pool has an overhead */
    CLAIM ("pools-give-back-at-a-synchronisation", before - after <= 8 * MIB);
    MUST (api.cuDeviceGetDefaultMemPool (&pool, device));
    MUST (api.cuMemPoolSetAttribute (pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST (api.cuMemAllocAsync (&pointer, 100 * MIB, NULL));
    MUST (api.cuMemFreeAsync (pointer, NULL));
    MUST (api.cuStreamSynchronize (NULL));
    CLAIM ("pools-keep-below-their-threshold", after - unused () == 128 * MIB);
    MUST (api.cuMemPoolTrimTo (pool, 0));
    CLAIM ("trimming-gives-back", unused () == after);
    MUST (api.cuStreamCreate (&stream, CU_STREAM_NON_BLOCKING));
    MUST (api.cuStreamBeginCapture_v2 (stream, 0));
    MUST (api.cuMemAllocAsync (&pointer, 40 * MIB, stream));
    MUST (api.cuMemFreeAsync (pointer, stream));
    CLAIM ("capturing-streams-cannot-be-waited-for", api.cuStreamSynchronize (stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUresult ended = api.cuStreamEndCapture (stream, &graph);
    if (ended == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) /* a real driver: the failed call above invalidates the capture */
        return;
    MUST (ended);
    MUST (api.cuGraphInstantiateWithFlags (&ready, graph, 0));
    MUST (api.cuGraphLaunch (ready, stream));
    MUST (api.cuGraphLaunch (ready, stream));
    MUST (api.cuStreamSynchronize (stream));
    CLAIM ("launched-graphs-keep-memory", after - unused () >= 32 * MIB);
    MUST (api.cuGraphExecDestroy (ready));
    MUST (api.cuGraphDestroy (graph));
    MUST (api.cuDeviceGraphMemTrim (device));
    CLAIM ("trimming-graphs-gives-back", after - unused () <= 8 * MIB);
}

static void other_memory (void)
{
    CUdeviceptr pointer = 0;
    CUipcMemHandle handle;
    size_t before = unused ();
    void *mine = aligned_alloc (4096, MIB);

    MUST (api.cuMemAllocManaged (&pointer, 64 * MIB, CU_MEM_ATTACH_GLOBAL));
    MUST (api.cuMemsetD8_v2 (pointer, 1, 64 * MIB));
    MUST (api.cuCtxSynchronize ());
    CLAIM ("managed-memory-lies-on-the-gpu-when-set", before - unused () >= 64 * MIB);
    MUST (api.cuMemFree_v2 (pointer));
    CLAIM ("freed-managed-memory-is-gone", before - unused () <= 64 * MIB);
    MUST (api.cuMemHostRegister_v2 (mine, MIB, 0));
    CLAIM ("memory-is-registered-once", api.cuMemHostRegister_v2 (mine, MIB, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    MUST (api.cuMemHostUnregister (mine));
    CLAIM ("unregistered-once", api.cuMemHostUnregister (mine) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    free (mine);
    MUST (api.cuMemAlloc_v2 (&pointer, 4 * MIB));
    MUST (api.cuIpcGetMemHandle (&handle, pointer));
    CUdeviceptr again;
    CLAIM ("own-memory-is-not-opened", api.cuIpcOpenMemHandle_v2 (&again, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);
    MUST (api.cuMemFree_v2 (pointer));
}

/* A new process (exec) opens this one's memory. */
static void other_process (const char *self)
{
    CUdeviceptr pointer = 0;
    CUipcMemHandle handle;
    char text[2 * sizeof (handle) + 1];
    int status = -1;

    MUST (api.cuMemAlloc_v2 (&pointer, 64 * MIB));
    MUST (api.cuIpcGetMemHandle (&handle, pointer));
    for (size_t i = 0; i < sizeof (handle); i++)
        snprintf (text + 2 * i, 3, "%02x", (unsigned char) handle.reserved[i]);
    fflush (stdout);
    pid_t child = fork ();
    if (child == 0) {
        execl (self, self, text, (char *) NULL);
        _exit (127);
    }
    waitpid (child, &status, 0);
    CLAIM ("another-process-opens-it", WIFEXITED (status) && WEXITSTATUS (status) == 0);
    MUST (api.cuMemFree_v2 (pointer));
}

static int as_other_process (const char *text)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer = 0;

    for (size_t i = 0; i < sizeof (handle) && text[2 * i] != '\0'; i++) {
        char byte[3] = { text[2 * i], text[2 * i + 1], '\0' };
        handle.reserved[i] = (char) strtoul (byte, NULL, 16);
    }
    size_t before = unused ();
    MUST (api.cuIpcOpenMemHandle_v2 (&pointer, handle, 1));
    bool same = unused () + 4 * MIB >= before; /* no second copy */
    MUST (api.cuIpcCloseMemHandle (pointer));
    return !same;
}

static void *in_thread (void *count)
{
    CUdeviceptr pointers[16];

    if (api.cuCtxSetCurrent (context) != CUDA_SUCCESS)
        return NULL;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 16; i++) {
            if (api.cuMemAlloc_v2 (&pointers[i], i % 2 == 0 ? 3000 : 2 * MIB) != CUDA_SUCCESS)
                return NULL;
        }
        for (int i = 0; i < 16; i++) {
            if (api.cuMemFree_v2 (pointers[i]) != CUDA_SUCCESS)
                return NULL;
        }
    }
    return count;
}

static void threads_and_fork (void)
{
    pthread_t threads[4];
    bool done[4];
    size_t before = unused ();
    bool all = true;
    int status = -1;

    for (int i = 0; i < 4; i++)
        all = all && pthread_create (&threads[i], NULL, in_thread, &done[i]) == 0;
    for (int i = 0; all && i < 4; i++) {
        void *result = NULL;
        all = pthread_join (threads[i], &result) == 0 && result == &done[i];
    }
    CLAIM ("threads-allocate-together", all && before <= unused () + 2 * MIB);
    pid_t child = fork ();
    if (child == 0) {
        CUdeviceptr pointer;
        _exit (api.cuInit (0) != CUDA_ERROR_NOT_INITIALIZED || api.cuMemAlloc_v2 (&pointer, 1) != CUDA_ERROR_NOT_INITIALIZED);
    }
    waitpid (child, &status, 0);
    CLAIM ("a-forked-child-is-not-initialised", WIFEXITED (status) && WEXITSTATUS (status) == 0);
    CLAIM ("the-parent-goes-on", unused () > 0);
}

int main (int argc, char **argv)
{
    setvbuf (stdout, NULL, _IOLBF, 0);
    cuda_load ();
    CLAIM ("nothing-before-initialising", api.cuDeviceGet (&device, 0) == CUDA_ERROR_NOT_INITIALIZED);
    CLAIM ("flags-must-be-zero", api.cuInit (1) == CUDA_ERROR_INVALID_VALUE);
    MUST (api.cuInit (0));
    MUST (api.cuDeviceGet (&device, 0));
    MUST (api.cuCtxCreate_v2 (&context, 0, device));
    if (argc > 1)
        return as_other_process (argv[1]);
    contexts ();
    plain_memory ();
    virtual_memory ();
    other_memory ();
    other_process (argv[0]);
    threads_and_fork ();
    pools_and_graphs ();
    MUST (api.cuCtxDestroy_v2 (context));
    CLAIM ("destroyed-once", api.cuCtxDestroy_v2 (context) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return failed;
}
