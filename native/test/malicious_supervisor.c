/*
 * nvc-supervisor in which an attacker executes code, linked with this in place of guard_create. NVC_TEST_ATTACK says what it does; it writes
 * a line of JSON for each thing that it was able to do.
 */
#include "guard/guard.h"
#include "guard/privsep.h"
#include "supervisor/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MONITOR 3
/* Where the victim has a page, and where a program that is linked statically begins. */
#define PLACE ((off_t) 0x10000000)
#define IMAGE ((off_t) 0x400000)
#define PIDS_MOST 4194304
/* Ids of a process's threads follow its own, with those of processes that were started meanwhile between them. */
#define THREADS 512
#define FORKS 500

struct guard *__real_guard_create (int privsep);
struct guard *__wrap_guard_create (int privsep);

/* No process reads its own standard error. Before it is confined. */
__attribute__ ((constructor)) static void open_report (void)
{
    const char *path = getenv ("NVC_TEST_REPORT");
    int file = path != NULL ? open (path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;

    if (file >= 0)
        (void) dup2 (file, STDERR_FILENO);
}

static void say (const char *what, long value)
{
    char line[160];
    int size = snprintf (line, sizeof (line), "{\"attack\": \"%s\", \"value\": %ld}\n", what, value);

    if (write (STDERR_FILENO, line, (size_t) size) != size)
        _exit (1);
}

static void rest (long milliseconds)
{
    nanosleep (&(struct timespec) { milliseconds / 1000, milliseconds % 1000 * 1000000 }, NULL);
}

static int ask (int socket, struct privsep_request one, int *files, unsigned *count)
{
    struct privsep_reply reply;

    *count = CHANNEL_DESCRIPTORS;
    if (!channel_send (socket, &one, sizeof (one), NULL, 0) || channel_receive (socket, &reply, sizeof (reply), files, count) < 0)
        return -EPIPE;
    return reply.result;
}

static bool write_to (int privsep, int thread)
{
    int files[CHANNEL_DESCRIPTORS];
    unsigned count;
    bool is_done;

    if (ask (privsep, (struct privsep_request) { .operation = PRIVSEP_PROCESS, .thread = thread }, files, &count) != 0)
        return false;
    is_done = pwrite (files[1], "owned", 5, PLACE) == 5;
    for (unsigned i = 0; i < count; i++)
        close (files[i]);
    if (is_done)
        say ("wrote", thread);
    return is_done;
}

/* Every process of the host that the monitor gives memory of, which is written to. For good. */
static void scan (int privsep)
{
    static bool is_known[PIDS_MOST];

    for (;; rest (50))
        for (int pid = 2; pid < PIDS_MOST - THREADS; pid++) {
            if (is_known[pid] || (syscall (SYS_tgkill, pid, pid, 0) != 0 && errno == ESRCH))
                continue;
            for (int thread = pid; thread < pid + THREADS && !is_known[pid]; thread++)
                is_known[pid] = write_to (privsep, thread);
        }
}

static void read_monitor (int privsep)
{
    int files[CHANNEL_DESCRIPTORS];
    unsigned count;
    char magic[4] = "";

    if (ask (privsep, (struct privsep_request) { .operation = PRIVSEP_SPACE }, files, &count) == 0 && count == 2 &&
        pread (files[1], magic, 4, IMAGE) == 4)
        say ("monitor-memory", memcmp (magic, "\177ELF", 4) == 0);
    say ("done", 0);
}

static void fork_many (void)
{
    int made = 0;

    for (long child; made < FORKS && (child = syscall (SYS_clone, SIGCHLD, 0, 0, 0, 0)) >= 0; made++)
        if (child == 0) {
            rest (500);
            _exit (0);
        }
    while (wait4 (-1, NULL, 0, NULL) > 0)
        continue;
    say ("forks", made);
}


struct guard *__wrap_guard_create (int privsep)
{
    const char *attack = getenv ("NVC_TEST_ATTACK");
    int files[CHANNEL_DESCRIPTORS];
    unsigned count;

    if (attack == NULL)
        return __real_guard_create (privsep);
    if (strcmp (attack, "scan") == 0) {
        channel_reply (MONITOR, 0);
        scan (privsep);
    } else if (strcmp (attack, "stay") == 0) {
        channel_reply (MONITOR, 0);
        for (;; rest (500)) {
            int result = ask (privsep, (struct privsep_request) { .operation = PRIVSEP_DEVICE, .number = 1 }, files, &count);

            for (unsigned i = 0; i < count; i++)
                close (files[i]);
            say ("device", result);
        }
    } else if (strcmp (attack, "monitor-memory") == 0)
        read_monitor (privsep);
    else if (strcmp (attack, "shutdown") == 0)
        (void) shutdown (STDERR_FILENO, SHUT_RDWR);
    else if (strcmp (attack, "forks") == 0)
        fork_many ();
    else if (strcmp (attack, "orphan") == 0 && syscall (SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
        for (;; rest (500))
            continue;
    return __real_guard_create (privsep);
}
