/*
 * A fake driver library for tests, without a GPU: two GPUs of 16 GiB, counters, and the results observed on an H200
 * with driver 580.159.04 (managed memory: cuMemFreeAsync 801, cuIpcGetMemHandle 1; pitch a multiple of 512). -DOLD: a
 * driver of CUDA 11.0. -DNEWER: one with unknown variants and names.
 */
#include "shim/api/abi.h"

#include <stdbool.h>
#include <string.h>

#define API __attribute__ ((visibility ("default")))
#define GIB (1ull << 30)
#define SIZE (16 * GIB)
#define THINGS 4096

enum kind { NONE, DEVICE, MANAGED, POOL, HANDLE, ARRAY };
static struct thing {
    enum kind kind;
    uint64_t key, bytes;
    int device;
} things[THINGS];
static uint64_t used[2], next_key = 0x7f0000000000;
static _Thread_local int current = -1;
static bool capturing;
static unsigned int calls[64];
static CUstream synchronized;
static int advised = -1;
static struct {
    CUresult result;
    bool refused;
} failing;

/* Of a test's fake libnvc-shim.so: refuses this thread's next mapping. */
void fake_shim_refuse (void) __attribute__ ((weak, visibility ("default")));

#define PROTOTYPE(result, name, parameters)                                                                                        \
    API result name parameters;                                                                                                    \
    API result name parameters
#define COUNT(name) calls[CALL_##name]++
enum call {
    CALL_alloc,
    CALL_managed,
    CALL_free,
    CALL_alloc_async,
    CALL_free_async,
    CALL_pitch,
    CALL_synchronize,
    CALL_export_table
};

PROTOTYPE (unsigned int, fake_calls, (int call)) { return calls[call]; }
PROTOTYPE (uint64_t, fake_used, (int device)) { return used[device]; }
PROTOTYPE (void, fake_capture, (int on)) { capturing = on != 0; }
PROTOTYPE (void, fake_current, (int device)) { current = device; }
PROTOTYPE (void *, fake_synchronized, (void) ) { return synchronized; }
PROTOTYPE (int, fake_advised, (void) ) { return advised; }
/* Managed memory and pools fail from now on (0: no more), with or without a refused mapping. */
PROTOTYPE (void, fake_fail, (CUresult result, int refused))
{
    failing.result = result;
    failing.refused = refused != 0;
}

static CUresult make (enum kind kind, uint64_t *key, uint64_t bytes, int device)
{
    if (key == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0)
        return 201; /* CUDA_ERROR_INVALID_CONTEXT */
    if ((kind == MANAGED || kind == POOL) && failing.result != CUDA_SUCCESS) {
        if (failing.refused && &fake_shim_refuse != NULL)
            fake_shim_refuse ();
        return failing.result;
    }
    if (kind != MANAGED && bytes > SIZE - used[device])
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < THINGS; i++)
        if (things[i].kind == NONE) {
            next_key += 1 << 21;
            things[i] = (struct thing) { kind, next_key, bytes, device };
            if (kind != MANAGED)
                used[device] += bytes;
            *key = next_key;
            return CUDA_SUCCESS;
        }
    return 999;
}

static struct thing *find (uint64_t key)
{
    for (int i = 0; i < THINGS; i++)
        if (things[i].kind != NONE && things[i].key == key)
            return &things[i];
    return NULL;
}

