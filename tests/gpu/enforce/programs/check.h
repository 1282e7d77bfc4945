/* What the measuring programs share: every call's result is looked at, and answers are lines of "name value". */
#ifndef NVC_GPU_CHECK_H
#define NVC_GPU_CHECK_H

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KIB ((size_t) 1 << 10)
#define MIB ((size_t) 1 << 20)
#define GIB ((size_t) 1 << 30)

/* Ends the program when a call that must work does not. */
#define MUST(call) must ((call), #call, __FILE__, __LINE__)

static inline const char *result_name (CUresult result)
{
    const char *name = NULL;
    cuGetErrorName (result, &name);
    return name == NULL ? "?" : name;
}

static inline void must (CUresult result, const char *call, const char *file, int line)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf (stderr, "%s:%d: %s: %s\n", file, line, call, result_name (result));
    exit (1);
}

static inline uint64_t now_ns (void)
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

static inline void say (const char *name, unsigned long long value)
{
    printf ("%s %llu\n", name, value);
    fflush (stdout);
}

/* Bytes free and in all, as the driver says to this process. */
static inline size_t memory_free (void)
{
    size_t free, total;
    MUST (cuMemGetInfo (&free, &total));
    return free;
}

static inline size_t memory_total (void)
{
    size_t free, total;
    MUST (cuMemGetInfo (&free, &total));
    return total;
}

/* The first GPU's primary context, current. */
static inline CUdevice begin_cuda (void)
{
    CUdevice device;
    CUcontext context;
    MUST (cuInit (0));
    MUST (cuDeviceGet (&device, 0));
    MUST (cuDevicePrimaryCtxRetain (&context, device));
    MUST (cuCtxSetCurrent (context));
    return device;
}

/* Says a word and waits for a line of stdin, or its end. */
static inline void wait_for_line (const char *word)
{
    char line[64];
    printf ("%s\n", word);
    fflush (stdout);
    if (fgets (line, sizeof line, stdin) == NULL)
        return;
}

#endif
