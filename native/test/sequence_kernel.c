/* Processes and descriptors (sequence_kernel.h). What the guard's files ask is in sequence_wrap.c. */
#include "sequence_kernel.h"

#include "device.h"
#include "manager_state.h"

#include "guard/privsep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DESCRIPTORS 8192

struct kernel kernel;
static struct description *descriptors[DESCRIPTORS];
static int next_descriptor;

static struct description *descriptions;

struct description *description_new (int what)
{
    struct description *description = calloc (1, sizeof (*description));

    description->references = 1;
    description->what = what;
    description->next = descriptions;
    description->place = &descriptions;
    if (descriptions != NULL)
        descriptions->place = &description->next;
    return descriptions = description;
}

static const struct description *description_of (const struct manager_file *file)
{
    const struct description *at = descriptions;

    while (at != NULL && at->file != file)
        at = at->next;
    return at;
}

unsigned kernel_tenant_of (const struct manager_file *file)
{
    const struct description *found = description_of (file);

    return found != NULL ? found->tenant : 0;
}

struct description *description_hold (struct description *description)
{
    description->references++;
    return description;
}

static void space_drop (struct address_space *space)
{
    if (--space->references == 0)
        free (space);
}

void description_drop (struct description *description)
{
    if (--description->references > 0)
        return;
    if (description->what == FILE_NODE)
        manager_release (description->file);
    if (description->space != NULL)
        space_drop (description->space);
    *description->place = description->next;
    if (description->next != NULL)
        description->next->place = description->place;
    free (description);
}

int descriptor_new (struct description *description)
{
    for (int tried = 0; tried < DESCRIPTORS; tried++) {
        int at = next_descriptor++ % DESCRIPTORS;

        if (descriptors[at] != NULL)
            continue;
        descriptors[at] = description;
        return FIRST_DESCRIPTOR + at;
    }
    abort ();
}

struct description *descriptor_find (int descriptor)
{
    int at = descriptor - FIRST_DESCRIPTOR;

    return at >= 0 && at < DESCRIPTORS ? descriptors[at] : NULL;
}

int __wrap_close (int descriptor);
int __real_close (int descriptor);
int __wrap_close (int descriptor)
{
    struct description *description = descriptor_find (descriptor);

    if (descriptor < FIRST_DESCRIPTOR)
        return descriptor < 0 ? 0 : __real_close (descriptor);
    if (description == NULL)
        return errno = EBADF, -1;
    descriptors[descriptor - FIRST_DESCRIPTOR] = NULL;
    description_drop (description);
    return 0;
}

void kernel_begin (struct manager *manager, uint64_t seed)
{
    kernel = (struct kernel) {
        .manager = manager, .now = UINT64_C (1000000000000), .random = seed, .next_pid = FIRST_PID, .next_thread = FIRST_THREAD
    };
    next_descriptor = 0;
}

void kernel_end (void)
{
    for (unsigned i = 0; i < kernel.task_count; i++)
        if (kernel.tasks[i].is_alive)
            task_end (&kernel.tasks[i]);
    for (int i = 0; i < DESCRIPTORS; i++)
        if (descriptors[i] != NULL)
            __wrap_close (FIRST_DESCRIPTOR + i);
}

struct task *task_find (pid_t thread)
{
    struct task *found = NULL;

    if (thread >= FIRST_THREAD && thread < FIRST_THREAD + 256)
        found = kernel.thread_tasks[thread - FIRST_THREAD];
    for (unsigned i = 0; i < kernel.task_count && found == NULL; i++)
        if (kernel.tasks[i].pid == thread)
            found = &kernel.tasks[i];
    return found != NULL && found->is_alive && !found->is_killed ? found : NULL;
}

static struct address_space *space_new (void)
{
    struct address_space *space = calloc (1, sizeof (*space));

    space->users = space->references = 1;
    return space;
}

struct task *task_start (unsigned tenant, struct task *parent, bool shares_memory)
{
    struct task *task = kernel.task_count < TASKS ? &kernel.tasks[kernel.task_count] : NULL;

    if (task == NULL)
        return NULL;
    kernel.task_count++;
    *task = (struct task) { .is_alive = true, .pid = kernel.next_pid++, .tenant = tenant };
    for (unsigned i = 0; parent != NULL && i < TASK_FILES; i++)
        task->files[i] = parent->files[i] != NULL ? description_hold (parent->files[i]) : NULL;
    /* Mappings of UVM's do not pass to a child's own address space (uvm_vm_open_managed). */
    if (parent == NULL || !shares_memory) {
        task->space = space_new ();
        return task;
    }
    task->space = parent->space;
    task->space->users++;
    task->space->references++;
    return task;
}

const uint8_t *kernel_uuid (void) { return kernel.manager->uuids[0]; }

uint32_t kernel_instance (void) { return 0; }

static int resident (struct description *file, int64_t bytes)
{
    struct sim_resident change = { .bytes = bytes };

    memcpy (change.uuid, kernel.manager->uuids[0], 16);
    return kernel_call (NULL, file, (uint32_t) SIM_RESIDENT, &change) == 0 && change.status == 0 ? 0 : -1;
}