static CUresult destroy (uint64_t key)
{
    struct thing *thing = find (key);
    if (thing == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (thing->kind != MANAGED)
        used[thing->device] -= thing->bytes;
    thing->kind = NONE;
    return CUDA_SUCCESS;
}

PROTOTYPE (CUresult, cuInit, (unsigned int flags)) { return (CUresult) flags; }
PROTOTYPE (CUresult, cuCtxGetDevice, (CUdevice * device))
{
    if (current < 0)
        return 201;
    *device = current & 0xff;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuCtxPushCurrent_v2, (CUcontext context))
{
    current = (int) (uintptr_t) context - 100 + (current << 8);
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuCtxPopCurrent_v2, (CUcontext * context))
{
    *context = NULL;
    current >>= 8;
    return CUDA_SUCCESS;
}
/* A stream is the number of its device and 1000. */
PROTOTYPE (CUresult, cuStreamGetCtx, (CUstream stream, CUcontext *context))
{
    *context = (CUcontext) ((uintptr_t) stream - 900);
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))
{
    if (device < 0 || device > 1)
        return 101;
    memset (uuid->bytes, 0x10 + device, sizeof (uuid->bytes));
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))
{
    *value = attribute == CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT ? 512 : device >= 0;
#ifdef NO_CONCURRENT
    if (attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
        *value = 0;
#endif
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))
{
    COUNT (alloc);
    return make (DEVICE, (uint64_t *) pointer, bytes, current);
}
PROTOTYPE (CUresult, cuMemAlloc, (CUdeviceptr_v1 * pointer, unsigned int bytes))
{
    uint64_t key;
    CUresult result = make (DEVICE, &key, bytes, current);
    if (result == CUDA_SUCCESS)
        *pointer = (CUdeviceptr_v1) (find (key)->key &= 0xffffffff);
    return result;
}
PROTOTYPE (CUresult, cuMemAllocPitch_v2, (CUdeviceptr * pointer, size_t *pitch, size_t width, size_t height, unsigned int element))
{
    COUNT (pitch);
    if (pitch == NULL || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return make (DEVICE, (uint64_t *) pointer, *pitch * height, current);
}
PROTOTYPE (CUresult, cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags))
{
    COUNT (managed);
    return flags == 0 ? CUDA_ERROR_INVALID_VALUE : make (MANAGED, (uint64_t *) pointer, bytes, current);
}
PROTOTYPE (CUresult, cuMemAdvise, (CUdeviceptr pointer, size_t bytes, int advice, CUdevice device))
{
    (void) bytes;
    advised = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION && find (pointer)->kind == MANAGED ? device : -2;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuMemFree_v2, (CUdeviceptr pointer))
{
    COUNT (free);
    return pointer == 0 ? CUDA_SUCCESS : destroy (pointer);
}
PROTOTYPE (CUresult, cuMemFree, (CUdeviceptr_v1 pointer)) { return pointer == 0 ? CUDA_SUCCESS : destroy (pointer); }
PROTOTYPE (CUresult, cuMemGetInfo_v2, (size_t * free, size_t *total))
{
    if (current < 0)
        return 201;
    if (free != NULL)
        *free = SIZE - used[current];
    if (total != NULL)
        *total = SIZE;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))
{
    if (bytes == NULL || device < 0 || device > 1)
        return bytes == NULL ? CUDA_ERROR_INVALID_VALUE : 101;
    *bytes = SIZE;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))
{
    (void) device;
    *bytes = 0xffffffff;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuIpcGetMemHandle, (void *handle, CUdeviceptr pointer))
{
    struct thing *thing = find (pointer);
    (void) handle;
    return thing != NULL && thing->kind == DEVICE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PROTOTYPE (CUresult, cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr pointer))
{
    struct thing *thing = find (pointer);
    if (thing == NULL || attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *) value = thing->device;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor))
{
    return descriptor == NULL ? CUDA_ERROR_INVALID_VALUE : make (ARRAY, (uint64_t *) array, 4096, current);
}
PROTOTYPE (CUresult, cuArrayDestroy, (CUarray array)) { return destroy ((uintptr_t) array); }
PROTOTYPE (CUresult, cuMemCreate,
           (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags))
{
    (void) flags;
    if (properties == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return make (HANDLE, (uint64_t *) handle, bytes, properties->location.id);
}
PROTOTYPE (CUresult, cuMemRelease, (CUmemGenericAllocationHandle handle)) { return destroy (handle); }
PROTOTYPE (CUresult, cuMemMap,
           (CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))
{
    (void) pointer, (void) bytes, (void) offset, (void) flags;
    return find (handle) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PROTOTYPE (CUresult, cuMemUnmap, (CUdeviceptr pointer, size_t bytes))
{
    return pointer != 0 && bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PROTOTYPE (CUresult, cuGetExportTable, (const void **table, const CUuuid *identity))
{
    COUNT (export_table);
    *table = identity;
    return CUDA_SUCCESS;
}

#ifndef OLD
PROTOTYPE (CUresult, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device)) { return cuDeviceGetUuid (uuid, device); }
PROTOTYPE (CUresult, cuStreamIsCapturing, (CUstream stream, int *status))
{
    *status = capturing && (uintptr_t) stream >= 1000;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuStreamIsCapturing_ptsz, (CUstream stream, int *status)) { return cuStreamIsCapturing (stream, status); }
PROTOTYPE (CUresult, cuStreamSynchronize, (CUstream stream))
{
    COUNT (synchronize);
    synchronized = stream;
    return CUDA_SUCCESS;
}
PROTOTYPE (CUresult, cuStreamSynchronize_ptsz, (CUstream stream)) { return cuStreamSynchronize (stream); }
PROTOTYPE (CUresult, cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
    COUNT (alloc_async);
    int device = (uintptr_t) stream >= 1000 ? (int) ((uintptr_t) stream - 1000) : current;
    return bytes == 0 ? CUDA_SUCCESS : make (POOL, (uint64_t *) pointer, bytes, device);
}
PROTOTYPE (CUresult, cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
    return cuMemAllocAsync (pointer, bytes, stream);
}
/* A pool is the number of its device and 2000. */
PROTOTYPE (CUresult, cuMemAllocFromPoolAsync, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))
{
    (void) stream;
    return make (POOL, (uint64_t *) pointer, bytes, (int) ((uintptr_t) pool - 2000));
}
PROTOTYPE (CUresult, cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))
{
    return cuMemAllocFromPoolAsync (pointer, bytes, pool, stream);
}
PROTOTYPE (CUresult, cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))
{
    COUNT (free_async);
    (void) stream;
    struct thing *thing = find (pointer);
    return thing != NULL && thing->kind == MANAGED ? CUDA_ERROR_NOT_SUPPORTED : destroy (pointer);
}
PROTOTYPE (CUresult, cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream)) { return cuMemFreeAsync (pointer, stream); }
#endif
#ifdef NEWER
PROTOTYPE (CUresult, cuMemAlloc_v3, (CUdeviceptr * pointer, size_t bytes, int why)) { return why + cuMemAlloc_v2 (pointer, bytes); }
PROTOTYPE (CUresult, cuFromTomorrow, (void) ) { return CUDA_SUCCESS; }
#endif

