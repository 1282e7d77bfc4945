/* Public functions of the manager (manager.h): files, and one call from copy-in to copy-out. Runs in nvc-sim-manager
 * (in unit tests: in the test), on the thread that serves the call; takes manager->lock. */
#include "manager_state.h"
#include "versions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { ESCAPE_ALLOC_MEMORY = 0x27, ESCAPE_ALLOC_OBJECT, ESCAPE_FREE = 0x29, ESCAPE_CONTROL = 0x2A, ESCAPE_ALLOC = 0x2B };
#define HEAD_MAX 16384
#define SIM_LAST _IOC_NR (SIM_PARAMETERS)

static int nibble (char digit) { return digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10; }

/* "GPU-901c55c4-..." or any other text: its hexadecimal digits, 32 of them. */
static void uuid_bytes (const char *text, uint8_t *bytes)
{
    unsigned digits = 0;

    if (strncmp (text, "GPU-", 4) == 0)
        text += 4;
    for (; *text != '\0' && digits < 32; text++) {
        if (strchr ("0123456789abcdefABCDEF", *text) == NULL)
            continue;
        bytes[digits / 2] = (uint8_t) (bytes[digits / 2] << 4 | nibble (*text));
        digits++;
    }
}

struct manager *manager_create (const struct machine *machine)
{
    struct manager *manager = calloc (1, sizeof (*manager));
    pthread_condattr_t attributes;

    if (manager == NULL)
        return NULL;
    pthread_mutex_init (&manager->lock, NULL);
    pthread_condattr_init (&attributes);
    pthread_condattr_setclock (&attributes, CLOCK_MONOTONIC);
    pthread_cond_init (&manager->changed, &attributes);
    pthread_condattr_destroy (&attributes);
    manager->machine = machine;
    manager->release = version_release (machine->driver);
    manager->gpus = machine->gpu_count < MANAGER_MAX_GPUS ? machine->gpu_count : MANAGER_MAX_GPUS;
    for (uint32_t i = 0; i < manager->gpus; i++)
        uuid_bytes (machine->gpus[i].uuid, manager->uuids[i]);
    return manager;
}

void manager_destroy (struct manager *manager)
{
    while (manager->files != NULL) {
        struct manager_file *file = manager->files;
        while (file->registered == NULL && file->next != NULL)
            file = file->next;
        manager_release (file); /* files that hold a reference to another first */
    }
    for (struct engine *engine = manager->engines, *next; engine != NULL; engine = next) {
        next = engine->next;
        free (engine);
    }
    pthread_cond_destroy (&manager->changed);
    pthread_mutex_destroy (&manager->lock);
    free (manager);
}

struct manager_file *manager_open (struct manager *manager, enum manager_node node, uint32_t gpu)
{
    struct manager_file *file = node == MANAGER_GPU && gpu >= manager->gpus ? NULL : calloc (1, sizeof (*file));

    if (file == NULL)
        return NULL;
    file->manager = manager;
    file->node = node;
    file->gpu = gpu;
    file->references = 1;
    pthread_mutex_lock (&manager->lock);
    file->next = manager->files;
    manager->files = file;
    pthread_mutex_unlock (&manager->lock);
    return file;
}

static void file_drop (struct manager_file *file)
{
    struct manager *manager = file->manager;

    if (--file->references > 0)
        return;
    if (file->registered != NULL)
        file_drop (file->registered); /* not recursive: there are no chains */
    for (struct client *client = manager->clients, *next; client != NULL; client = next) {
        next = client->next;
        if (client->file == file)
            client_destroy (client);
    }
    for (uint32_t i = 0; i < file->export_count; i++) {
        if (file->exports[i] != NULL) {
            piece_drop (manager, file->exports[i]);
            free (file->exports[i]);
        }
    }
    uvm_forget (file);
    struct manager_file **place = &manager->files;
    while (*place != file)
        place = &(*place)->next;
    *place = file->next;
    free (file->exports);
    free (file);
}

void manager_release (struct manager_file *file)
{
    struct manager *manager = file->manager;

    pthread_mutex_lock (&manager->lock);
    file_drop (file);
    pthread_cond_broadcast (&manager->changed);
    pthread_mutex_unlock (&manager->lock);
}

