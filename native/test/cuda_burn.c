/*
 * cuda_burn SECONDS NANOSECONDS [wait]: launches kernels of about NANOSECONDS for SECONDS, both of the GPU's own time
 * (events), and prints the number of finished ones per second. On a simulated GPU a kernel takes exactly that long
 * alone; on a real one it does a fixed amount of arithmetic, so that only the ratio of two runs is meaningful. wait: says "ready=1"
 * first, and begins at a line on standard input.
 */
#include "cuda_api.h"

#include <string.h>

/* Multiplications and additions, each dependent on the one before. */
static const char program[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry burn (.param .u64 rounds)\n{\n"
                              "    .reg .u64 %left;\n    .reg .f32 %f, %g;\n    .reg .pred %more, %never;\n"
                              "    ld.param.u64 %left, [rounds];\n"
                              "    mov.f32 %f, 0f3F800000;\n    mov.f32 %g, 0f3F800001;\n"
                              "again:\n"
                              "    fma.rn.f32 %f, %f, %g, %g;\n    fma.rn.f32 %f, %f, %g, %g;\n"
                              "    sub.u64 %left, %left, 1;\n"
                              "    setp.ne.u64 %more, %left, 0;\n    @%more bra again;\n"
                              "    setp.eq.f32 %never, %f, 0f00000000;\n    @%never trap;\n    ret;\n}\n";
/* Rounds of the loop in a microsecond, approximately (measured on an H200). */
#define ROUNDS_A_MICROSECOND 60

static CUfunction load (unsigned long long nanoseconds)
{
    char description[96];
    CUmodule module;
    CUfunction function;

    snprintf (description, sizeof (description), "sim kernel burn nanoseconds=%llu\n", nanoseconds);
    /* Only the simulated library accepts this image. */
    if (api.cuModuleLoadData (&module, description) != CUDA_SUCCESS)
        MUST (api.cuModuleLoadData (&module, program));
    MUST (api.cuModuleGetFunction (&function, module, "burn"));
    return function;
}

static void launch (CUfunction function, unsigned long long rounds, unsigned int count)
{
    void *parameters[] = { &rounds };

    for (unsigned int i = 0; i < count; i++)
        MUST (api.cuLaunchKernel (function, 132, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
}

int main (int argc, char **argv)
{
    double seconds = argc > 2 ? atof (argv[1]) : 0;
    unsigned long long nanoseconds = argc > 2 ? strtoull (argv[2], NULL, 10) : 0;
    unsigned long long finished = 0;
    float elapsed = 0;
    CUdevice device;
    CUcontext context;
    CUevent start, now;

    if (seconds <= 0 || nanoseconds == 0) {
        fprintf (stderr, "usage: cuda_burn SECONDS NANOSECONDS [wait]\n");
        return 2;
    }
    setvbuf (stdout, NULL, _IOLBF, 0);
    cuda_load ();
    MUST (api.cuInit (0));
    MUST (api.cuDeviceGet (&device, 0));
    MUST (api.cuCtxCreate_v2 (&context, 0, device));
    CUfunction function = load (nanoseconds);
    /* Batches of about 10 ms. */
    unsigned long long rounds = nanoseconds * ROUNDS_A_MICROSECOND / 1000 + 1, fitting = 10000000 / nanoseconds + 1;
    unsigned int batch = fitting < 256 ? (unsigned int) fitting : 256;
    MUST (api.cuEventCreate (&start, 0));
    MUST (api.cuEventCreate (&now, 0));
    launch (function, rounds, 1); /* the cost of the first launch is not counted */
    MUST (api.cuCtxSynchronize ());
    if (argc > 3) {
        printf ("ready=1\n");
        (void) getchar ();
    }
    MUST (api.cuEventRecord (start, NULL));
    MUST (api.cuEventSynchronize (start));
    printf ("started=1\n");
    while (elapsed < seconds * 1000) {
        launch (function, rounds, batch);
        MUST (api.cuEventRecord (now, NULL));
        MUST (api.cuEventSynchronize (now));
        MUST (api.cuEventElapsedTime (&elapsed, start, now));
        finished += batch;
    }
    printf ("finished=%llu\nmilliseconds=%.3f\nper_second=%.1f\n", finished, (double) elapsed,
            (double) finished * 1000 / (double) elapsed);
    MUST (api.cuCtxDestroy_v2 (context));
    return 0;
}
