/* Tenants, each with a guard of its own, around the kernel of sequence_kernel.h. guard/tenant.c is part of this file, for its
 * functions that only its own thread calls; here they are called in turn. */
#include "sequence.h"

#include "guard/tenant.c"

#include "guard/driver_usage.h"
#include "guard/notify.h"
#include "rm/nv_numbers.h"

#include <linux/audit.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define CALLS_PENDING 32u
#define HEAD_MAX HEAD_SIZE
#define PARAMS_MAX ROOM_SIZE
#define MILLISECOND UINT64_C (1000000)
#define TURNS_MAX 4000u
#define PARKED_NS (2 * MILLISECOND)
/* Less than the driver's own. */
#define SLICE_US 800u

/* A call that the guard continued and the kernel has not made yet. */
struct pending {
    struct task *task;
    pid_t thread;
    struct description *file;
    uint32_t request;
    unsigned delay; /* steps; 0: this place is free */
    struct action action;
    uint8_t head[HEAD_MAX], params[PARAMS_MAX];
};

struct world world;
static struct pending pending[CALLS_PENDING];
static struct guard *guards;
static struct tenant *tenants;
static struct machine machine;
static bool is_told[TASKS];
static struct {
    void *(*run) (void *);
    void *argument;
} closers[TENANTS];

static const uint8_t announced[] = { NV_ESC_RM_ALLOC_MEMORY,    NV_ESC_RM_ALLOC_OBJECT, NV_ESC_RM_FREE,  NV_ESC_RM_CONTROL,
                                     NV_ESC_RM_ALLOC,           NV_ESC_RM_DUP_OBJECT,   NV_ESC_RM_SHARE, NV_ESC_RM_VID_HEAP_CONTROL,
                                     NV_ESC_RM_ACCESS_REGISTRY, NV_ESC_IOCTL_XFER_CMD };

struct tenant *world_tenant (unsigned number) { return &tenants[number]; }

