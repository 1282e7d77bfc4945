/* Prints the nanoseconds of a lookup of a name that begins like the driver's: the best of many rounds. */
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

static double now (void)
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec * 1e9 + (double) time.tv_nsec;
}

int main (void)
{
    double best = 1e9;
    void *libc = dlopen ("libc.so.6", RTLD_NOW);
    for (int round = 0; round < 50; round++) {
        double start = now ();
        for (int i = 0; i < 200; i++)
            if (dlsym (libc, "puts") == NULL || dlsym (libc, "cuMemAllocFromPoolAsync_ptsx") != NULL)
                return 1;
        double each = (now () - start) / 400;
        best = each < best ? each : best;
    }
    printf ("%.1f\n", best);
    return 0;
}
