/* Global state of the simulated libcuda: cuInit, the lock, fork. Runs in the program's process, on the calling thread,
 * under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct cuda cuda = { .rm = { .control = -1 }, .uvm = -1, .uvm_second = -1, .next_handle = 0x5c000001 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t may_call = PTHREAD_COND_INITIALIZER;
static unsigned int calls;
static bool calls_wait;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

void cuda_lock (void) { pthread_mutex_lock (&lock); }

void cuda_unlock (void) { pthread_mutex_unlock (&lock); }

/* True in a forked child of a process after cuInit: the driver's state is the parent's. The real library returns
 * CUDA_ERROR_NOT_INITIALIZED from every function there, cuInit included. */
static void after_fork_in_child (void)
{
    if (cuda.life == CUDA_READY)
        cuda.life = CUDA_FORKED;
    pthread_mutex_unlock (&lock);
}

static void watch_forks (void) { pthread_atfork (cuda_lock, cuda_unlock, after_fork_in_child); }

CUresult cuda_enter (void)
{
    cuda_lock ();
    while (calls_wait && cuda.life == CUDA_READY)
        pthread_cond_wait (&may_call, &lock);
    if (cuda.life == CUDA_READY) {
        calls++;
        return CUDA_SUCCESS;
    }
    cuda_unlock ();
    return CUDA_ERROR_NOT_INITIALIZED;
}

void cuda_end_call (void)
{
    calls--;
    cuda_unlock ();
}

unsigned int cuda_calls (void) { return calls; }

void cuda_hold_calls (bool hold)
{
    calls_wait = hold;
    if (!hold)
        pthread_cond_broadcast (&may_call);
}

CUresult cuda_enter_context (CUcontext *context)
{
    CUresult result = cuda_enter ();

    if (result != CUDA_SUCCESS)
        return result;
    *context = cuda_current ();
    return *context != NULL ? CUDA_SUCCESS : CUDA_LEAVE (CUDA_ERROR_INVALID_CONTEXT);
}

/* UVM_INITIALIZE and UVM_MM_INITIALIZE, the latter on a second open file, as the real library. */
static void open_managed (void)
{
    struct {
        uint64_t flags;
        uint32_t status, pad;
    } initialize = { .flags = 0 };
    struct {
        int32_t first;
        uint32_t status;
    } second;

    cuda.uvm = rm_open_node ("/dev/nvidia-uvm");
    if (cuda.uvm < 0)
        return;
    if (ioctl (cuda.uvm, 0x30000001, &initialize) < 0 || initialize.status != 0) {
        close (cuda.uvm);
        cuda.uvm = -1;
        return;
    }
    cuda.uvm_second = rm_open_node ("/dev/nvidia-uvm");
    second.first = cuda.uvm;
    second.status = 0;
    if (cuda.uvm_second >= 0)
        ioctl (cuda.uvm_second, 0x4b, &second);
}

static CUresult cuda_error (nvmlReturn_t result)
{
    if (result == NVML_ERROR_NO_PERMISSION)
        return CUDA_ERROR_NOT_PERMITTED;
    return result == NVML_ERROR_DRIVER_NOT_LOADED ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_UNKNOWN;
}

static CUresult initialize (void)
{
    struct nvml_state *state = &cuda.nvml;

    switch (machine_load (&state->machine, state->problem, sizeof (state->problem))) {
    case MACHINE_FOUND:
        break;
    case MACHINE_NONE:
        return CUDA_ERROR_NO_DEVICE;
    case MACHINE_BAD:
        return CUDA_ERROR_UNKNOWN;
    }
    nvmlReturn_t result = nvml_find_devices (state);
    if (result != NVML_SUCCESS)
        return cuda_error (result);
    CUresult chosen = cuda_choose_devices ();
    if (chosen != CUDA_SUCCESS)
        return chosen;
    cuda.manager = rm_client_open (&cuda.rm, state->machine.driver);
    if (cuda.manager)
        open_managed ();
    for (int i = 0; cuda.manager && i < cuda.device_count; i++) {
        if (cuda_attach_device (&cuda.devices[i]) != CUDA_SUCCESS)
            return CUDA_ERROR_NO_DEVICE;
    }
    fprintf (stderr, "libcuda: SIMULATED machine %s, nothing will run on a GPU\n", state->machine.name);
    pthread_once (&fork_once, watch_forks);
    if (cuda.manager)
        cuda_checkpoint_begin ();
    cuda.life = CUDA_READY;
    return CUDA_SUCCESS;
}

static void close_node (int *fd)
{
    if (*fd >= 0)
        close (*fd);
    *fd = -1;
}

/* Closes the files of a failed cuInit. */
static void close_everything (void)
{
    for (int i = 0; i < cuda.device_count; i++) {
        if (cuda.devices[i].attached)
            close_node (&cuda.devices[i].node);
        cuda.devices[i].attached = false;
    }
    close_node (&cuda.uvm_second);
    close_node (&cuda.uvm);
    rm_client_close (&cuda.rm);
    cuda.manager = false;
    cuda.device_count = 0;
}

CUresult cuInit (unsigned int flags)
{
    CUresult result = CUDA_SUCCESS;

    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    cuda_lock ();
    if (cuda.life == CUDA_FORKED)
        result = CUDA_ERROR_NOT_INITIALIZED;
    else if (cuda.life == CUDA_NEW)
        result = initialize ();
    if (result != CUDA_SUCCESS && cuda.life == CUDA_NEW)
        close_everything ();
    cuda_unlock ();
    return result;
}

/* Works before cuInit too, as in the real library. */
CUresult cuDriverGetVersion (int *version)
{
    struct nvml_state *state = &cuda.nvml;
    CUresult result = CUDA_SUCCESS;

    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    cuda_lock ();
    if (cuda.life == CUDA_NEW && machine_load (&state->machine, state->problem, sizeof (state->problem)) != MACHINE_FOUND)
        result = CUDA_ERROR_UNKNOWN;
    else
        *version = (int) state->machine.cuda;
    cuda_unlock ();
    return result;
}
