/*
 * cuda_churn SECONDS [MEBIBYTES]: allocates and frees memory all the time, and checks every result. It uses the memory
 * that is free at its start (no other process of its share may allocate meanwhile): a piece that fits must be granted,
 * one that does not (by MEBIBYTES more, 64) must be refused with CUDA_ERROR_OUT_OF_MEMORY. Prints key=value lines:
 * grants, refusals, wrongly_refused, wrongly_granted, the first wrong error, the longest call in microseconds, KiB free
 * at start and end. "started=1" is printed at the begin.
 */
#include "cuda_api.h"

#include <time.h>

#define MAX_PIECES 64
#define MIB ((size_t) 1 << 20)

static CUdeviceptr pointers[MAX_PIECES];
static size_t sizes[MAX_PIECES], held;
static int count;
static unsigned long long grants, refusals, wrongly_refused, wrongly_granted, longest;
static int first_wrong;

static unsigned long long now_us (void)
{
    struct timespec time;

    clock_gettime (CLOCK_MONOTONIC, &time);
    return (unsigned long long) time.tv_sec * 1000000u + (unsigned long long) time.tv_nsec / 1000u;
}

static size_t free_bytes (void)
{
    size_t available = 0, total = 0;

    MUST (api.cuMemGetInfo_v2 (&available, &total));
    return available;
}

static CUresult take (CUdeviceptr *pointer, size_t size)
{
    unsigned long long begin = now_us ();
    CUresult result = api.cuMemAlloc_v2 (pointer, size);
    unsigned long long took = now_us () - begin;

    longest = took > longest ? took : longest;
    return result;
}

static void wrong (unsigned long long *counter, CUresult result)
{
    if (wrongly_refused + wrongly_granted == 0)
        first_wrong = (int) result;
    (*counter)++;
}

static void take_fitting (size_t room, size_t slack, unsigned int *seed)
{
    size_t size = (size_t) (2 + rand_r (seed) % 63) * 2 * MIB;

    if (count == MAX_PIECES || held + size + slack > room)
        return;
    CUresult result = take (&pointers[count], size);
    if (result != CUDA_SUCCESS) {
        wrong (&wrongly_refused, result);
        return;
    }
    grants++;
    sizes[count++] = size;
    held += size;
}

static void take_too_much (size_t room, size_t slack)
{
    CUdeviceptr pointer;
    CUresult result = take (&pointer, room - held + slack);

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        refusals++;
    else
        wrong (result == CUDA_SUCCESS ? &wrongly_granted : &wrongly_refused, result);
    if (result == CUDA_SUCCESS)
        MUST (api.cuMemFree_v2 (pointer));
}

static void give (int which)
{
    unsigned long long begin = now_us ();

    MUST (api.cuMemFree_v2 (pointers[which]));
    unsigned long long took = now_us () - begin;
    longest = took > longest ? took : longest;
    held -= sizes[which];
    count--;
    pointers[which] = pointers[count];
    sizes[which] = sizes[count];
}

int main (int argc, char **argv)
{
    double seconds = argc > 1 ? atof (argv[1]) : 0;
    size_t slack = (argc > 2 ? (size_t) atoi (argv[2]) : 64) * MIB;
    unsigned int seed = 5;
    CUdevice device;
    CUcontext context;
    CUdeviceptr warm;

    if (seconds <= 0 || slack == 0) {
        fprintf (stderr, "usage: cuda_churn SECONDS [MEBIBYTES]\n");
        return 2;
    }
    setvbuf (stdout, NULL, _IOLBF, 0);
    cuda_load ();
    MUST (api.cuInit (0));
    MUST (api.cuDeviceGet (&device, 0));
    MUST (api.cuCtxCreate_v2 (&context, 0, device));
    MUST (api.cuMemAlloc_v2 (&warm, 4 * MIB));
    MUST (api.cuMemFree_v2 (warm));
    size_t room = free_bytes ();
    printf ("start_free_kib=%zu\nstarted=1\n", room >> 10);
    unsigned long long end = now_us () + (unsigned long long) (seconds * 1e6);
    while (now_us () < end) {
        int choice = rand_r (&seed) % 10;

        if (choice == 0)
            take_too_much (room, slack);
        else if (choice < 6)
            take_fitting (room, slack, &seed);
        else if (count > 0)
            give (rand_r (&seed) % count);
    }
    while (count > 0)
        give (count - 1);
    printf ("grants=%llu\nrefusals=%llu\nwrongly_refused=%llu\nwrongly_granted=%llu\nfirst_wrong=%d\nlongest_us=%llu\n", grants,
            refusals, wrongly_refused, wrongly_granted, first_wrong, longest);
    printf ("end_free_kib=%zu\n", free_bytes () >> 10);
    MUST (api.cuCtxDestroy_v2 (context));
    return 0;
}
