/* What a step does (sequence.h). */
#include "sequence.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/uvm_ioctl.h"

#include <string.h>

#define MILLISECOND UINT64_C (1000000)
#define RANGE_AT(range) (UINT64_C (0x1000000000) * ((range) + 1u))
#define RANGE_BYTES (UINT64_C (1) << 30)
#define BATCH_AT UINT64_C (0x8000000000)
#define BATCH_PIECES 128u
#define BATCH_BYTES (UINT64_C (4) << 20)
#define BATCH_HANDLE 0x6a000000u
#define UVM_REGISTER_GPU_VASPACE 25u
#define UVM_MAP_SIZE 9264u /* from 550 on */
#define ATTRIBUTES 0x18000000u

/* Programs make their calls with structs at the same places, and the guard counts on that. */
static uint8_t head[HEAD_SIZE] __attribute__ ((aligned (16))), room[ROOM_SIZE] __attribute__ ((aligned (16)));

static uint32_t uvm (struct task *task, unsigned slot, uint32_t number, void *argument)
{
    const struct description *file = task->files[slot];

    return file != NULL && file->node == MANAGER_UVM ? (uint32_t) world_ioctl (task, slot, number, argument, NULL, 0) : UINT32_MAX;
}

static void uvm_begin (struct task *task, unsigned slot, uint64_t flags)
{
    UVM_INITIALIZE_PARAMS initialize = { .flags = flags };
    UVM_REGISTER_GPU_PARAMS gpu = { .rmCtrlFd = -1 };

    memcpy (gpu.gpu_uuid.uuid, kernel_uuid (), 16);
    uvm (task, slot, UVM_INITIALIZE, &initialize);
    uvm (task, slot, UVM_REGISTER_GPU, &gpu);
}

static void uvm_space (struct task *task, unsigned slot, uint32_t client, uint32_t handle)
{
    uint32_t words[8] = { 0 };

    memcpy (words, kernel_uuid (), 16);
    words[5] = client;
    words[6] = handle;
    uvm (task, slot, UVM_REGISTER_GPU_VASPACE, words);
}

static void uvm_range (struct task *task, unsigned slot, uint32_t number, uint64_t at, uint64_t bytes)
{
    UVM_UNMAP_EXTERNAL_PARAMS range = { .base = at, .length = bytes }; /* begins as the others do */

    memcpy (range.gpuUuid.uuid, kernel_uuid (), 16);
    uvm (task, slot, number, &range);
}

static void uvm_map (struct task *task, unsigned slot, uint64_t at, uint32_t client, uint32_t handle)
{
    static uint8_t call[UVM_MAP_SIZE];
    uvm_map_external_allocation_begin *begin = (void *) call;
    uvm_map_external_allocation_end *end = (void *) (call + UVM_MAP_SIZE - sizeof (*end));

    memset (call, 0, sizeof (call));
    begin->base = at;
    begin->length = check_piece (client, handle);
    memcpy (begin->perGpuAttributes[0].gpuUuid.uuid, kernel_uuid (), 16);
    end->gpuAttributesCount = 1;
    end->hClient = client;
    end->hMemory = handle;
    uvm (task, slot, UVM_MAP_EXTERNAL_ALLOCATION, call);
}

static void perform (struct task *task, const struct action *action, const struct action *other, unsigned delay)
{
    uint32_t request;

    memset (head, 0, sizeof (head));
    memset (room, 0, sizeof (room));
    request = action_fill (task, action, head, room);
    if (world_ioctl (task, action->words[D] % TASK_FILES, request, head, other, delay) == 0)
        action_made (action, head);
    world.last_status = action->kind == FREE ? ((NVOS00_PARAMETERS *) head)->status : ((NVOS64_PARAMETERS *) head)->status;
}

static void perform_simple (struct task *task, uint8_t kind, const uint8_t words[STEP_WORDS])
{
    struct action action = { .kind = kind };

    memcpy (action.words, words, sizeof (action.words));
    perform (task, &action, NULL, 0);
}

/* As libcuda begins: nvidiactl as 0, the GPU's node as 1, UVM as 2; a device 0, its subdevice 1, an address space 2. */
static void start (struct task *task, uint8_t process, uint8_t client, uint64_t flags)
{
    int32_t control = 0;

    task_open (task, 0, MANAGER_CONTROL);
    task_open (task, 1, MANAGER_GPU);
    task_open (task, 2, MANAGER_UVM);
    world_ioctl (task, 1, NV_REQUEST (NV_ESC_REGISTER_FD, sizeof (control)), &control, NULL, 0);
    perform_simple (task, CLIENT, (uint8_t[STEP_WORDS]) { process, 0, client });
    perform_simple (task, DEVICE, (uint8_t[STEP_WORDS]) { process, 0, client, 0 });
    perform_simple (task, SUBDEVICE, (uint8_t[STEP_WORDS]) { process, 0, client, 0, 1 });
    perform_simple (task, SPACE, (uint8_t[STEP_WORDS]) { process, 0, client, 0, 2 });
    uvm_begin (task, 2, flags);
    uvm_space (task, 2, world.clients[client % CLIENTS].handle, FIRST_HANDLE + 2);
}

/* A group that computes, as libcuda makes it: the group, a channel, an object on it, each with the next handle. */
static void context (struct task *task, const struct action *action)
{
    static const uint8_t kinds[] = { GROUP, CHANNEL, COMPUTE };
    struct action each = *action;

    for (unsigned i = 0; i < 3; i++) {
        each.kind = kinds[i];
        each.words[H] = (uint8_t) ((action->words[H] + i) % HANDLES);
        perform (task, &each, NULL, 0);
        each.words[O] = each.words[H];
    }
    each = *action;
    each.kind = SCHEDULE;
    each.words[O] = action->words[H];
    each.words[H] = 0;
    perform (task, &each, NULL, 0);
}

