/*
 * The guard's own client of the driver, asked for what the books cannot know: how much video memory the clients of a process
 * hold. A process may be dead and its open file live on in a child, in a socket's queue or in a ring of io_uring; and a call
 * that only the container can make may have been another one than was decided about.
 *
 * The client is made as nvidia-smi makes its own: nvidiactl, the GPUs' nodes registered with it, device, subdevice.
 */
#include "tenant.h"

#include "rm/abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* nv-ioctl-numbers.h, nv_escape.h, nvos.h, cl0000.h, cl0080.h, cl2080.h, ctrl2080gpu.h */
#define REQUEST(number, size) (0xc0000000u | ((uint32_t) (size) << 16) | ('F' << 8) | (number))
#define REGISTER_FD REQUEST (201, 4)
#define ALLOC_REQUEST REQUEST (0x2b, 48)
#define CONTROL_REQUEST REQUEST (0x2a, 32)
#define CLASS_ROOT 0x0u
#define CLASS_DEVICE_0 0x80u
#define CLASS_SUBDEVICE_0 0x2080u
#define GET_GID_INFO 0x2080014au
#define GET_PID_INFO 0x2080018eu
#define GID_BINARY 2u
#define PID_INFO_SIZE 14408u
#define DEVICE_PARAMS_SIZE 56u
#define HANDLE_DEVICE 0xcaf00000u
#define HANDLE_SUBDEVICE 0xcaf01000u

#define FIRST_ASK_NS 5000000u
#define LAST_ASK_NS 1000000000u

struct alloc {
    uint32_t root, parent, object, number;
    uint64_t params, rights;
    uint32_t params_size, flags, status, spare;
};
struct control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
_Static_assert (sizeof (struct alloc) == 48 && sizeof (struct control) == 32, "NVOS64, NVOS54");

struct truth {
    int control;
    int nodes[SHARE_MAX_GPUS];
    unsigned node_count;
    uint32_t client;
    struct {
        uint8_t uuid[16];
        uint32_t subdevice;
    } gpus[SHARE_MAX_GPUS];
    unsigned gpu_count;
    uint8_t answer[PID_INFO_SIZE];
};

static uint32_t make (struct truth *truth, uint32_t parent, uint32_t *object, uint32_t number, void *params)
{
    struct alloc alloc = { .root = truth->client, .parent = parent, .object = *object, .number = number,
                           .params = (uint64_t) (uintptr_t) params };

    if (ioctl (truth->control, ALLOC_REQUEST, &alloc) != 0)
        return STATUS_NOT_SUPPORTED;
    *object = alloc.object;
    return alloc.status;
}

static uint32_t ask (struct truth *truth, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    struct control control = { .client = truth->client, .object = object, .command = command,
                               .params = (uint64_t) (uintptr_t) params, .params_size = size };

    return ioctl (truth->control, CONTROL_REQUEST, &control) == 0 ? control.status : STATUS_NOT_SUPPORTED;
}

/* Opens the GPUs' nodes, so that the GPUs stay attached while the guard runs. */
static void attach_nodes (struct truth *truth, const char *directory)
{
    for (unsigned i = 0; i < SHARE_MAX_GPUS; i++) {
        char path[512];
        int32_t control = truth->control;
        int node;

        snprintf (path, sizeof (path), "%s/nvidia%u", directory, i);
        node = open (path, O_RDWR | O_CLOEXEC);
        if (node < 0)
            continue;
        ioctl (node, REGISTER_FD, &control);
        truth->nodes[truth->node_count++] = node;
    }
}

