/*
 * What a context costs. Lines on stdin: "first", answered with the nanoseconds of cuInit and the program's first context;
 * then "context COUNT", answered with nanoseconds for making another one, and for making one and giving it back.
 */
#include "check.h"

int main (void)
{
    char line[64];
    CUdevice device = 0;
    while (fgets (line, sizeof line, stdin) != NULL) {
        unsigned long count;
        if (strcmp (line, "first\n") == 0) {
            CUcontext context;
            uint64_t begun = now_ns ();
            MUST (cuInit (0));
            MUST (cuDeviceGet (&device, 0));
            MUST (cuDevicePrimaryCtxRetain (&context, device));
            printf ("%llu\n", (unsigned long long) (now_ns () - begun));
            fflush (stdout);
            MUST (cuDevicePrimaryCtxRelease (device));
            continue;
        }
        if (sscanf (line, "context %lu", &count) != 1 || count == 0)
            return 2;
        uint64_t made = 0, start = now_ns ();
        for (unsigned long i = 0; i < count; i++) {
            CUcontext context;
            uint64_t begun = now_ns ();
            MUST (cuDevicePrimaryCtxRetain (&context, device));
            made += now_ns () - begun;
            MUST (cuDevicePrimaryCtxRelease (device));
        }
        printf ("%llu %llu\n", (unsigned long long) (made / count), (unsigned long long) ((now_ns () - start) / count));
        fflush (stdout);
    }
    return 0;
}