/* Fault injection by a test (SIM_FAULT): the status of this call; 0: none. */
static uint32_t ordered_fault (struct request *request, uint32_t number)
{
    struct manager *manager = request->manager;

    if (manager->lost != 0)
        return manager->lost;
    for (uint32_t i = 0; i < MANAGER_MAX_FAULTS; i++) {
        struct manager_fault *fault = &manager->faults[i];
        if (fault->status == 0 || fault->escape != request->escape || (fault->number != 0 && fault->number != number))
            continue;
        if (fault->after > 1) {
            fault->after--;
            continue;
        }
        uint32_t status = fault->status;
        fault->status = 0;
        return status;
    }
    return 0;
}

/* The head's size of the five escapes that this file serves; manager_escape.c checks the others. 0: another size, or
 * the wrong kind of node (escape.c of the driver): ALLOC_MEMORY needs a GPU's, events take either, the rest needs
 * nvidiactl. */
static size_t status_offset (const struct request *request)
{
    bool on_gpu = request->file->node == MANAGER_GPU;
    bool event = request->escape == ESCAPE_ALLOC && request->head_size >= 32 && get32 (request->head, 12) == 0x79;

    if (!event && on_gpu != (request->escape == ESCAPE_ALLOC_MEMORY))
        return 0;
    switch (request->escape) {
    case ESCAPE_ALLOC_MEMORY:
        return request->head_size == 56 ? 40 : 0;
    case ESCAPE_ALLOC_OBJECT: /* NVOS05: ALLOC without params (RmDeprecatedAllocObject) */
        return request->head_size == 20 ? 16 : 0;
    case ESCAPE_FREE:
        return request->head_size == 16 ? 12 : 0;
    case ESCAPE_CONTROL:
        return request->head_size == 32 ? 28 : 0;
    case ESCAPE_ALLOC:
        return request->head_size == 48 ? 40 : request->head_size == 32 ? 28 : 0;
    default:
        return 0;
    }
}

static bool is_manager_escape (uint32_t escape) { return escape >= ESCAPE_ALLOC_MEMORY && escape <= ESCAPE_ALLOC; }

/* Copies in params. False: they are not readable (the status is set). */
static bool take_params (struct request *request)
{
    bool allocation = request->escape == ESCAPE_ALLOC;

    if (request->escape != ESCAPE_CONTROL && !allocation)
        return true;
    request->params_address = get64 (request->head, 16);
    if (!allocation)
        request->params_size = control_params_size (request);
    else
        request->params_size = class_params_size (request->manager, get32 (request->head, 12));
    if (request->params_size == 0 || request->params_address == 0)
        return true;
    if (request->params_size > MANAGER_MAX_PARAMETERS)
        return false;
    request->params = malloc (request->params_size + 8);
    return request->params != NULL &&
           request->caller->read (request->caller->context, request->params_address, request->params, request->params_size);
}

/* Offset of the descriptor that some calls name, or -1. */
static int named_descriptor (const struct request *request)
{
    uint32_t number;

    if (request->file->node == MANAGER_UVM) {
        switch (request->number) {
        case 25:
        case 27:
            return (int) get32 (request->head, 16);
        case 75:
            return (int) get32 (request->head, 0);
        default:
            return -1;
        }
    }
    if (request->escape == 201 && request->head_size == 4)
        return (int) get32 (request->head, 0);
    if (request->escape != ESCAPE_CONTROL || request->params == NULL || request->params_size < 4)
        return -1;
    number = get32 (request->head, 8);
    return number == 0x3d08 || number == 0x3d0b || number == 0x3d0c ? (int) get32 (request->params, 0) : -1;
}

