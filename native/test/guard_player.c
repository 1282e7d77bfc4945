/*
 * Plays the steps of sequences (sequence.h) by real system calls, in processes of containers that are guarded:
 *
 *     guard_player task NUMBER FOLDER   one process of a container, behind its filter
 *     guard_player play FOLDER          reads steps, has their processes make them one after the other, ends all when its input ends
 *
 * What a step needs of a kernel (sequence_kernel.h, sequence_world.h) is the kernel here. Processes, clients and pieces are in a file
 * that all of them map; each process listens on a socket in FOLDER. A call that is to become another one is changed by a second
 * thread all the time; waits are shortened, and what the scheduler does is left out.
 */
#include "sequence.h"

#include "device.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/uvm_ioctl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SHARED __attribute__ ((section ("shared_state"), aligned (4096)))
#define OWN_DESCRIPTOR 64 /* above those of the steps */
#define COORDINATOR TASKS
#define LONGEST_WAIT_MS 5u
#define ANSWER_MS 5000
#define GRANULE 65536u

struct message {
    enum { STEP, FILE_PASSED, DONE } what;
    struct step step;
    unsigned slot;
};

struct kernel kernel SHARED;
struct world world SHARED;
static struct {
    struct description files[TASKS][TASK_FILES];
    uint64_t sizes[CLIENTS][HANDLES];
    atomic_uint_least32_t calls, races, memories; /* made; of them continued ones that were raced; pieces */
} shared SHARED;
extern char __start_shared_state[], __stop_shared_state[];

static const char *folder;
static unsigned self;
static int inbox;
static bool executes;
static struct {
    void *at;
    uint64_t bytes;
    int file;
} maps[TASK_MAPS];

static void fail (const char *what)
{
    perror (what);
    exit (1);
}

static struct sockaddr_un address_of (unsigned number)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    snprintf (address.sun_path, sizeof (address.sun_path), "%s/task%u", folder, number);
    return address;
}

