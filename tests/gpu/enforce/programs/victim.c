/*
 * Begins CUDA and then allocates and frees until it is killed.
 *
 * usage: victim FILE INDEX         byte INDEX of FILE says how far it is: enum phase
 */
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define HELD 8

enum phase { PHASE_STARTED = 1, PHASE_INIT = 2, PHASE_CONTEXT = 3, PHASE_ALLOCATING = 4 };

int main (int argc, char **argv)
{
    if (argc != 3)
        return 2;
    prctl (PR_SET_PDEATHSIG, SIGKILL);
    int file = open (argv[1], O_RDWR | O_CLOEXEC);
    if (file == -1)
        return 1;
    unsigned seed = (unsigned) getpid ();
    size_t index = strtoul (argv[2], NULL, 10);
    volatile unsigned char *phases = mmap (NULL, index + 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (phases == MAP_FAILED)
        return 1;
    CUdevice device;
    CUcontext context;
    CUdeviceptr held[HELD] = { 0 };
    phases[index] = PHASE_STARTED;
    MUST (cuInit (0));
    phases[index] = PHASE_INIT;
    MUST (cuDeviceGet (&device, 0));
    MUST (cuDevicePrimaryCtxRetain (&context, device));
    MUST (cuCtxSetCurrent (context));
    phases[index] = PHASE_CONTEXT;
    for (;;) {
        unsigned which = (unsigned) rand_r (&seed) % HELD;
        if (held[which] != 0) {
            MUST (cuMemFree (held[which]));
            held[which] = 0;
        } else {
            CUresult result = cuMemAlloc (&held[which], (size_t) (1 + rand_r (&seed) % 32) * 2 * MIB);
            if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
                must (result, "cuMemAlloc", __FILE__, __LINE__);
        }
        phases[index] = PHASE_ALLOCATING;
    }
}