static void perform (struct request *request)
{
    size_t status_at = status_offset (request);
    uint32_t number = request->escape == ESCAPE_CONTROL                  ? get32 (request->head, 8)
                      : status_at != 0 && request->escape != ESCAPE_FREE ? get32 (request->head, 12)
                                                                         : request->number;
    uint32_t status = request->escape >= 0xe0 && request->escape <= SIM_LAST ? 0 : ordered_fault (request, number);

    if (simulator_call (request))
        return;
    if (request->file->node == MANAGER_UVM) {
        uvm_call (request);
        return;
    }
    if (status_at == 0) {
        if (!escape_other (request))
            request->error = -EINVAL;
        return;
    }
    if (status == 0) {
        switch (request->escape) {
        case ESCAPE_ALLOC_MEMORY:
            status = class_allocate_memory (request);
            break;
        case ESCAPE_FREE:
            status = class_free (request);
            break;
        case ESCAPE_CONTROL:
            status = control (request);
            break;
        default:
            status = class_allocate (request);
        }
    }
    put32 (request->head, status_at, status);
}

/* Copies in, performs under the lock, copies out. */
static int run (struct request *request, uint64_t address)
{
    struct manager_caller *caller = request->caller;

    if (request->head_size > 0 && !caller->read (caller->context, address, request->head, request->head_size))
        return -EFAULT;
    if (request->file->node != MANAGER_UVM && is_manager_escape (request->escape)) {
        if (status_offset (request) == 0)
            return -EINVAL;
        if (!take_params (request) || (request->escape == ESCAPE_CONTROL && !control_take_list (request))) {
            put32 (request->head, status_offset (request), STATUS_INVALID_ADDRESS);
            return caller->write (caller->context, address, request->head, request->head_size) ? 0 : -EFAULT;
        }
    }
    int descriptor = named_descriptor (request);
    if (descriptor >= 0)
        request->named = caller->file (caller->context, descriptor);
    pthread_mutex_lock (&request->manager->lock);
    perform (request);
    pthread_mutex_unlock (&request->manager->lock);
    if (request->error != 0)
        return request->error;
    bool written = true;
    if (request->params_changed)
        written &= caller->write (caller->context, request->params_address, request->params, request->params_size);
    if (request->list != NULL)
        written &= caller->write (caller->context, request->list_address, request->list, request->list_size);
    for (size_t i = 0; i < 3; i++) {
        if (request->late[i].size > 0 &&
            !caller->write (caller->context, request->late[i].address, request->late[i].from, request->late[i].size))
            put32 (request->head, status_offset (request), STATUS_INVALID_PARAM_STRUCT);
    }
    if (request->head_size > 0)
        written &= caller->write (caller->context, address, request->head, request->head_size);
    return written ? 0 : -EFAULT;
}

int manager_ioctl (struct manager_file *file, struct manager_caller *caller, uint32_t request_number, uint64_t address)
{
    uint8_t head[HEAD_MAX];
    struct request request = { .manager = file->manager,
                               .file = file,
                               .caller = caller,
                               .number = request_number,
                               .escape = _IOC_NR (request_number),
                               .head_size = _IOC_SIZE (request_number),
                               .head = head };
    bool own = _IOC_TYPE (request_number) == 'S' && request.escape >= 0xe0 && request.escape <= SIM_LAST;

    if (file->node == MANAGER_UVM_TOOLS)
        return -ENOTTY;
    if (file->node == MANAGER_UVM && !own) {
        request.head_size = uvm_size (file->manager, request_number);
        if (request.head_size == UINT32_MAX)
            return -EINVAL;
    }
    int result = run (&request, address);
    free (request.params);
    free (request.list);
    return result;
}

void manager_interrupt (struct manager *manager, struct manager_caller *caller)
{
    pthread_mutex_lock (&manager->lock);
    atomic_store (&caller->interrupted, true);
    pthread_cond_broadcast (&manager->changed);
    pthread_mutex_unlock (&manager->lock);
}

uint64_t manager_clock (struct manager *manager, enum sim_clock_mode mode, uint64_t advance)
{
    pthread_mutex_lock (&manager->lock);
    clock_set (manager, mode, advance);
    uint64_t now = clock_now (manager);
    pthread_mutex_unlock (&manager->lock);
    return now;
}

void manager_totals (struct manager *manager, struct sim_totals *totals)
{
    pthread_mutex_lock (&manager->lock);
    totals_fill (manager, totals);
    pthread_mutex_unlock (&manager->lock);
}

void manager_stop (struct manager *manager)
{
    pthread_mutex_lock (&manager->lock);
    manager->stopping = true;
    pthread_cond_broadcast (&manager->changed);
    pthread_mutex_unlock (&manager->lock);
}
