/*
 * A simulated resource manager: what NVIDIA's kernel driver does behind /dev/nvidiactl, /dev/nvidia<N> and
 * /dev/nvidia-uvm, as far as sharing a GPU touches it. Objects, memory and its exhaustion, who may touch what, answers
 * about memory and processes, channel groups, and the time that work takes (manager_engine.h).
 *
 * No descriptor, no FUSE, no caller's memory in here: fuse.h serves it to real processes, unit tests call it directly.
 * Numbers, layouts and statuses are those of the 535 to 595 drivers (versions.h), by what the machine says it has.
 */
#ifndef NVC_SIM_MANAGER_H
#define NVC_SIM_MANAGER_H

#include "device.h"
#include "machine.h"

#include <stdatomic.h>

/* As many GPUs as a client of the real driver can see (NV_MAX_DEVICES), and struct sim_totals has. */
#define MANAGER_MAX_GPUS 32
/* What may be copied in for one call. The largest parameters of a real call are 14408 bytes. */
#define MANAGER_MAX_PARAMETERS (1024 * 1024)

enum manager_node { MANAGER_CONTROL, MANAGER_GPU, MANAGER_UVM, MANAGER_UVM_TOOLS };

struct manager;
struct manager_file; /* an open file of a node: what duplicates of a descriptor and forked processes share */

/* The task that makes a call. The functions are called at most from the thread that is in manager_ioctl. */
struct manager_caller {
    void *context;
    /* The caller's memory; false: some of it is not there. Never called under the manager's lock. */
    bool (*read) (void *context, uint64_t address, void *to, size_t size);
    bool (*write) (void *context, uint64_t address, const void *from, size_t size);
    /* The open file behind a descriptor of the caller, which lasts as long as the call; NULL when it is another's.
     * Never called under the manager's lock. */
    struct manager_file *(*file) (void *context, int descriptor);
    /* The calling process, as the manager names processes; and the name that the caller has for such a process in its
     * own pid namespace, 0 when it does not see it. */
    uint32_t (*process) (void *context);
    uint32_t (*show) (void *context, uint32_t process);
    /* Has CAP_SYS_ADMIN. */
    bool (*privileged) (void *context);
    atomic_bool interrupted; /* manager_interrupt sets it */
};

/* `machine` must outlive the manager. NULL when there is no memory. The clock starts in real mode. */
struct manager *manager_create (const struct machine *machine);
/* No call may be in progress. */
void manager_destroy (struct manager *manager);

/* gpu: index in the machine's GPUs, for MANAGER_GPU. NULL when there is no memory, or no such GPU. */
struct manager_file *manager_open (struct manager *manager, enum manager_node node, uint32_t gpu);
/* The last descriptor is gone: so are the file's clients and all that they had. */
void manager_release (struct manager_file *file);
/* One ioctl. Returns 0 or -errno: EFAULT (the caller's memory), ENOTTY, EINVAL (an escape's size), EINTR, ENOMEM. What
 * the resource manager says of the call itself is in the struct at `address`. May wait (SIM_PROGRESS, and in real time
 * for stopping and resuming channels); nothing else is held up by that. */
int manager_ioctl (struct manager_file *file, struct manager_caller *caller, uint32_t request, uint64_t address);
/* The call that `caller` is in shall end with EINTR if it waits. */
void manager_interrupt (struct manager *manager, struct manager_caller *caller);

/* The same as SIM_CLOCK and SIM_TOTALS, without a file. manager_clock returns the time in nanoseconds. */
uint64_t manager_clock (struct manager *manager, enum sim_clock_mode mode, uint64_t advance);
void manager_totals (struct manager *manager, struct sim_totals *totals);
/* Every waiting call ends with EINTR, now and later (the server is about to end). */
void manager_stop (struct manager *manager);

#endif