/* Many small pieces below one parent, all of them mapped by UVM. */
static void batch (struct task *task, const struct action *action)
{
    uint32_t client = action_client (action, C);
    unsigned slot = action->words[4] % TASK_FILES;

    for (uint32_t i = 0; i < BATCH_PIECES; i++) {
        NV_MEMORY_ALLOCATION_PARAMS *memory = (void *) room;
        uint64_t at = BATCH_AT + i * BATCH_BYTES * 2;
        uint32_t request;

        memset (room, 0, sizeof (room));
        memory->size = BATCH_BYTES;
        memory->attr = ATTRIBUTES;
        request = action_alloc (action, head, action_handle (action, O), BATCH_HANDLE + i, NV01_MEMORY_LOCAL_USER, room);
        if (world_ioctl (task, action->words[D] % TASK_FILES, request, head, NULL, 0) != 0 ||
            ((NVOS64_PARAMETERS *) head)->status != 0)
            return;
        uvm_range (task, slot, UVM_CREATE_EXTERNAL_RANGE, at, BATCH_BYTES);
        uvm_map (task, slot, at, client, BATCH_HANDLE + i);
    }
}

/* A program that does nothing special gets 64 KiB, at once. */
static void try_neighbour (void)
{
    const uint8_t words[STEP_WORDS] = { NEIGHBOUR, 0, CLIENTS - 1, 0, 8, 1 };
    struct task *task = &kernel.tasks[NEIGHBOUR];
    uint64_t before = kernel.now;

    perform_simple (task, MEMORY, words);
    world.is_neighbour_delayed |= world.last_status != 0;
    perform_simple (task, FREE, (uint8_t[STEP_WORDS]) { NEIGHBOUR, 0, CLIENTS - 1, 8 });
    world.is_neighbour_delayed |= world.last_status != 0 || kernel.now != before;
}

static void wait (uint32_t milliseconds)
{
    world_advance (milliseconds * MILLISECOND);
    if (milliseconds < 1000)
        return;
    for (unsigned i = 0; i < TENANTS; i++)
        world_plan (i);
    try_neighbour ();
    if (milliseconds >= 3000)
        memset (world.unseen, 0, sizeof (world.unseen));
}

static void act (struct task *task, const struct action *action, const struct step *step)
{
    static const enum manager_node nodes[] = { MANAGER_CONTROL, MANAGER_UVM, MANAGER_GPU };
    const uint8_t *words = action->words;
    unsigned slot = words[D] % TASK_FILES;

    switch (action->kind) {
    case START:
        start (task, words[P], words[1] % CLIENTS, words[2] & 2u);
        break;
    case OPEN:
        task_open (task, slot, nodes[words[2] % 3]);
        break;
    case CLOSE:
        task_close (task, slot);
        break;
    case PASS:
        if (kernel.tasks[words[2] % kernel.task_count].is_alive && words[2] % kernel.task_count != NEIGHBOUR)
            task_pass (task, slot, &kernel.tasks[words[2] % kernel.task_count], words[3] % TASK_FILES);
        break;
    case FORK:
        task_start (task->tenant, task, (words[1] & 1) != 0);
        break;
    case EXECUTE:
        task_execute (task);
        break;
    case EXIT:
        task_end (task);
        break;
    case CONTEXT:
        context (task, action);
        break;
    case BATCH:
        batch (task, action);
        break;
    case UVM:
        uvm_begin (task, slot, words[2] & 2u);
        break;
    case UVM_SPACE:
        uvm_space (task, slot, action_client (action, C), FIRST_HANDLE + words[3]);
        break;
    case RANGE:
        uvm_range (task, slot, UVM_CREATE_EXTERNAL_RANGE, RANGE_AT (words[2] % RANGES), RANGE_BYTES);
        break;
    case MAP:
        uvm_range (task, slot, UVM_CREATE_EXTERNAL_RANGE, RANGE_AT (words[4] % RANGES), RANGE_BYTES);
        uvm_map (task, slot, RANGE_AT (words[4] % RANGES), action_client (action, C), FIRST_HANDLE + words[3]);
        break;
    case UNMAP:
        uvm_range (task, slot, UVM_UNMAP_EXTERNAL, RANGE_AT (words[2] % RANGES), RANGE_BYTES);
        break;
    case RANGE_FREE:
        uvm_range (task, slot, UVM_FREE, RANGE_AT (words[2] % RANGES), RANGE_BYTES);
        break;
    case MANAGED:
        world_mmap (task, slot, action_sizes[words[2] % SIZES]);
        break;
    case UNMANAGED:
        task_unmap (task, words[1] % TASK_MAPS);
        break;
    default:
        perform (task, action, step->delay != 0 ? &step->other : NULL, step->delay);
    }
}

void step_run (const struct step *step)
{
    const struct action *action = &step->action;
    struct task *task = &kernel.tasks[action->words[P] % kernel.task_count];

    if (action->kind == WAIT)
        wait (action_waits[action->words[0] % 5]);
    else if (action->kind == FREEZE)
        world_freeze (action->words[0] % NEIGHBOUR, (action->words[1] & 1) != 0);
    else if (task->is_alive && (task->tenant != NEIGHBOUR || action->kind == START))
        act (task, action, step);
    world_after_step ();
    world.step++;
}
