/*
 * A supervisor in which an attacker executes code: nvc-supervisor, linked with this in place of guard_create. NVC_TEST_TARGETS: pids of processes that are not the container's,
 * and of one that is.
 */
#include "guard/guard.h"
#include "guard/privsep.h"
#include "hostile.h"
#include "supervisor/channel.h"

#include <poll.h>
#include <string.h>

struct guard *__real_guard_create (int privsep);
struct guard *__wrap_guard_create (int privsep);

/* 0, or the errno that the monitor answers with; EPROTO: it says nothing within a second. */
static void request (int socket, const char *name, int target, struct privsep_request one, size_t size)
{
    struct pollfd waited = { .fd = socket, .events = POLLIN };
    struct privsep_reply reply;
    int files[CHANNEL_DESCRIPTORS];
    unsigned count = CHANNEL_DESCRIPTORS;

    errno = EPROTO;
    if (!channel_send (socket, &one, size, NULL, 0) || poll (&waited, 1, 1000) != 1 ||
        channel_receive (socket, &reply, sizeof (reply), files, &count) < (ssize_t) sizeof (reply.result)) {
        say (name, target, -1);
        return;
    }
    for (unsigned i = 0; i < count; i++)
        close (files[i]);
    errno = -reply.result;
    say (name, target, reply.result);
}

static void attack_monitor (int socket, pid_t target, uint64_t start_time)
{
    static const struct {
        const char *name;
        enum privsep_operation operation;
    } about[] = { { "privsep-file", PRIVSEP_FILE },   { "privsep-files", PRIVSEP_FILES },     { "privsep-maps", PRIVSEP_MAPS },
                  { "privsep-space", PRIVSEP_SPACE }, { "privsep-syscall", PRIVSEP_SYSCALL }, { "privsep-ending", PRIVSEP_ENDING },
                  { "privsep-kill", PRIVSEP_KILL } };

    request (socket, "privsep-process", target, (struct privsep_request) { .operation = PRIVSEP_PROCESS, .thread = target },
             sizeof (struct privsep_request));
    for (unsigned i = 0; i < sizeof (about) / sizeof (about[0]); i++)
        request (
            socket, about[i].name, target,
            (struct privsep_request) { .operation = about[i].operation, .pid = target, .start_time = start_time, .thread = target },
            sizeof (struct privsep_request));
}

static void fill (size_t mebibytes)
{
    const size_t size = mebibytes << 20;
    char *memory = mmap (NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory != MAP_FAILED)
        memset (memory, 1, size);
    say ("fill", (int) mebibytes, memory != MAP_FAILED ? 0 : -1);
}

/* All the memory that it can have: 30 MiB in each of its processes, and then what is left of its own 192. */
static void attack_memory (void)
{
    int gate[2], done[2];
    char byte = 0;

    if (pipe2 (gate, 0) != 0)
        return;
    for (unsigned i = 0; i < 36; i++) {
        if (pipe2 (done, 0) != 0)
            return;
        if (syscall (SYS_clone, SIGCHLD, NULL, NULL, NULL, 0) == 0) {
            close (gate[1]);
            fill (30);
            close (done[0]);
            close (done[1]);
            syscall (SYS_exit_group, read (gate[0], &byte, 1) != 0);
        }
        close (done[1]);
        while (read (done[0], &byte, 1) < 0) /* until it has filled them, or was ended */
            continue;
        close (done[0]);
    }
    fill (180);
}

struct guard *__wrap_guard_create (int privsep)
{
    const char *targets = getenv ("NVC_TEST_TARGETS");
    unsigned long long start_time;
    int pid, size = 0;

    if (getenv ("NVC_TEST_FILL") != NULL)
        attack_memory ();
    attack_host ();
    attack_amounts ();
    for (int number = 1; number < 34; number += 16)
        request (privsep, "privsep-device", number, (struct privsep_request) { .operation = PRIVSEP_DEVICE, .number = number },
                 sizeof (struct privsep_request));
    request (privsep, "privsep-device", -1, (struct privsep_request) { .operation = PRIVSEP_DEVICE, .number = -1 },
             sizeof (struct privsep_request));
    request (privsep, "privsep-unknown", 0, (struct privsep_request) { .operation = 77, .pid = 1, .start_time = 1 },
             sizeof (struct privsep_request));
    /* The last of them is the container's, and may be asked about. */
    for (; targets != NULL && sscanf (targets, "%d:%llu%n", &pid, &start_time, &size) == 2;
         targets += size + (targets[size] == ',')) {
        attack_monitor (privsep, pid, start_time);
        if (targets[size] == ',')
            attack_process (pid);
    }
    say ("done", 0, 0);
    return __real_guard_create (privsep);
}
