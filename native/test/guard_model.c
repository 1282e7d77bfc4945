#include "guard_model.h"
#include "guard/call.h"
#include "guard/guard_private.h"
#include "guard/privsep.h"
#include "guard/process.h"
#include "guard/retained.h"

#include "bare_tenant.h"
#include "rm/abi.h"
#include "rm/bytes.h"
#include "rm/nv_params.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct model model;

static uint32_t choose (void) { return model.choose != NULL ? model.choose () : 0; }

/* The process's /proc/PID/mem: how much of it lies there; 0: nothing. */
static size_t room_at (uint64_t address, size_t size)
{
    uint64_t room = address >= MODEL_ADDRESS && address - MODEL_ADDRESS < MODEL_SIZE ? MODEL_SIZE - (address - MODEL_ADDRESS) : 0;

    return size < room ? size : (size_t) room;
}

ssize_t pread (int file, void *to, size_t size, off_t at)
{
    size_t room = room_at ((uint64_t) at, size);

    if (file != MODEL_MEMORY)
        return (ssize_t) syscall (SYS_pread64, file, to, size, at);
    if (room == 0)
        return errno = EIO, -1;
    memcpy (to, model_at ((uint64_t) at), room);
    return (ssize_t) room;
}

ssize_t __pread_chk (int file, void *to, size_t size, off_t at, size_t room);
ssize_t __pread_chk (int file, void *to, size_t size, off_t at, size_t room)
{
    return size <= room ? pread (file, to, size, at) : (errno = EFAULT, -1);
}

ssize_t pwrite (int file, const void *from, size_t size, off_t at)
{
    size_t room = room_at ((uint64_t) at, size);

    if (file != MODEL_MEMORY)
        return (ssize_t) syscall (SYS_pwrite64, file, from, size, at);
    if (room == 0)
        return errno = EIO, -1;
    memcpy (model_at ((uint64_t) at), from, room);
    return (ssize_t) room;
}

/* The monitor, in place of guard/privsep.c: one process, and one descriptor of the driver's. */

void privsep_begin (struct privsep *self, int socket) { self->socket = socket; }
void privsep_end (struct privsep *self) { (void) self; }

int privsep_process (struct privsep *self, pid_t thread, struct privsep_process *found)
{
    (void) self;
    (void) found;
    return thread == 0 ? -EPERM : -ESRCH;
}

int privsep_file (struct privsep *self, const struct process *process, int number, bool is_named, enum rm_node *node)
{
    (void) self;
    (void) process;
    (void) is_named;
    *node = RM_NODE_CONTROL;
    return number == MODEL_DESCRIPTOR ? fcntl (MODEL_DESCRIPTOR, F_DUPFD_CLOEXEC, 0) : number == STDIN_FILENO ? -ENOTTY : -EBADF;
}

int privsep_files (struct privsep *self, const struct process *process, int32_t *numbers)
{
    (void) self;
    (void) process;
    numbers[0] = MODEL_DESCRIPTOR;
    return 1;
}

int privsep_maps (struct privsep *self, const struct process *process)
{
    (void) self;
    (void) process;
    return model.are_maps_unreadable ? -EAGAIN : -ESRCH;
}

int privsep_syscall (struct privsep *self, const struct process *process, pid_t thread, enum privsep_thread_state *state,
                     uint64_t arguments[4])
{
    (void) self;
    (void) process;
    (void) thread;
    (void) arguments;
    *state = THREAD_ENDED;
    return 0;
}

int privsep_space (struct privsep *self, const struct process *process, pid_t thread, int files[2])
{
    (void) self;
    (void) process;
    (void) thread;
    (void) files;
    return -EOPNOTSUPP;
}

bool privsep_is_ending (struct privsep *self, const struct process *process)
{
    (void) self;
    (void) process;
    return model.is_ending;
}

int privsep_kill (struct privsep *self, const struct process *process)
{
    (void) self;
    (void) process;
    return 0;
}

int privsep_device (struct privsep *self, int number)
{
    (void) self;
    (void) number;
    return -ENODEV;
}

static bool is_in (const uint8_t *memory, size_t memory_size, uint64_t address, uint64_t size)
{
    uint64_t first = (uint64_t) (uintptr_t) memory;

    return address >= first && size <= memory_size && address - first <= memory_size - size;
}

/* The driver reads or writes here, in the guard's process. */
static void follow_params (const char *what, uint32_t number, uint64_t address, uint64_t size)
{
    if (address != (uint64_t) (uintptr_t) model.tenant->params || size > sizeof (model.tenant->params))
        model.report (what, number);
}