static void find_gpus (struct truth *truth)
{
    for (uint32_t i = 0; i < truth->node_count; i++) {
        uint8_t params[DEVICE_PARAMS_SIZE] = { 0 };
        uint8_t gid[268] = { 0 };
        uint32_t device = HANDLE_DEVICE + i, subdevice = HANDLE_SUBDEVICE + i, zero = 0, flags = GID_BINARY;

        memcpy (params, &i, sizeof (i)); /* deviceId */
        /* Numbers are given without gaps, and asking for one that is not there makes a line in the kernel's log. */
        if (make (truth, truth->client, &device, CLASS_DEVICE_0, params) != 0)
            break;
        if (make (truth, device, &subdevice, CLASS_SUBDEVICE_0, &zero) != 0)
            continue;
        memcpy (gid + 4, &flags, sizeof (flags));
        if (ask (truth, subdevice, GET_GID_INFO, gid, sizeof (gid)) != 0)
            continue;
        memcpy (truth->gpus[truth->gpu_count].uuid, gid + 12, 16);
        truth->gpus[truth->gpu_count++].subdevice = subdevice;
    }
}

struct truth *truth_open (const char *device_directory)
{
    struct truth *truth = calloc (1, sizeof (*truth));
    char path[512];

    if (truth == NULL)
        return NULL;
    snprintf (path, sizeof (path), "%s/nvidiactl", device_directory);
    truth->control = open (path, O_RDWR | O_CLOEXEC);
    if (truth->control < 0 || make (truth, 0, &truth->client, CLASS_ROOT, NULL) != 0) {
        truth_close (truth);
        return NULL;
    }
    attach_nodes (truth, device_directory);
    find_gpus (truth);
    if (truth->gpu_count == 0) {
        truth_close (truth);
        return NULL;
    }
    return truth;
}

void truth_close (struct truth *truth)
{
    if (truth == NULL)
        return;
    for (unsigned i = 0; i < truth->node_count; i++)
        close (truth->nodes[i]);
    if (truth->control >= 0)
        close (truth->control);
    free (truth);
}

long truth_of_process (struct truth *truth, const uint8_t uuid[16], pid_t pid, uint64_t *bytes)
{
    uint32_t one = 1, number = (uint32_t) pid;
    uint64_t private, owned;

    for (unsigned i = 0; i < truth->gpu_count; i++) {
        if (memcmp (truth->gpus[i].uuid, uuid, 16) != 0)
            continue;
        memset (truth->answer, 0, sizeof (truth->answer));
        memcpy (truth->answer, &one, sizeof (one));
        memcpy (truth->answer + 8, &number, sizeof (number));
        if (ask (truth, truth->gpus[i].subdevice, GET_PID_INFO, truth->answer, sizeof (truth->answer)) != 0)
            return -EIO;
        memcpy (&private, truth->answer + 8 + 16, sizeof (private)); /* memPrivate */
        memcpy (&owned, truth->answer + 8 + 24, sizeof (owned));     /* memSharedOwned: with other handles, UVM's too */
        *bytes = private + owned;
        return 0;
    }
    return -ENODEV;
}

/* What the driver says of one process, into process->truth. */
static bool look (struct tenant *tenant, struct process *process)
{
    bool known = false;

    pthread_mutex_lock (&tenant->guard->truth_lock);
    for (uint32_t gpu = 0; tenant->guard->truth != NULL && gpu < tenant->limits.gpu_count; gpu++)
        known |= truth_of_process (tenant->guard->truth, tenant->limits.gpus[gpu].uuid, process->pid,
                                   &process->truth[gpu]) == 0;
    pthread_mutex_unlock (&tenant->guard->truth_lock);
    return known;
}

static bool holds_nothing (const struct tenant *tenant, const struct process *process)
{
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++)
        if (process->truth[gpu] != 0)
            return false;
    return true;
}

static void look_at_all (struct tenant *tenant)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        if (tenant->processes[i].serial != 0 && !tenant->processes[i].dead)
            look (tenant, &tenant->processes[i]);
}

static bool is_over (const struct tenant *tenant, uint32_t gpu)
{
    uint64_t limit = tenant->limits.gpus[gpu].memory;

    return limit != 0 && tenant_used (tenant, gpu) > limit && (tenant->excess[gpu] != 0 || tenant->over[gpu]);
}

