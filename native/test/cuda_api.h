/*
 * The CUDA driver API for test programs: the functions they use, found in libcuda.so.1 at run time, so that one program
 * runs with the simulated library and with a real driver, and compiles without a CUDA toolkit.
 */
#ifndef NVC_TEST_CUDA_API_H
#define NVC_TEST_CUDA_API_H

#include "../sim/libcuda_api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* A program that needs other functions defines this first. */
#ifndef CUDA_WANTED
/* clang-format off */
#define CUDA_WANTED(ROW)                                                                                               \
    ROW (cuInit) ROW (cuDeviceGet) ROW (cuCtxCreate_v2) ROW (cuCtxDestroy_v2) ROW (cuCtxSynchronize)                   \
    ROW (cuMemGetInfo_v2) ROW (cuMemAlloc_v2) ROW (cuMemFree_v2) ROW (cuMemCreate) ROW (cuMemRelease)                  \
    ROW (cuMemAllocAsync) ROW (cuMemFreeAsync) ROW (cuStreamSynchronize) ROW (cuDeviceGetDefaultMemPool)               \
    ROW (cuMemPoolTrimTo) ROW (cuMemAllocManaged) ROW (cuMemsetD8_v2) ROW (cuArrayCreate_v2) ROW (cuArrayDestroy)      \
    ROW (cuMemAllocHost_v2) ROW (cuMemFreeHost) ROW (cuModuleLoadData) ROW (cuModuleGetFunction) ROW (cuLaunchKernel)  \
    ROW (cuEventCreate) ROW (cuEventRecord) ROW (cuEventSynchronize) ROW (cuEventElapsedTime)
/* clang-format on */
#endif

#define CUDA_POINTER(name) __typeof__ (name) *name;
static struct {
    CUDA_WANTED (CUDA_POINTER)
} api;

static void *cuda_symbol (void *library, const char *name)
{
    void *address = dlsym (library, name);

    if (address == NULL) {
        fprintf (stderr, "libcuda.so.1 has no %s\n", name);
        exit (2);
    }
    return address;
}

/* Exits with status 2 when the library or a function is missing. */
static inline void cuda_load (void)
{
    void *library = dlopen ("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

    if (library == NULL) {
        fprintf (stderr, "%s\n", dlerror ());
        exit (2);
    }
#define CUDA_RESOLVE(name) api.name = (__typeof__ (name) *) cuda_symbol (library, #name);
    CUDA_WANTED (CUDA_RESOLVE)
}

/* Exits with status 1 when a call that must succeed failed. */
#define MUST(call)                                                                                                                 \
    do {                                                                                                                           \
        CUresult result_ = (call);                                                                                                 \
        if (result_ != CUDA_SUCCESS) {                                                                                             \
            printf ("failed=%s\nerror=%d\n", #call, (int) result_);                                                                \
            exit (1);                                                                                                              \
        }                                                                                                                          \
    } while (0)

#endif
