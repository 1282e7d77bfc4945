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
#include "player.h"

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
#define COORDINATOR TASKS
#define LONGEST_WAIT_MS 5u
#define ANSWER_MS 10000 /* a hostile tenant's call can wait for 7 s itself (fair.c) */
#define GRANULE 65536u
#define STATUSES 256u

struct kernel kernel SHARED;
struct world world SHARED;
static struct {
    struct description files[TASKS][TASK_FILES];
    uint64_t sizes[CLIENTS][HANDLES];
    atomic_uint_least32_t calls, races, memories; /* made; of them continued ones that were raced; pieces */
    atomic_uint_least32_t refused[STATUSES];      /* allocations of memory, by the status; the last: all others */
    uint32_t instance;
} shared SHARED;
extern char __start_shared_state[], __stop_shared_state[];

static const char *folder;
static unsigned self;
static bool executes;
/* --- what steps ask of a kernel and a world ------------------------------------------------------------------------------- */

uint32_t kernel_instance (void) { return shared.instance; }

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
    const char *name = player_node (node);
    int file = open (name, O_RDWR);

    if (file < 0)
        player_fail (name);
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

    if (task->files[slot] == NULL || !to->is_alive || !player_say (number, &message, (int) slot))
        return;
    shared.files[number][to_slot] = *task->files[slot];
    to->files[to_slot] = &shared.files[number][to_slot];
}

void task_end (struct task *task)
{
    player_leave_space (task);
    task->is_alive = false;
}

void task_execute (struct task *task)
{
    player_leave_space (task);
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
        player_open_inbox (self);
        player_forget_maps ();
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
    if (request == NV_REQUEST (NV_ESC_RM_ALLOC, sizeof (*alloc)) && alloc->hClass == NV01_MEMORY_LOCAL_USER) {
        bytes = ((const NV_MEMORY_ALLOCATION_PARAMS *) (uintptr_t) alloc->pAllocParms)->size;
        size = size_of (alloc->hRoot, alloc->hObjectNew);
    }
    result = other != NULL && delay != 0 ? make_raced (task, slot, request, argument, other) : make (slot, request, argument);
    if (result == 0 && request == UVM_INITIALIZE && ((const UVM_INITIALIZE_PARAMS *) argument)->rmStatus == 0) {
        task->files[slot]->at = ((const UVM_INITIALIZE_PARAMS *) argument)->flags;
        player_begin_uvm ((int) slot);
    }
    if (result != 0 || bytes == 0)
        return result;
    if (alloc->status != 0)
        atomic_fetch_add (&shared.refused[alloc->status < STATUSES ? alloc->status : STATUSES - 1], 1);
    else
        atomic_fetch_add (&shared.memories, 1);
    if (alloc->status == 0 && size != NULL)
        *size = bytes;
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
    player_fail ("execl");
}

static void serve (void)
{
    static const struct message done = { .what = DONE };
    struct message message;
    int file;

    while (player_hear (&message, &file)) {
        if (message.what == FILE_PASSED) {
            dup2 (file, (int) message.slot);
            close (file);
            continue;
        }
        step_run (&message.step);
        if (executes)
            again ();
        player_say (COORDINATOR, &done, -1);
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
        player_fail (path);
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
    struct pollfd waited = { .fd = player_inbox (), .events = POLLIN };
    int file;

    if (!kernel.tasks[number].is_alive || kernel.tasks[number].tenant == NEIGHBOUR)
        return;
    if (!player_say (number, &message, -1)) {
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
    player_hear (&message, &file);
}

static int play (void)
{
    char line[256];

    player_open_inbox (COORDINATOR);
    shared.instance = player_find_instance ();
    for (unsigned i = 0; i < TASKS; i++)
        for (unsigned waits = 0; i < kernel.task_count && i != NEIGHBOUR && kernel.tasks[i].pid == 0; waits++) {
            if (waits > ANSWER_MS)
                player_fail ("no process");
            usleep (1000);
        }
    while (fgets (line, sizeof (line), stdin) != NULL && line[0] != '\n') {
        struct step step;

        if (line[0] == '#')
            continue;
        if (!step_parse (line, &step))
            player_fail (line);
        if (step.action.kind == WAIT)
            usleep (1000 * (action_waits[step.action.words[0] % 5] < LONGEST_WAIT_MS ? action_waits[step.action.words[0] % 5]
                                                                                     : LONGEST_WAIT_MS));
        else if (step.action.kind != FREEZE)
            have_made (&step);
    }
    printf ("%u %u %u", (unsigned) shared.calls, (unsigned) shared.races, (unsigned) shared.memories);
    for (unsigned i = 0; i < STATUSES; i++)
        if (shared.refused[i] != 0)
            printf (" %#x:%u", i, (unsigned) shared.refused[i]);
    printf ("\n");
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
    player_talk_in (folder);
    share_state ();
    if (strcmp (argv[1], "play") == 0) {
        /* As world_begin: a process of each tenant, and a second one of the first. */
        kernel.task_count = 4;
        return play ();
    }
    self = (unsigned) atoi (argv[2]);
    player_open_inbox (self);
    if (is_again)
        player_say (COORDINATOR, &(struct message) { .what = DONE }, -1);
    else {
        for (int i = 0; i < (int) TASK_FILES; i++)
            close (i);
        open ("/dev/null", O_RDWR);
        /* The driver gives a device only to a process that has its GPU's node open (nv_is_gpu_accessible of the open kernel modules). */
        node = open (player_node (MANAGER_GPU), O_RDWR);
        if (node < 0 || fcntl (node, F_DUPFD, OWN_DESCRIPTOR) < 0)
            player_fail (player_node (MANAGER_GPU));
        close (node);
        kernel.tasks[self] = (struct task) { .is_alive = true, .tenant = self == 1 ? 1 : 0 };
        kernel.tasks[self].pid = getpid ();
    }
    serve ();
}
