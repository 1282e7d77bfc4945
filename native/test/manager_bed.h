/* A manager in the test's process, called as by a tenant. Addresses are those of this process; 16 is unreadable. */
#ifndef NVC_TEST_MANAGER_BED_H
#define NVC_TEST_MANAGER_BED_H

#include "manager.h"

#include <string.h>
#include <sys/ioctl.h>

#define GIB (UINT64_C (1) << 30)
#define MIB (UINT64_C (1) << 20)
#define MILLISECOND UINT64_C (1000000)
#define DEVICE UINT32_C (0x5c000001)
#define SUBDEVICE UINT32_C (0x5c000002)

/* A task: its pid, and the files of its descriptors. */
struct task {
    uint32_t process;
    bool privileged;
    struct manager_file *descriptors[8];
};

static struct machine bed_machine;
static struct manager *bed;
static struct task bed_task = { .process = 100 };

static inline bool bed_read (void *context, uint64_t address, void *to, size_t size)
{
    (void) context;
    if (address < 4096)
        return false;
    memcpy (to, (const void *) (uintptr_t) address, size);
    return true;
}

static inline bool bed_write (void *context, uint64_t address, const void *from, size_t size)
{
    (void) context;
    if (address < 4096)
        return false;
    memcpy ((void *) (uintptr_t) address, from, size);
    return true;
}

static inline struct manager_file *bed_file (void *context, int descriptor)
{
    const struct task *task = context;

    return descriptor >= 0 && descriptor < 8 ? task->descriptors[descriptor] : NULL;
}

static inline uint32_t bed_process (void *context) { return ((const struct task *) context)->process; }

/* Even tasks are not visible to odd ones (pid namespaces). */
static inline uint32_t bed_show (void *context, uint32_t process)
{
    return ((const struct task *) context)->process % 2 == 1 && process % 2 == 0 ? 0 : process;
}

static inline bool bed_privileged (void *context) { return ((const struct task *) context)->privileged; }

static inline int bed_ioctl (struct manager_file *file, uint32_t request, void *argument)
{
    struct manager_caller caller = { .context = &bed_task,
                                     .read = bed_read,
                                     .write = bed_write,
                                     .file = bed_file,
                                     .process = bed_process,
                                     .show = bed_show,
                                     .privileged = bed_privileged };

    return manager_ioctl (file, &caller, request, (uint64_t) (uintptr_t) argument);
}

/* Two GPUs with 16 GiB, of which one is reserved; the clock is manual. */
static inline void bed_start (void)
{
    memset (&bed_machine, 0, sizeof (bed_machine));
    strcpy (bed_machine.driver, "580.159.04");
    bed_machine.gpu_count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        bed_machine.gpus[i].memory = 16 * GIB;
        bed_machine.gpus[i].memory_reserved = GIB;
        bed_machine.gpus[i].bus = 6 + i;
        strcpy (bed_machine.gpus[i].uuid, "GPU-01020304-0506-0708-090a-0b0c0d0e0f00");
        bed_machine.gpus[i].uuid[39] = (char) ('0' + i);
    }
    bed_task = (struct task) { .process = 100 };
    bed = manager_create (&bed_machine);
    manager_clock (bed, SIM_CLOCK_MANUAL, 0);
}

static inline void bed_stop (void) { manager_destroy (bed); }

static inline uint64_t bed_used (uint32_t gpu)
{
    struct sim_totals totals;

    manager_totals (bed, &totals);
    return totals.bytes[gpu];
}

struct alloc {
    uint32_t client, parent, object, class_number;
    uint64_t params, rights;
    uint32_t params_size, flags, status, pad;
};
struct control_call {
    uint32_t client, object, number, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct free_call {
    uint32_t client, parent, object, status;
};

#define ALLOC _IOWR ('F', 0x2B, struct alloc)
#define CONTROL _IOWR ('F', 0x2A, struct control_call)
#define FREE _IOWR ('F', 0x29, struct free_call)

/* Returns the status; 0xfffff: the ioctl itself failed. */
static inline uint32_t bed_alloc (struct manager_file *file, uint32_t client, uint32_t parent, uint32_t object,
                                  uint32_t class_number, void *params)
{
    struct alloc call = {
        .client = client, .parent = parent, .object = object, .class_number = class_number, .params = (uint64_t) (uintptr_t) params
    };

    return bed_ioctl (file, ALLOC, &call) == 0 ? call.status : 0xfffff;
}

static inline uint32_t bed_control (struct manager_file *file, uint32_t client, uint32_t object, uint32_t number, void *params,
                                    uint32_t size)
{
    struct control_call call = {
        .client = client, .object = object, .number = number, .params = (uint64_t) (uintptr_t) params, .params_size = size
    };

    return bed_ioctl (file, CONTROL, &call) == 0 ? call.status : 0xfffff;
}

static inline uint32_t bed_free (struct manager_file *file, uint32_t client, uint32_t object)
{
    struct free_call call = { .client = client, .object = object };

    return bed_ioctl (file, FREE, &call) == 0 ? call.status : 0xfffff;
}

/* A client with a device and a subdevice of a GPU; returns its handle. */
static inline uint32_t bed_client (struct manager_file *file, uint32_t gpu)
{
    struct alloc call = { .class_number = 0 };
    uint32_t device[14] = { gpu }, subdevice = 0;

    if (bed_ioctl (file, ALLOC, &call) != 0 || call.status != 0)
        return 0;
    bed_alloc (file, call.object, call.object, DEVICE, 0x80, device);
    bed_alloc (file, call.object, DEVICE, SUBDEVICE, 0x2080, &subdevice);
    return call.object;
}

/* Allocates video memory; writes the rounded size to `size`. */
static inline uint32_t bed_memory (struct manager_file *file, uint32_t client, uint32_t object, uint64_t *size)
{
    uint8_t params[128] = { 0 };
    uint32_t attributes = 0x18000000, status;

    params[0] = 1; /* owner: any but 0 */
    memcpy (params + 24, &attributes, 4);
    memcpy (params + 64, size, 8);
    status = bed_alloc (file, client, DEVICE, object, 0x40, params);
    memcpy (size, params + 64, 8);
    return status;
}

static inline uint32_t bed_take (struct manager_file *file, uint32_t client, uint32_t object, uint64_t size)
{
    return bed_memory (file, client, object, &size);
}

#endif