/* Only what a sequence wrote of them costs anything. */
static void *fresh (void *memory, size_t size)
{
    if (memory == NULL)
        memory = mmap (NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else
        madvise (memory, size, MADV_DONTNEED);
    return memory;
}

static void guard_begin (unsigned number)
{
    struct guard *guard = &guards[number];
    struct tenant *tenant = &tenants[number];

    pthread_mutex_init (&guard->lock, NULL);
    pthread_mutex_init (&guard->driver_usage_lock, NULL);
    pthread_mutex_init (&guard->probe_lock, NULL);
    guard->event_descriptor = guard->changed_descriptor = guard->contention = -1;
    guard->sees_exec = true;
    closer_start (guard);
    closers[number].run = kernel.closer;
    closers[number].argument = kernel.closer_argument;
    tenant->guard = guard;
    tenant->id = number + 1;
    tenant->limits = (struct limits) { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .gpu_count = 1 };
    memcpy (tenant->limits.gpus[0].uuid, kernel_uuid (), 16);
    tenant->limits.gpus[0].memory = QUOTA;
    edges_begin (&tenant->edges);
    tenant->copy = tenant->epoll = tenant->wake = -1;
    pthread_mutex_init (&tenant->lock, NULL);
    pthread_mutex_init (&tenant->listeners_lock, NULL);
    receiver_begin (&tenant->receiver);
    tenant->abi = rm_abi_find (machine.driver);
    tenant->rm = rm_create (tenant->abi, RM_POSTURE_GUARD, &guard_host, tenant);
    guard->tenant = tenant;
}

void world_begin (uint64_t seed)
{
    memset (&world, 0, sizeof (world));
    memset (pending, 0, sizeof (pending));
    memset (is_told, 0, sizeof (is_told));
    machine = (struct machine) { .driver = "580.159.04", .gpu_count = 1 };
    machine.gpus[0] = (struct machine_gpu) { .memory = UINT64_C (17) << 30, .memory_reserved = UINT64_C (1) << 30, .bus = 6 };
    strcpy (machine.gpus[0].uuid, "GPU-01020304-0506-0708-090a-0b0c0d0e0f00");
    kernel_begin (manager_create (&machine), seed);
    manager_clock (kernel.manager, SIM_CLOCK_MANUAL, 0);
    guards = fresh (guards, sizeof (*guards) * TENANTS);
    tenants = fresh (tenants, sizeof (*tenants) * TENANTS);
    for (unsigned i = 0; i < TENANTS; i++) {
        kernel.caller = GUARD_PID (i);
        guard_begin (i);
        task_start (i, NULL, false);
    }
    task_start (0, NULL, false);
}

/* What the guards' threads that close files have to do. */
static void run_closers (void)
{
    for (unsigned i = 0; i < TENANTS; i++) {
        kernel.caller = GUARD_PID (i);
        if (closers[i].run != NULL)
            closers[i].run (closers[i].argument);
    }
}

void world_end (void)
{
    for (unsigned i = 0; i < TENANTS; i++) {
        struct tenant *tenant = &tenants[i];

        kernel.caller = GUARD_PID (i);
        rm_destroy (tenant->rm);
        retained_release (tenant);
        space_release (tenant);
        edges_end (&tenant->edges);
        driver_usage_close (guards[i].driver_usage);
        probe_close (guards[i].dup_probe);
    }
    run_closers ();
    for (unsigned i = 0; i < CALLS_PENDING; i++)
        if (pending[i].delay != 0)
            description_drop (pending[i].file);
    kernel_end ();
    manager_destroy (kernel.manager);
}

uint64_t world_charged (unsigned tenant) { return tenant_used (&tenants[tenant], 0); }

static void end_killed (void)
{
    for (unsigned i = 0; i < kernel.task_count; i++)
        if (kernel.tasks[i].is_alive && kernel.tasks[i].is_killed)
            task_end (&kernel.tasks[i]);
}

static void tell_ends (void)
{
    for (unsigned i = 0; i < kernel.task_count; i++) {
        const struct task *task = &kernel.tasks[i];
        struct tenant *tenant = &tenants[task->tenant];

        if (task->is_alive || is_told[i])
            continue;
        is_told[i] = true;
        kernel.caller = GUARD_PID (task->tenant);
        for (unsigned k = 0; k < TENANT_PROCESSES; k++)
            if (tenant->processes[k].serial != 0 && tenant->processes[k].pid == task->pid)
                process_ended (tenant, tenant->processes[k].serial);
    }
    /* The filter's other end is there as long as a process is. */
    for (unsigned i = 0; i < TENANTS; i++)
        tenants[i].listener_count = 0;
    for (unsigned i = 0; i < kernel.task_count; i++)
        if (kernel.tasks[i].is_alive)
            tenants[kernel.tasks[i].tenant].listener_count = 1;
}

/* What all guards have to do now; ns until one has more to do. */
static uint64_t take_turns (uint64_t most)
{
    for (unsigned i = 0; i < TENANTS; i++) {
        int timeout, held;

        kernel.caller = GUARD_PID (i);
        timeout = sleep_until (&tenants[i], tenant_look (&tenants[i], guard_now (), &held));
        if (timeout >= 0 && (uint64_t) timeout * MILLISECOND < most)
            most = (uint64_t) timeout * MILLISECOND;
    }
    end_killed ();
    tell_ends ();
    run_closers ();
    return most > 0 ? most : MILLISECOND / 10;
}

void world_advance (uint64_t nanoseconds)
{
    uint64_t end = kernel.now + nanoseconds;

    for (unsigned turn = 0; kernel.now < end && turn < TURNS_MAX; turn++) {
        uint64_t next = take_turns (end - kernel.now);

        kernel.now += next;
    }
    take_turns (MILLISECOND);
}

/* The kernel makes the call, as the process. */
static int make (struct pending *call)
{
    uint64_t before[TENANTS + 1], after;
    int result = -EINTR;

    for (unsigned i = 0; i <= TENANTS; i++)
        before[i] = check_held (i);

    if (call->task->is_alive)
        result = kernel_call (call->task, call->file, call->request, call->head);
    if (result == 0)
        action_made (&call->action, call->head);
    /* Of whichever tenant the client is. */
    for (unsigned i = 0; i <= TENANTS; i++)
        if ((after = check_held (i)) > before[i])
            world.unseen[i] += after - before[i];
    if (call->thread >= FIRST_THREAD)
        kernel.thread_calls[call->thread - FIRST_THREAD][1] = 0;
    description_drop (call->file);
    call->delay = 0;
    return result;
}

void world_after_step (void)
{
    for (unsigned i = 0; i < CALLS_PENDING; i++)
        if (pending[i].delay != 0 && --pending[i].delay == 0)
            make (&pending[i]);
    end_killed ();
    tell_ends ();
    run_closers ();
}

static bool is_announced (uint32_t request) { return memchr (announced, (int) (request & 0xff), sizeof (announced)) != NULL; }

static void announce (struct task *task, pid_t thread, int number, const uint64_t arguments[6])
{
    struct seccomp_notif notification = { .id = 1, .pid = (uint32_t) thread };

    notification.data.nr = number;
    notification.data.arch = SECCOMP_ARCH_NATIVE;
    memcpy (notification.data.args, arguments, sizeof (notification.data.args));
    kernel.notification = &notification;
    kernel.caller = GUARD_PID (task->tenant);
    memset (&kernel.response, 0, sizeof (kernel.response));
    notify_handle (&tenants[task->tenant], LISTENER);
    kernel.notification = NULL;
    /* The thread waits, and so does whatever else would happen. */
    while (kernel.response.id == 0)
        world_advance (PARKED_NS);
}

static struct pending *pending_place (void)
{
    for (unsigned i = 0; i < CALLS_PENDING; i++)
        if (pending[i].delay == 0)
            return &pending[i];
    return NULL;
}

static pid_t thread_for (struct task *task)
{
    if (kernel.next_thread >= FIRST_THREAD + 256)
        return task->pid;
    kernel.thread_tasks[kernel.next_thread - FIRST_THREAD] = task;
    return kernel.next_thread++;
}

static bool is_continued (void) { return (kernel.response.flags & SECCOMP_USER_NOTIF_FLAG_CONTINUE) != 0; }

int world_ioctl (struct task *task, unsigned slot, uint32_t request, void *argument, const struct action *other, unsigned delay)
{
    struct description *file = task->files[slot];
    bool is_raced = other != NULL && delay != 0;
    pid_t thread = is_raced ? thread_for (task) : task->pid;
    uint64_t arguments[6] = { slot, request, (uint64_t) (uintptr_t) argument };
    struct pending *call;

    if (file == NULL)
        return -EBADF;
    if (!is_announced (request))
        return kernel_call (task, file, request, argument);
    if (thread >= FIRST_THREAD)
        memcpy (kernel.thread_calls[thread - FIRST_THREAD], arguments, sizeof (kernel.thread_calls[0]));
    announce (task, thread, SYS_ioctl, arguments);
    if (!is_continued () || (call = pending_place ()) == NULL) {
        if (thread >= FIRST_THREAD)
            kernel.thread_calls[thread - FIRST_THREAD][1] = 0;
        return kernel.response.error;
    }
    if (!is_raced)
        return kernel_call (task, file, request, argument);
    /* The kernel looks the descriptor up again, too. */
    if (task->files[other->words[D] % TASK_FILES] != NULL)
        file = task->files[other->words[D] % TASK_FILES];
    *call = (struct pending) {
        .task = task, .thread = thread, .file = description_hold (file), .request = request, .delay = delay, .action = *other
    };
    /* The request itself is in registers. */
    if (action_fill (task, other, call->head, call->params) != request) {
        kernel.thread_calls[thread - FIRST_THREAD][1] = 0;
        description_drop (call->file);
        call->delay = 0;
        return kernel_call (task, file, request, argument);
    }
    return delay == 1 ? make (call) : -EINPROGRESS;
}

int world_mmap (struct task *task, unsigned slot, uint64_t bytes)
{
    uint64_t arguments[6] = { [1] = bytes, [4] = slot };

    announce (task, task->pid, SYS_mmap, arguments);
    if (!is_continued () || !task_map (task, slot, bytes))
        return -EINVAL;
    world.unseen[task->tenant] += bytes;
    world.unseen[TENANTS] += bytes;
    return 0;
}

void world_print (unsigned number)
{
    const struct tenant *tenant = &tenants[number];

    for (unsigned i = 0; i < RM_REASONS; i++)
        if (tenant->status.reasons[i] != 0)
            printf (" %s %llu", rm_reason_word ((enum rm_reason) i), (unsigned long long) tenant->status.reasons[i]);
    for (unsigned i = 0; i < kernel.task_count; i++)
        if (kernel.tasks[i].tenant == number)
            printf (" p%u%s", i, kernel.tasks[i].is_alive ? "" : "-");
}

/* The share of one group, as the scheduler of the supervisor would give it. */
void world_plan (unsigned number)
{
    struct tenant *tenant = &tenants[number];
    unsigned groups;

    kernel.caller = GUARD_PID (number);
    pthread_mutex_lock (&tenant->lock);
    groups = rm_groups (tenant->rm, 0);
    atomic_store (&tenant->slice[0], groups > 1 ? SLICE_US / 2 : SLICE_US);
    schedule_apply (tenant, 0);
    tenant_unlock (tenant);
}

void world_freeze (unsigned number, bool is_on)
{
    struct tenant *tenant = &tenants[number];

    kernel.caller = GUARD_PID (number);
    atomic_store (&tenant->planned_frozen[0], is_on);
    (void) edges_apply (tenant, 0);
}
