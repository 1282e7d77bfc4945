/* CUDA begun, and one allocation. Prints nanoseconds since START_NS (herd), and since main. */
#include "check.h"

int main (void)
{
    const char *since = getenv ("START_NS");
    uint64_t before = now_ns ();
    CUdeviceptr address;
    begin_cuda ();
    MUST (cuMemAlloc (&address, 2 * MIB));
    uint64_t after = now_ns ();
    printf ("%llu %llu\n", (unsigned long long) (after - (since != NULL ? strtoull (since, NULL, 10) : before)),
            (unsigned long long) (after - before));
    return 0;
}