static void follow_pointers (const struct driver_params *facts, const uint8_t *params)
{
    bool is_led = false;

    for (unsigned i = 0; i < facts->pointer_count; i++) {
        uint64_t address = get64 (params, facts->pointers[i].at), size = facts_bytes (&facts->pointers[i], params);

        /* RMAPI_PARAM_COPY_MAX_PARAMS_SIZE */
        if (address != 0 && size <= 1u << 20 && (size != 0 || facts->pointers[i].count_at == ANY))
            is_led |= !is_in (model.tenant->list, sizeof (model.tenant->list), address, size);
    }
    if (is_led)
        model.report ("a pointer in params", facts->number);
    if (facts->descriptor_at != NONE) {
        int descriptor = (int) get32 (params, (size_t) facts->descriptor_at);

        if (descriptor == MODEL_DESCRIPTOR || fcntl (descriptor, F_GETFD) < 0)
            model.report ("a descriptor in params", facts->number);
    }
}

static uint32_t control (const NVOS54_PARAMETERS *head)
{
    uint32_t number = head->cmd, size = head->paramsSize;
    const struct driver_params *facts = facts_find (FACTS_OF (driver_controls), MODEL_BRANCH, number);
    uint64_t address = head->params;
    uint8_t *params = (uint8_t *) (uintptr_t) address;

    if (facts != NULL && facts->size == ELSEWHERE)
        model.report ("a control that leads elsewhere", number);
    if (facts != NULL && facts->is_unsized)
        size = (uint32_t) facts->size;
    else if ((facts != NULL && size != (uint32_t) facts->size) || (size == 0) != (address == 0))
        return NV_ERR_INVALID_ARGUMENT;
    if (size == 0)
        return 0;
    if (address == 0)
        return NV_ERR_INVALID_ARGUMENT;
    follow_params ("params of a control", number, address, size);
    if (facts != NULL)
        follow_pointers (facts, params);
    for (uint32_t i = 0; model.choose != NULL && i < size && i < 4096; i += 1 + choose () % 64)
        params[i] ^= (uint8_t) (choose () % 2);
    return 0;
}

/* Up to pAllocParms NVOS21 is the same. */
static uint32_t allocate (const NVOS64_PARAMETERS *head, uint32_t head_size)
{
    bool is_long = head_size == sizeof (*head);
    uint32_t number = head->hClass;
    const struct driver_params *facts = facts_find (FACTS_OF (driver_classes), MODEL_BRANCH, number);
    uint64_t address = head->pAllocParms, rights = is_long ? head->pRightsRequested : 0;

    if (rights != 0 && !is_in (model.tenant->rights, sizeof (model.tenant->rights), rights, 4))
        model.report ("rights", number);
    if (is_long && head->flags != 0)
        model.report ("serialized params", number);
    if (facts == NULL || facts->size == ELSEWHERE)
        model.report ("a class that no row is about", number);
    else if (address != 0 && facts->size != 0) {
        follow_params ("params of a class", number, address, (uint64_t) facts->size);
        /* What it compares with names that it gave is no pointer. */
        if (number != NV01_EVENT_OS_EVENT && number != NV01_EVENT)
            follow_pointers (facts, (const uint8_t *) (uintptr_t) address);
    }
    return 0;
}

/* Whichever of its pointers the function has, it is none when the driver begins. */
static uint32_t heap (const NVOS32_PARAMETERS *head)
{
    uint32_t function = head->function;
    NvP64 address = function == NVOS32_FUNCTION_ALLOC_SIZE_RANGE ? head->data.AllocSizeRange.address : head->data.AllocSize.address;

    if (function != NVOS32_FUNCTION_FREE && function != NVOS32_FUNCTION_INFO && address != 0)
        model.report ("an address in NVOS32", function);
    return 0;
}

/* A call of the tenant's. Where its status stands. */
static size_t perform (uint32_t escape, const void *head, uint32_t size, uint32_t *status)
{
    const struct driver_params *facts = facts_find (FACTS_OF (driver_escapes), MODEL_BRANCH, escape);
    const NVOS02_PARAMETERS *memory = head;

    switch (escape) {
    case NV_ESC_RM_CONTROL:
        *status = control (head);
        return offsetof (NVOS54_PARAMETERS, status);
    case NV_ESC_RM_ALLOC:
        *status = allocate (head, size);
        return size == sizeof (NVOS64_PARAMETERS) ? offsetof (NVOS64_PARAMETERS, status) : offsetof (NVOS21_PARAMETERS, status);
    case NV_ESC_RM_VID_HEAP_CONTROL:
        *status = heap (head);
        return offsetof (NVOS32_PARAMETERS, status);
    case NV_ESC_RM_ALLOC_MEMORY:
        if (memory->hClass != NV01_MEMORY_LOCAL_USER)
            model.report ("NVOS02 of a class", memory->hClass);
        return offsetof (NVOS02_PARAMETERS, status);
    case NV_ESC_RM_IDLE_CHANNELS:
        follow_pointers (facts, head);
        return offsetof (NVOS30_PARAMETERS, status);
    case NV_ESC_RM_FREE:
        return offsetof (NVOS00_PARAMETERS, status);
    case NV_ESC_RM_DUP_OBJECT:
        return offsetof (NVOS55_PARAMETERS, status);
    case NV_ESC_RM_SHARE:
        return offsetof (NVOS57_PARAMETERS, status);
    case NV_ESC_RM_MAP_MEMORY_DMA:
    case NV_ESC_RM_UNMAP_MEMORY_DMA:
        return size - 8;
    default:
        if (facts != NULL && facts_lead (facts))
            model.report ("an escape", escape);
        return 0;
    }
}

