/*
 * What a context costs. Lines on stdin: "context COUNT", answered with nanoseconds for making one, and for making one and
 * giving it back.
 */
#include "check.h"

int main (void)
{
    char line[64];
    CUdevice device;
    MUST (cuInit (0));
    MUST (cuDeviceGet (&device, 0));
    while (fgets (line, sizeof line, stdin) != NULL) {
        unsigned long count;
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
