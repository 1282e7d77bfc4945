/* State shared by the NVML functions: the machine, and its devices that this process sees. nvml_state.c;
 * nvml_visible.c. */
#ifndef NVC_SIM_NVML_STATE_H
#define NVC_SIM_NVML_STATE_H

#include "machine.h"
#include "nvml.h"

/* The target of a handle: a GPU, or with `mig` a MIG device. index: among those that the process sees. */
struct nvmlDevice_st {
    const struct machine_gpu *gpu;
    const struct machine_mig *mig;
    struct nvmlDevice_st *parent; /* of a MIG device */
    struct nvmlDevice_st *first_mig;
    unsigned int mig_count;
    unsigned int index;
};

struct nvml_state {
    unsigned int references;
    unsigned int gpu_count;
    unsigned int mig_count;
    struct nvmlDevice_st gpus[MACHINE_MAX_GPUS];
    struct nvmlDevice_st migs[MACHINE_MAX_GPUS * MACHINE_MAX_MIGS];
    struct machine machine;
    char problem[256];
};

extern struct nvml_state nvml_state;

/* Fills gpus and migs with the devices that this process may use. An NVML error: it may not use the driver. */
nvmlReturn_t nvml_find_devices (struct nvml_state *state);

/* The start of each function: checks for initialisation and injected faults. */
nvmlReturn_t nvml_enter (const char *function);
nvmlReturn_t nvml_fault (const char *function);

/* NVML_SUCCESS if `device` is a handle of this library. */
nvmlReturn_t nvml_check_handle (nvmlDevice_t device);

/* Copies a text into a caller's buffer, as NVML. */
nvmlReturn_t nvml_copy (char *target, unsigned int length, const char *text);

#define RETURN_IF_FAILED(call)                                                                                                     \
    do {                                                                                                                           \
        nvmlReturn_t result_ = (call);                                                                                             \
        if (result_ != NVML_SUCCESS)                                                                                               \
            return result_;                                                                                                        \
    } while (0)

#define ENTER() RETURN_IF_FAILED (nvml_enter (__func__))
#define ENTER_DEVICE(device, condition)                                                                                            \
    do {                                                                                                                           \
        ENTER ();                                                                                                                  \
        RETURN_IF_FAILED (nvml_check_handle (device));                                                                             \
        if (!(condition))                                                                                                          \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                                    \
    } while (0)

#endif
