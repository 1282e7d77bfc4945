/* CUDA begun, and one allocation. Prints nanoseconds since START_NS (herd), since main, and whether a library
 * is preloaded (0 or 1). */
#include "check.h"

int main (void)
{
    const char *since = getenv ("START_NS");
    uint64_t before = now_ns ();
    CUdeviceptr address;
    begin_cuda ();
    MUST (cuMemAlloc (&address, 2 * MIB));
    uint64_t after = now_ns ();
    printf ("%llu %llu %d\n", (unsigned long long) (after - (since != NULL ? strtoull (since, NULL, 10) : before)),
            (unsigned long long) (after - before), getenv ("LD_PRELOAD") != NULL);
    return 0;
}