/* With MULTI_PROCESS_SHARING a range outlives its mapping, until the file is closed (uvm_va_range_zombify). */
static void mapping_end (struct mapping *mapping, bool is_exit)
{
    if (!is_exit || (mapping->file->file->uvm_flags & 2) == 0)
        resident (mapping->file, -(int64_t) mapping->bytes);
    description_drop (mapping->file);
    mapping->file = NULL;
}

static void space_leave (struct task *task)
{
    struct address_space *space = task->space;

    task->space = NULL;
    if (--space->users == 0)
        for (unsigned i = 0; i < TASK_MAPS; i++)
            if (space->maps[i].file != NULL)
                mapping_end (&space->maps[i], true);
    space_drop (space);
}

void task_end (struct task *task)
{
    task->is_alive = false;
    space_leave (task);
    for (unsigned i = 0; i < TASK_FILES; i++)
        if (task->files[i] != NULL)
            task_close (task, i);
}

void task_execute (struct task *task)
{
    space_leave (task);
    task->executed++;
    task->space = space_new ();
}

bool task_open (struct task *task, unsigned slot, enum manager_node node)
{
    struct description *description = description_new (FILE_NODE);

    if (task->files[slot] != NULL)
        task_close (task, slot);
    description->tenant = task->tenant;
    description->node = node;
    description->file = manager_open (kernel.manager, node, 0);
    task->files[slot] = description;
    return true;
}

void task_close (struct task *task, unsigned slot)
{
    if (task->files[slot] != NULL)
        description_drop (task->files[slot]);
    task->files[slot] = NULL;
}

void task_pass (struct task *task, unsigned slot, struct task *to, unsigned to_slot)
{
    struct description *description = task->files[slot];

    if (description == NULL)
        return;
    description_hold (description);
    task_close (to, to_slot);
    to->files[to_slot] = description;
}

bool task_map (struct task *task, unsigned slot, uint64_t bytes)
{
    struct description *file = task->files[slot];

    if (file == NULL || file->node != MANAGER_UVM || !file->file->uvm_initialized)
        return false;
    for (unsigned i = 0; i < TASK_MAPS; i++) {
        struct mapping *mapping = &task->space->maps[i];

        if (mapping->file != NULL)
            continue;
        if (resident (file, (int64_t) bytes) != 0)
            return false;
        *mapping = (struct mapping) { description_hold (file), MAPPED_AT + ((uint64_t) i << 32), bytes };
        return true;
    }
    return false;
}

void task_unmap (struct task *task, unsigned place)
{
    if (task->space->maps[place].file != NULL)
        mapping_end (&task->space->maps[place], false);
}

static bool copy_in (void *context, uint64_t address, void *to, size_t size)
{
    (void) context;
    if (address < 4096)
        return false;
    memcpy (to, (const void *) (uintptr_t) address, size);
    return true;
}

static bool copy_out (void *context, uint64_t address, const void *from, size_t size)
{
    (void) context;
    if (address < 4096)
        return false;
    memcpy ((void *) (uintptr_t) address, from, size);
    return true;
}

static struct manager_file *file_of (void *context, int descriptor)
{
    const struct task *task = kernel.task;
    struct description *description = descriptor_find (descriptor);

    (void) context;
    if (description == NULL && task != NULL && descriptor >= 0 && descriptor < (int) TASK_FILES)
        description = task->files[descriptor];
    return description != NULL && description->what == FILE_NODE ? description->file : NULL;
}

static uint32_t process_of (void *context)
{
    (void) context;
    return (uint32_t) kernel.caller;
}

static uint32_t show (void *context, uint32_t process)
{
    (void) context;
    return process;
}

static bool is_privileged (void *context)
{
    (void) context;
    return false;
}

static void write_maps (const struct address_space *space, struct description *to)
{
    to->size = (size_t) sprintf (to->text, "00400000-00401000 r-xp 00000000 00:00 0\n");
    for (unsigned i = 0; i < TASK_MAPS; i++) {
        const struct mapping *mapping = &space->maps[i];
        unsigned long long from = mapping->address, end = from + mapping->bytes;

        if (mapping->file != NULL)
            to->size += (size_t) sprintf (to->text + to->size, "%llx-%llx rw-s %llx 00:05 9 /dev/nvidia-uvm\n", from, end, from);
    }
}

/* /proc/PID/maps: it shows what is mapped when it is read from its beginning, and nothing where no process uses the address space. */
ssize_t kernel_read_maps (struct description *file, void *to, size_t size, size_t at)
{
    if (at == 0)
        write_maps (file->space, file);
    if (file->space->users == 0 || at >= file->size)
        return 0;
    if (size > file->size - at)
        size = file->size - at;
    memcpy (to, file->text + at, size);
    return (ssize_t) size;
}

int kernel_call (struct task *task, struct description *description, uint32_t request, void *argument)
{
    struct manager_caller caller = {
        .read = copy_in, .write = copy_out, .file = file_of, .process = process_of, .show = show, .privileged = is_privileged
    };
    struct task *task_before = kernel.task;
    pid_t caller_before = kernel.caller;
    int result;

    if (task != NULL) {
        kernel.task = task;
        kernel.caller = task->pid;
    }
    result = manager_ioctl (description->file, &caller, request, (uint64_t) (uintptr_t) argument);
    kernel.task = task_before;
    kernel.caller = caller_before;
    return result;
}

bool privsep_is_ending (struct privsep *self, const struct process *process)
{
    (void) self;
    (void) process;
    return false;
}