/* rm's own, on structs of its own. */
static int rm_ioctl (uint32_t escape, void *argument)
{
    NV2080_CTRL_GPU_GET_GID_INFO_PARAMS *params;
    NVOS54_PARAMETERS *head = argument;

    if (escape != NV_ESC_RM_CONTROL)
        return 0;
    head->status = choose () % 4 == 3;
    if (head->cmd == NV2080_CTRL_CMD_GPU_GET_GID_INFO) {
        params = (void *) (uintptr_t) head->params;
        params->length = 16;
        memset (params->data, 0, 16);
    }
    return 0;
}

int ioctl (int file, unsigned long request, ...)
{
    uint32_t escape = request & 0xff, size = rm_request_size ((uint32_t) request), status = 0;
    va_list arguments;
    uint8_t *head;
    size_t at;

    (void) file;
    va_start (arguments, request);
    head = va_arg (arguments, uint8_t *);
    va_end (arguments);
    if (request == SECCOMP_IOCTL_NOTIF_ID_VALID)
        return 0;
    if (!is_in (model.tenant->head, sizeof (model.tenant->head), (uint64_t) (uintptr_t) head, 1))
        return rm_ioctl (escape, head);
    model.calls++;
    memcpy (model.head, head, size < sizeof (model.head) ? size : sizeof (model.head));
    at = perform (escape, head, size, &status);
    if (status == 0 && choose () % 4 == 3)
        status = NV_ERR_INVALID_ADDRESS;
    if (at != 0)
        set32 (head, at, status);
    return choose () == 0xff ? (errno = EIO, -1) : 0;
}

/* /dev/nvidiactl, which limits->nodes names. */
static void open_node (struct limits_node *node)
{
    static int file = -1;
    struct stat status;

    if (file < 0) {
        file = memfd_create ("nvidiactl", MFD_CLOEXEC);
        dup2 (file, MODEL_DESCRIPTOR);
    }
    fstat (file, &status);
    *node = (struct limits_node) { .device = status.st_dev, .inode = status.st_ino, .kind = RM_NODE_CONTROL };
}

void model_begin (void)
{
    /* A new one for each would be slow to fuzz. */
    static struct tenant tenants[1];
    struct tenant *tenant = &tenants[0];

    memset (tenant, 0, sizeof (*tenant));
    bare_begin (tenant, &model.guard);
    model.tenant = tenant;
    model.process = &tenant->processes[0];
    model.calls = 0;
    *model.process = (struct process) {
        .serial = TENANT_PROCESSES, .pid = getpid (), .pidfd = (int) syscall (SYS_pidfd_open, getpid (), 0), .memory = MODEL_MEMORY
    };
    tenant->copy = -1;
    tenant->limits.gpu_count = tenant->limits.node_count = 1;
    tenant->limits.gpus[0].memory = (uint64_t) 1 << 30;
    open_node (&tenant->limits.nodes[0]);
    model.guard.closing[1] = -1;
    pthread_mutex_lock (&tenant->lock);
}

void model_end (void)
{
    pthread_mutex_unlock (&model.tenant->lock);
    retained_release (model.tenant);
    process_forget (model.tenant, model.process);
    bare_release (model.tenant);
    model.tenant = NULL;
}

struct answer model_call (int descriptor, uint32_t escape, uint32_t size, uint64_t address)
{
    struct seccomp_notif notification = { .id = ++model.last_id, .pid = (uint32_t) getpid () };

    notification.data.nr = SYS_ioctl;
    notification.data.args[0] = (uint32_t) descriptor;
    notification.data.args[1] = NV_REQUEST (escape, size);
    notification.data.args[2] = address;
    model.tenant->status.notifications++;
    return call_ioctl (model.tenant, &notification, model.process);
}