/* What the processes hold beyond what the books say. Whether that is above a quota that was kept before. */
static bool sum_up (struct tenant *tenant)
{
    bool any = false;

    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        uint64_t sum = 0;

        for (unsigned i = 0; i < TENANT_PROCESSES; i++)
            sum += tenant->processes[i].serial ? tenant->processes[i].truth[gpu] : 0;
        tenant->status.truth[gpu] = sum;
        tenant->excess[gpu] = sum > tenant->used[gpu] ? sum - tenant->used[gpu] : 0;
        any |= is_over (tenant, gpu) && !tenant->over[gpu];
    }
    return any;
}

/* Who made a call that had to be left to it, and holds more by now than anybody granted. */
static void judge (struct tenant *tenant, uint32_t gpu)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial != 0 && !process->dead && process->is_suspect &&
            process->truth[gpu] > process->truth_before[gpu] && tenant->excess[gpu] > process->excess_before[gpu])
            race_lost (tenant, process);
    }
}

/* What is held beyond the books counts too. */
static void compare (struct tenant *tenant)
{
    /* Who was not asked lately may have given back what it had: before that is held against anybody all are asked. */
    if (sum_up (tenant)) {
        look_at_all (tenant);
        sum_up (tenant);
    }
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        bool over = is_over (tenant, gpu);

        if (over && !tenant->over[gpu])
            guard_note (tenant, RM_OVER_QUOTA, 0, 0);
        if (over)
            judge (tenant, gpu);
        if (over != tenant->over[gpu]) {
            tenant->over[gpu] = over;
            schedule_apply (tenant, gpu);
        }
    }
}

void truth_ask_at (struct tenant *tenant, struct process *process, uint64_t at)
{
    process->ask_at = at;
    process->ask_delay = 0;
    if (tenant->ask_at == 0 || at < tenant->ask_at)
        tenant->ask_at = at;
}

void truth_check (struct tenant *tenant, uint64_t now)
{
    uint64_t next = 0;
    bool looked = false;

    if (tenant->ask_at == 0 || tenant->ask_at > now)
        return;
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0 || process->ask_at == 0)
            continue;
        if (process->ask_at <= now) {
            /* Before it is asked about: what came back by then is in the answer. */
            bool is_on = process->is_suspect && race_is_on (tenant, process, now), known = look (tenant, process);

            looked = true;
            process->is_cleared = process->is_suspect && !is_on;
            process->ask_delay = process->ask_delay == 0 || is_on       ? FIRST_ASK_NS
                                 : process->ask_delay > LAST_ASK_NS / 2 ? LAST_ASK_NS
                                                                        : process->ask_delay * 2;
            process->ask_at = now + process->ask_delay;
            if (process->dead && (!known || holds_nothing (tenant, process))) {
                keep_finish (tenant, process->serial);
                rm_close_file (tenant->rm, process->serial);
                managed_forget (tenant, process);
                process_forget (tenant, process);
                continue;
            }
        }
        if (next == 0 || process->ask_at < next)
            next = process->ask_at;
    }
    tenant->ask_at = next;
    if (looked)
        compare (tenant);
    for (unsigned i = 0; looked && i < TENANT_PROCESSES; i++)
        if (tenant->processes[i].is_cleared)
            tenant->processes[i].is_suspect = tenant->processes[i].is_cleared = false;
}

void truth_now (struct tenant *tenant)
{
    look_at_all (tenant);
    compare (tenant);
}

void truth_begin (struct tenant *tenant, struct process *process)
{
    if (!process->was_asked)
        process->was_asked = look (tenant, process);
    sum_up (tenant);
    memcpy (process->truth_before, process->truth, sizeof (process->truth));
    memcpy (process->excess_before, tenant->excess, sizeof (process->excess_before));
}