#ifndef OLD
static const struct variant {
    const char *name;
    void *function;
    int version;
    unsigned int stream; /* 0: of both */
} variants[];

PROTOTYPE (CUresult, cuGetProcAddress_v2, (const char *symbol, void **function, int version, uint64_t flags, int *status));
PROTOTYPE (CUresult, cuGetProcAddress, (const char *symbol, void **function, int version, uint64_t flags));

static const struct variant variants[] = {
    { "cuInit", (void *) cuInit, 2000, 0 },
    { "cuGetProcAddress", (void *) cuGetProcAddress, 11030, 0 },
    { "cuGetProcAddress", (void *) cuGetProcAddress_v2, 12000, 0 },
    { "cuGetExportTable", (void *) cuGetExportTable, 3000, 0 },
    { "cuMemAlloc", (void *) cuMemAlloc, 2000, 0 },
    { "cuMemAlloc", (void *) cuMemAlloc_v2, 3020, 0 },
    { "cuMemAllocPitch", (void *) cuMemAllocPitch_v2, 3020, 0 },
    { "cuMemAllocManaged", (void *) cuMemAllocManaged, 6000, 0 },
    { "cuMemAllocAsync", (void *) cuMemAllocAsync, 11020, 1 },
    { "cuMemAllocAsync", (void *) cuMemAllocAsync_ptsz, 11020, 2 },
    { "cuMemAllocFromPoolAsync", (void *) cuMemAllocFromPoolAsync, 11020, 1 },
    { "cuMemAllocFromPoolAsync", (void *) cuMemAllocFromPoolAsync_ptsz, 11020, 2 },
    { "cuMemFree", (void *) cuMemFree, 2000, 0 },
    { "cuMemFree", (void *) cuMemFree_v2, 3020, 0 },
    { "cuMemFreeAsync", (void *) cuMemFreeAsync, 11020, 1 },
    { "cuMemFreeAsync", (void *) cuMemFreeAsync_ptsz, 11020, 2 },
    { "cuMemCreate", (void *) cuMemCreate, 10020, 0 },
    { "cuMemRelease", (void *) cuMemRelease, 10020, 0 },
    { "cuMemMap", (void *) cuMemMap, 10020, 0 },
    { "cuMemUnmap", (void *) cuMemUnmap, 10020, 0 },
    { "cuArray3DCreate", (void *) cuArray3DCreate_v2, 3020, 0 },
    { "cuArrayDestroy", (void *) cuArrayDestroy, 2000, 0 },
    { "cuMemGetInfo", (void *) cuMemGetInfo_v2, 3020, 0 },
    { "cuDeviceTotalMem", (void *) cuDeviceTotalMem, 2000, 0 },
    { "cuDeviceTotalMem", (void *) cuDeviceTotalMem_v2, 3020, 0 },
    { "cuStreamSynchronize", (void *) cuStreamSynchronize, 2000, 1 },
    { "cuStreamSynchronize", (void *) cuStreamSynchronize_ptsz, 7000, 2 },
#ifdef NEWER
    { "cuMemAlloc", (void *) cuMemAlloc_v3, 13000, 0 },
    { "cuFromTomorrow", (void *) cuFromTomorrow, 13000, 0 },
#endif
};

CUresult cuGetProcAddress_v2 (const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    int answer = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    if (flags > 2 || function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *function = NULL;
    for (size_t i = 0; i < sizeof (variants) / sizeof (variants[0]); i++) {
        const struct variant *variant = &variants[i];
        if (strcmp (variant->name, symbol) != 0 || (variant->stream != 0 && (variant->stream == 2) != (flags == 2)))
            continue;
        if (variant->version <= version)
            *function = variant->function;
        answer = *function != NULL ? 0 : 2;
    }
    if (status != NULL)
        *status = answer;
    return CUDA_SUCCESS;
}

/* The old interface has no status: an unknown name is an error, and the pointer does not change. */
CUresult cuGetProcAddress (const char *symbol, void **function, int version, uint64_t flags)
{
    void *found = NULL;
    CUresult result = cuGetProcAddress_v2 (symbol, &found, version, flags, NULL);
    if (result == CUDA_SUCCESS && found == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS)
        *function = found;
    return result;
}
#endif