static void open_inbox (unsigned number)
{
    struct sockaddr_un address = address_of (number);
    int made = socket (AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    unlink (address.sun_path);
    if (made < 0 || bind (made, (struct sockaddr *) &address, sizeof (address)) != 0)
        fail (address.sun_path);
    inbox = fcntl (made, F_DUPFD_CLOEXEC, OWN_DESCRIPTOR);
    close (made);
}

static bool say (unsigned to, const struct message *message, int file)
{
    struct sockaddr_un address = address_of (to);
    struct iovec part = { (void *) (uintptr_t) message, sizeof (*message) };
    union {
        char room[CMSG_SPACE (sizeof (int))];
        struct cmsghdr aligned;
    } control = { 0 };
    struct msghdr head = { .msg_name = &address, .msg_namelen = sizeof (address), .msg_iov = &part, .msg_iovlen = 1 };

    if (file >= 0) {
        head.msg_control = control.room;
        head.msg_controllen = sizeof (control.room);
        *CMSG_FIRSTHDR (&head) = (struct cmsghdr) { .cmsg_len = CMSG_LEN (sizeof (file)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
        memcpy (CMSG_DATA (CMSG_FIRSTHDR (&head)), &file, sizeof (file));
    }
    return sendmsg (inbox, &head, MSG_DONTWAIT) == (ssize_t) sizeof (*message);
}

/* The descriptor that came with it; -1: none. */
static bool hear (struct message *message, int *file)
{
    struct iovec part = { message, sizeof (*message) };
    union {
        char room[CMSG_SPACE (sizeof (int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr head = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof (control.room) };

    *file = -1;
    if (recvmsg (inbox, &head, MSG_CMSG_CLOEXEC) != (ssize_t) sizeof (*message))
        return false;
    if (CMSG_FIRSTHDR (&head) != NULL)
        memcpy (file, CMSG_DATA (CMSG_FIRSTHDR (&head)), sizeof (*file));
    return true;
}

/* --- what steps ask of a kernel and a world ------------------------------------------------------------------------------- */

/* The first simulated GPU; PLAYED_GPU, 32 hexadecimal digits: another one. */
const uint8_t *kernel_uuid (void)
{
    static uint8_t uuid[16] = { 0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55 };
    const char *digits = getenv ("PLAYED_GPU");

    for (unsigned i = 0; digits != NULL && i < sizeof (uuid) && sscanf (digits + 2 * (size_t) i, "%2hhx", &uuid[i]) == 1; i++)
        continue;
    return uuid;
}

static uint64_t *size_of (uint32_t client, uint32_t handle)
{
    for (unsigned i = 0; i < CLIENTS; i++)
        if (world.clients[i].handle == client && client != 0 && handle - FIRST_HANDLE < HANDLES)
            return &shared.sizes[i][handle - FIRST_HANDLE];
    return NULL;
}

uint64_t check_piece (uint32_t client, uint32_t handle)
{
    const uint64_t *size = size_of (client, handle);

    return size != NULL && *size != 0 ? *size : handle >= FIRST_HANDLE + HANDLES ? UINT64_C (4) << 20 : GRANULE;
}

bool task_open (struct task *task, unsigned slot, enum manager_node node)
{
    const char *name = node == MANAGER_CONTROL ? "/dev/nvidiactl" : node == MANAGER_UVM ? "/dev/nvidia-uvm" : "/dev/nvidia0";
    int file = open (name, O_RDWR);

    if (file < 0)
        fail (name);
    if (file != (int) slot) {
        dup2 (file, (int) slot);
        close (file);
    }
    task->files[slot] = &shared.files[self][slot];
    *task->files[slot] = (struct description) { .node = node };
    return true;
}

void task_close (struct task *task, unsigned slot)
{
    close ((int) slot);
    task->files[slot] = NULL;
}

void task_pass (struct task *task, unsigned slot, struct task *to, unsigned to_slot)
{
    struct message message = { .what = FILE_PASSED, .slot = to_slot };
    unsigned number = (unsigned) (to - kernel.tasks);

    if (task->files[slot] == NULL || !to->is_alive || !say (number, &message, (int) slot))
        return;
    shared.files[number][to_slot] = *task->files[slot];
    to->files[to_slot] = &shared.files[number][to_slot];
}

static void change_resident (int file, int64_t bytes)
{
    struct sim_resident change = { .bytes = bytes };

    memcpy (change.uuid, kernel_uuid (), 16);
    ioctl (file, SIM_RESIDENT, &change);
}

int world_mmap (struct task *task, unsigned slot, uint64_t bytes)
{
    for (uint64_t i = 0; i < TASK_MAPS; i++) {
        uint64_t at = MAPPED_AT + (i << 32);

        if (maps[i].at != NULL || task->files[slot] == NULL)
            continue;
        if (mmap ((void *) (uintptr_t) at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int) slot, (off_t) at) == MAP_FAILED)
            return -errno;
        maps[i].at = (void *) (uintptr_t) at;
        maps[i].bytes = bytes;
        maps[i].file = fcntl ((int) slot, F_DUPFD_CLOEXEC, OWN_DESCRIPTOR);
        change_resident (maps[i].file, (int64_t) bytes);
        return 0;
    }
    return -ENOMEM;
}

void task_unmap (struct task *task, unsigned place)
{
    (void) task;
    if (maps[place].at == NULL)
        return;
    change_resident (maps[place].file, -(int64_t) maps[place].bytes);
    munmap (maps[place].at, maps[place].bytes);
    close (maps[place].file);
    maps[place].at = NULL;
}

/* With flag 2 the ranges stay. */
static void leave_space (const struct task *task)
{
    bool is_shared = false;

    for (unsigned i = 0; i < TASK_FILES; i++)
        is_shared |= task->files[i] != NULL && (task->files[i]->at & 2) != 0;
    for (unsigned i = 0; i < TASK_MAPS; i++)
        if (maps[i].at != NULL && !is_shared)
            change_resident (maps[i].file, -(int64_t) maps[i].bytes);
}

void task_end (struct task *task)
{
    leave_space (task);
    task->is_alive = false;
}

void task_execute (struct task *task)
{
    leave_space (task);
    executes = true;
}

static void serve (void);

struct task *task_start (unsigned tenant, struct task *parent, bool shares_memory)
{
    unsigned number = kernel.task_count;
    int ready[2];
    char byte;
    pid_t child;

    (void) shares_memory;
    if (number >= TASKS || pipe2 (ready, O_CLOEXEC) != 0)
        return NULL;
    kernel.tasks[number] = (struct task) { .is_alive = true, .tenant = tenant };
    for (unsigned i = 0; i < TASK_FILES; i++)
        if (parent->files[i] != NULL) {
            shared.files[number][i] = *parent->files[i];
            kernel.tasks[number].files[i] = &shared.files[number][i];
        }
    child = fork ();
    if (child == 0) {
        self = number;
        close (inbox);
        open_inbox (self);
        memset (maps, 0, sizeof (maps));
        kernel.tasks[self].pid = getpid ();
        close (ready[0]);
        close (ready[1]);
        serve ();
    }
    close (ready[1]);
    (void) !read (ready[0], &byte, 1);
    close (ready[0]);
    if (child > 0)
        kernel.task_count++;
    return child > 0 ? &kernel.tasks[number] : NULL;
}

struct race {
    uint8_t *at, calls[2][HEAD_SIZE];
    atomic_bool is_over;
};

static void *change (void *argument)
{
    struct race *race = argument;

    for (unsigned i = 1; !atomic_load (&race->is_over); i++)
        memcpy (race->at, race->calls[i % 2], HEAD_SIZE);
    return NULL;
}

static int make (unsigned slot, uint32_t request, void *argument)
{
    atomic_fetch_add (&shared.calls, 1);
    return ioctl ((int) slot, request, argument) < 0 ? -errno : 0;
}

static int make_raced (struct task *task, unsigned slot, uint32_t request, void *argument, const struct action *other)
{
    static uint8_t params[ROOM_SIZE] __attribute__ ((aligned (16)));
    struct race race = { .at = argument };
    pthread_t thread;
    int result;

    memset (params, 0, sizeof (params));
    memcpy (race.calls[0], argument, HEAD_SIZE);
    if (action_fill (task, other, race.calls[1], params) != request || pthread_create (&thread, NULL, change, &race) != 0)
        return make (slot, request, argument);
    atomic_fetch_add (&shared.races, 1);
    result = make (slot, request, argument);
    atomic_store (&race.is_over, true);
    pthread_join (thread, NULL);
    return result;
}

int world_ioctl (struct task *task, unsigned slot, uint32_t request, void *argument, const struct action *other, unsigned delay)
{
    const NVOS64_PARAMETERS *alloc = argument;
    uint64_t bytes = 0, *size = NULL;
    int result;

    if (task->files[slot] == NULL)
        return -EBADF;
    if (request == UVM_INITIALIZE)
        task->files[slot]->at = ((const UVM_INITIALIZE_PARAMS *) argument)->flags;
    if (request == NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (*alloc)) && alloc->hClass == NV01_MEMORY_LOCAL_USER) {
        bytes = ((const NV_MEMORY_ALLOCATION_PARAMS *) (uintptr_t) alloc->pAllocParms)->size;
        size = size_of (alloc->hRoot, alloc->hObjectNew);
    }
    result = other != NULL && delay != 0 ? make_raced (task, slot, request, argument, other) : make (slot, request, argument);
    if (result == 0 && bytes != 0 && alloc->status == 0) {
        atomic_fetch_add (&shared.memories, 1);
        if (size != NULL)
            *size = bytes;
    }
    return result;
}

/* The scheduler's part, and the time's. */
void world_advance (uint64_t nanoseconds) { (void) nanoseconds; }
void world_after_step (void) {}
void world_plan (unsigned tenant) { (void) tenant; }
void world_freeze (unsigned tenant, bool is_on) { (void) tenant, (void) is_on; }

/* --- processes -------------------------------------------------------------------------------------------------------------- */

static void again (void)
{
    char number[16];

    snprintf (number, sizeof (number), "%u", self);
    execl ("/proc/self/exe", "guard_player", "again", number, folder, NULL);
    fail ("execl");
}

static void serve (void)
{
    static const struct message done = { .what = DONE };
    struct message message;
    int file;

    while (hear (&message, &file)) {
        if (message.what == FILE_PASSED) {
            dup2 (file, (int) message.slot);
            close (file);
            continue;
        }
        step_run (&message.step);
        if (executes)
            again ();
        say (COORDINATOR, &done, -1);
        if (!kernel.tasks[self].is_alive)
            break;
    }
    _exit (0);
}

/* The state is at the same place in all processes. */
static void share_state (void)
{
    size_t size = (size_t) (__stop_shared_state - __start_shared_state);
    char path[4096];
    int file;

    snprintf (path, sizeof (path), "%s/state", folder);
    file = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate (file, (off_t) size) != 0 ||
        mmap (__start_shared_state, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        fail (path);
    close (file);
}

static void end_all (void)
{
    for (unsigned i = 0; i < kernel.task_count; i++)
        if (kernel.tasks[i].pid > 0)
            kill (kernel.tasks[i].pid, SIGKILL);
}

/* Of a step: made, or its process is gone. */
static void have_made (const struct step *step)
{
    unsigned number = step->action.words[P] % kernel.task_count;
    struct message message = { .what = STEP, .step = *step };
    struct pollfd waited = { .fd = inbox, .events = POLLIN };
    int file;

    if (!kernel.tasks[number].is_alive || kernel.tasks[number].tenant == NEIGHBOUR)
        return;
    if (!say (number, &message, -1)) {
        kernel.tasks[number].is_alive = false; /* ended by its guard */
        return;
    }
    for (unsigned waits = 0; poll (&waited, 1, 100) == 0; waits++) {
        if (kill (kernel.tasks[number].pid, 0) != 0) {
            kernel.tasks[number].is_alive = false;
            return;
        }
        if (waits * 100 > ANSWER_MS) {
            fprintf (stderr, "no answer to: ");
            step_print (step, stderr);
            exit (1);
        }
    }
    hear (&message, &file);
}

static int play (void)
{
    char line[256];

    open_inbox (COORDINATOR);
    for (unsigned i = 0; i < TASKS; i++)
        for (unsigned waits = 0; i < kernel.task_count && i != NEIGHBOUR && kernel.tasks[i].pid == 0; waits++) {
            if (waits > ANSWER_MS)
                fail ("no process");
            usleep (1000);
        }
    while (fgets (line, sizeof (line), stdin) != NULL && line[0] != '\n') {
        struct step step;

        if (line[0] == '#')
            continue;
        if (!step_parse (line, &step))
            fail (line);
        if (step.action.kind == WAIT)
            usleep (1000 * (action_waits[step.action.words[0] % 5] < LONGEST_WAIT_MS ? action_waits[step.action.words[0] % 5]
                                                                                      : LONGEST_WAIT_MS));
        else if (step.action.kind != FREEZE)
            have_made (&step);
    }
    printf ("%u %u %u\n", (unsigned) shared.calls, (unsigned) shared.races, (unsigned) shared.memories);
    fflush (stdout);
    (void) !fgets (line, sizeof (line), stdin);
    end_all ();
    return 0;
}

int main (int argc, char **argv)
{
    bool is_again = argc == 4 && strcmp (argv[1], "again") == 0;
    int node;

    setvbuf (stdin, NULL, _IONBF, 0);
    signal (SIGCHLD, SIG_IGN);
    folder = argv[argc - 1];
    if (argc < 3)
        return 2;
    share_state ();
    if (strcmp (argv[1], "play") == 0) {
        /* As world_begin: a process of each tenant, and a second one of the first. */
        kernel.task_count = 4;
        return play ();
    }
    self = (unsigned) atoi (argv[2]);
    open_inbox (self);
    if (is_again)
        say (COORDINATOR, &(struct message) { .what = DONE }, -1);
    else {
        for (int i = 0; i < (int) TASK_FILES; i++)
            close (i);
        open ("/dev/null", O_RDWR);
        /* The driver gives a device only to a process that has its GPU's node open (nv_is_gpu_accessible of the open kernel modules). */
        node = open ("/dev/nvidia0", O_RDWR);
        if (node < 0 || fcntl (node, F_DUPFD, OWN_DESCRIPTOR) < 0)
            fail ("/dev/nvidia0");
        close (node);
        kernel.tasks[self] = (struct task) { .is_alive = true, .tenant = self == 1 ? 1 : 0 };
        kernel.tasks[self].pid = getpid ();
    }
    serve ();
}
