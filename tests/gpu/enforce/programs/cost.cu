/*
 * What single calls cost. Lines on stdin, each answered with nanoseconds per call:
 *        alloc COUNT BYTES        cuMemAlloc and cuMemFree; 8 pieces of that size stay allocated, so that small ones come
 *                                 from memory that libcuda has
 *        launch COUNT             an empty kernel; with the wait for all of them
 *        burst COUNT EACH         the call alone: COUNT times EACH launches, few enough that none waits for the GPU, the
 *                                 median of them
 *        steps WHAT               instructions that the program's own thread executes for one call: of "launch", or of
 *                                 "alloc" (4 KiB from memory that libcuda has, and its freeing); the median of 21. 0: not on
 *                                 this processor
 */
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <ctime>
#include <vector>

#define MUST(call) must ((int) (call), #call)

static const int KEPT = 8;

__global__ void empty ()
{
}

static void must (int result, const char *call)
{
    if (result == 0)
        return;
    fprintf (stderr, "cost.cu: %s: %d\n", call, result);
    exit (1);
}

static uint64_t now_ns ()
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

static void allocate (unsigned long count, size_t bytes)
{
    CUdeviceptr kept[KEPT], address;
    for (int i = 0; i < KEPT; i++)
        MUST (cuMemAlloc (&kept[i], bytes));
    uint64_t start = now_ns ();
    for (unsigned long i = 0; i < count; i++) {
        MUST (cuMemAlloc (&address, bytes));
        MUST (cuMemFree (address));
    }
    printf ("%.2f\n", (double) (now_ns () - start) / (double) count);
    for (int i = 0; i < KEPT; i++)
        MUST (cuMemFree (kept[i]));
}

static double launch (unsigned long count)
{
    uint64_t start = now_ns ();
    for (unsigned long i = 0; i < count; i++)
        empty<<<1, 32>>> ();
    MUST (cudaDeviceSynchronize ());
    return (double) (now_ns () - start) / (double) count;
}

static void burst (unsigned long count, unsigned long each)
{
    std::vector<double> found;
    for (unsigned long i = 0; i < count; i++) {
        MUST (cudaDeviceSynchronize ());
        uint64_t start = now_ns ();
        for (unsigned long k = 0; k < each; k++)
            empty<<<1, 32>>> ();
        found.push_back ((double) (now_ns () - start) / (double) each);
    }
    MUST (cudaDeviceSynchronize ());
    std::sort (found.begin (), found.end ());
    printf ("%.2f\n", found[found.size () / 2]);
}

static volatile unsigned long executed;

static void trapped (int)
{
    executed = executed + 1;
}

/* The trap flag: SIGTRAP after every instruction. Not on the stack just below, which the compiler may use. */
#ifdef __x86_64__
#define TRAP(change)                                                                                                             \
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n " change ", (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "cc", "memory")
#define TRAP_ON() TRAP ("orq $0x100")
#define TRAP_OFF() TRAP ("andq $-0x101")
#else
#define TRAP_ON()
#define TRAP_OFF()
#endif

static void steps (const char *what)
{
    std::vector<unsigned long> found;
    bool is_launch = strcmp (what, "launch") == 0;
    CUdeviceptr kept;
    MUST (cuMemAlloc (&kept, 4096));
    signal (SIGTRAP, trapped);
    for (int i = 0; i < 21; i++) {
        CUdeviceptr address;
        CUresult result = CUDA_SUCCESS;
        MUST (cudaDeviceSynchronize ());
        executed = 0;
        TRAP_ON ();
        if (is_launch)
            empty<<<1, 32>>> ();
        else if ((result = cuMemAlloc (&address, 4096)) == CUDA_SUCCESS)
            result = cuMemFree (address);
        TRAP_OFF ();
        MUST (result);
        unsigned long count = executed;
        found.push_back (count);
    }
    MUST (cuMemFree (kept));
    std::sort (found.begin (), found.end ());
    printf ("%lu\n", found[found.size () / 2]);
}

int main ()
{
    char line[128];
    MUST (cudaFree (NULL));
    launch (1000);
    for (fflush (stdout); fgets (line, sizeof line, stdin) != NULL; fflush (stdout)) {
        unsigned long count, each;
        unsigned long long bytes;
        char what[16];
        if (sscanf (line, "alloc %lu %llu", &count, &bytes) == 2)
            allocate (count, (size_t) bytes);
        else if (sscanf (line, "burst %lu %lu", &count, &each) == 2 && count != 0 && each != 0)
            burst (count, each);
        else if (sscanf (line, "launch %lu", &count) == 1)
            printf ("%.2f\n", launch (count));
        else if (sscanf (line, "steps %15s", what) == 1)
            steps (what);
        else
            return 2;
    }
    return 0;
}
