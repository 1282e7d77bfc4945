/*
 * A simulated resource manager: the part of NVIDIA's kernel driver at /dev/nvidiactl, /dev/nvidia<N> and
 * /dev/nvidia-uvm that matters for sharing a GPU. Objects, memory and its exhaustion, permissions, queries of memory
 * and processes, channel groups, and the time that work takes (manager_engine.h).
 *
 * The manager uses no descriptor, no FUSE and no caller's memory: fuse.h serves it to real processes, unit tests call
 * it directly. Numbers, layouts and statuses are those of the drivers 535 to 595 (versions.h), by the machine's
 * version. The public functions are in manager.c.
 */
#ifndef NVC_SIM_MANAGER_H
#define NVC_SIM_MANAGER_H

#include "device.h"
#include "machine.h"

#include <stdatomic.h>

/* NV_MAX_DEVICES of the real driver, and the size of struct sim_totals. */
#define MANAGER_MAX_GPUS 32
/* The most bytes copied in for one call. The largest parameters of a real call are 14408 bytes. */
#define MANAGER_MAX_PARAMETERS (1024 * 1024)

enum manager_node { MANAGER_CONTROL, MANAGER_GPU, MANAGER_UVM, MANAGER_UVM_TOOLS };

struct manager;
struct manager_file; /* an open file description of a node */

/* The calling task. The functions are called only from the thread in manager_ioctl. */
struct manager_caller {
    void *context;
    /* Access to the caller's memory; false: a fault. Never called under the manager's lock. */
    bool (*read) (void *context, uint64_t address, void *to, size_t size);
    bool (*write) (void *context, uint64_t address, const void *from, size_t size);
    /* The open file behind a descriptor of the caller, valid during the call; NULL: it is not one of the manager's.
     * Never called under the manager's lock. */
    struct manager_file *(*file) (void *context, int descriptor);
    /* The calling process's pid in the manager's pid namespace; and the pid of such a process in the caller's pid
     * namespace, 0: it is not visible there. */
    uint32_t (*process) (void *context);
    uint32_t (*show) (void *context, uint32_t process);
    /* Has CAP_SYS_ADMIN. */
    bool (*privileged) (void *context);
    atomic_bool interrupted; /* manager_interrupt sets it */
};

/* machine: must be valid as long as the manager. NULL: no memory. The clock starts in real mode. */
struct manager *manager_create (const struct machine *machine);
/* No call may be in progress. */
void manager_destroy (struct manager *manager);

/* gpu: index in the machine's GPUs, for MANAGER_GPU. NULL when there is no memory, or no such GPU. */
struct manager_file *manager_open (struct manager *manager, enum manager_node node, uint32_t gpu);
/* After the close of the last descriptor: frees the file's clients with all their objects. */
void manager_release (struct manager_file *file);
/* One ioctl. Returns 0 or -errno: EFAULT (the caller's memory), ENOTTY, EINVAL (an escape's size), EINTR, ENOMEM. The
 * resource manager's status is in the struct at `address`. May wait (SIM_PROGRESS, and in real mode for stopping and
 * resuming channels) without blocking other calls. */
int manager_ioctl (struct manager_file *file, struct manager_caller *caller, uint32_t request, uint64_t address);
/* What a mapping of the control node shows, and whether that is other than when this was asked last. */
void manager_read (struct manager *manager, uint64_t offset, uint8_t *to, size_t size);
bool manager_has_news (struct manager *manager);
/* Ends the call of `caller` with EINTR if it waits. */
void manager_interrupt (struct manager *manager, struct manager_caller *caller);

/* The same as SIM_CLOCK and SIM_TOTALS, without a file. manager_clock returns the time in nanoseconds. */
uint64_t manager_clock (struct manager *manager, enum sim_clock_mode mode, uint64_t advance);
void manager_totals (struct manager *manager, struct sim_totals *totals);
/* Ends every waiting call with EINTR, now and later (before the server ends). */
void manager_stop (struct manager *manager);

#endif
