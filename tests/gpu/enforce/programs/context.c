/*
 * What a context costs. Lines on stdin: "first", answered with the nanoseconds of cuInit and the program's first context;
 * then "context COUNT", answered with nanoseconds for making another one, and for making one and giving it back. "keep": as "first", and
 * it has the context until it ends.
 */
#include "check.h"

/* Of the first GPU, whose ordinal is 0. */
static uint64_t make_first (void)
{
    CUcontext context;
    uint64_t begun = now_ns ();
    MUST (cuInit (0));
    MUST (cuDevicePrimaryCtxRetain (&context, 0));
    return now_ns () - begun;
}

int main (void)
{
    char line[64];
    while (fgets (line, sizeof line, stdin) != NULL) {
        unsigned long count;
        if (strcmp (line, "first\n") == 0 || strcmp (line, "keep\n") == 0) {
            uint64_t took = make_first ();
            if (line[0] == 'f')
                MUST (cuDevicePrimaryCtxRelease (0)); /* before it answers: the next measurement would include this */
            printf ("%llu\n", (unsigned long long) took);
            fflush (stdout);
            continue;
        }
        MUST (cuInit (0)); /* does nothing the second time */
        if (sscanf (line, "context %lu", &count) != 1 || count == 0)
            return 2;
        uint64_t made = 0, start = now_ns ();
        for (unsigned long i = 0; i < count; i++) {
            CUcontext context;
            uint64_t begun = now_ns ();
            MUST (cuDevicePrimaryCtxRetain (&context, 0));
            made += now_ns () - begun;
            MUST (cuDevicePrimaryCtxRelease (0));
        }
        printf ("%llu %llu\n", (unsigned long long) (made / count), (unsigned long long) ((now_ns () - start) / count));
        fflush (stdout);
    }
    return 0;
}
