/* Global state of the library: initialisation, shutdown, injected faults, handles. Runs in the program's process, on
 * the calling thread. */
#include "nvml_state.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct nvml_state nvml_state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Without "_v2" and the like: a fault applies to every version of a function, whichever a binding calls. */
static size_t plain_length (const char *name)
{
    size_t length = strlen (name);

    return length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' ? length - 3 : length;
}

static bool same_function (const char *one, const char *other)
{
    size_t length = plain_length (one);

    return length == plain_length (other) && memcmp (one, other, length) == 0;
}

nvmlReturn_t nvml_fault (const char *function)
{
    const struct machine *machine = &nvml_state.machine;

    for (uint32_t i = 0; i < machine->fault_count; i++) {
        const struct machine_fault *fault = &machine->faults[i];
        if (!same_function (fault->function, function))
            continue;
        switch (fault->kind) {
        case FAULT_ERROR:
            return (nvmlReturn_t) fault->value;
        case FAULT_CRASH:
            __builtin_trap (); /* no system call: works under any seccomp filter */
        case FAULT_HANG:
            for (;;)
                pause ();
        case FAULT_SLOW: {
            struct timespec left = { .tv_sec = (time_t) (fault->value / 1000), .tv_nsec = (long) (fault->value % 1000) * 1000000 };
            nanosleep (&left, NULL);
            break;
        }
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_enter (const char *function)
{
    unsigned int references;

    pthread_mutex_lock (&lock);
    references = nvml_state.references;
    pthread_mutex_unlock (&lock);
    if (references == 0)
        return NVML_ERROR_UNINITIALIZED;
    return nvml_fault (function);
}

static nvmlReturn_t first_start (void)
{
    nvml_state.problem[0] = '\0';
    switch (machine_load (&nvml_state.machine, nvml_state.problem, sizeof (nvml_state.problem))) {
    case MACHINE_FOUND:
        break;
    case MACHINE_NONE:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case MACHINE_BAD:
        return NVML_ERROR_UNKNOWN;
    }
    RETURN_IF_FAILED (nvml_fault ("nvmlInit"));
    return nvml_find_devices (&nvml_state);
}

static nvmlReturn_t start (void)
{
    nvmlReturn_t result = NVML_SUCCESS;

    pthread_mutex_lock (&lock);
    if (nvml_state.references == 0)
        result = first_start ();
    if (result == NVML_SUCCESS)
        nvml_state.references++;
    pthread_mutex_unlock (&lock);
    return result;
}

nvmlReturn_t nvmlInit (void) { return start (); }

nvmlReturn_t nvmlInit_v2 (void) { return start (); }

nvmlReturn_t nvmlInitWithFlags (unsigned int flags)
{
    (void) flags; /* the real library accepts any */
    return start ();
}

nvmlReturn_t nvmlShutdown (void)
{
    nvmlReturn_t result = nvml_enter (__func__);

    if (result != NVML_SUCCESS)
        return result;
    pthread_mutex_lock (&lock);
    if (nvml_state.references > 0)
        nvml_state.references--;
    pthread_mutex_unlock (&lock);
    return NVML_SUCCESS;
}

static bool inside (const void *pointer, const void *array, size_t count, size_t size)
{
    uintptr_t start = (uintptr_t) array;
    uintptr_t place = (uintptr_t) pointer;

    return place >= start && place < start + count * size && (place - start) % size == 0;
}

nvmlReturn_t nvml_check_handle (nvmlDevice_t device)
{
    const size_t size = sizeof (struct nvmlDevice_st);

    /* Compared as numbers before the pointer is dereferenced: it may be any value. */
    if (inside (device, nvml_state.gpus, nvml_state.gpu_count, size) ||
        inside (device, nvml_state.migs, nvml_state.mig_count, size))
        return NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvml_copy (char *target, unsigned int length, const char *text)
{
    size_t size = strlen (text) + 1;

    if (target == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (size > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy (target, text, size);
    return NVML_SUCCESS;
}

const char *nvcSimMachineName (void) { return nvml_state.machine.name; }

const char *nvcSimProblem (void) { return nvml_state.problem; }
