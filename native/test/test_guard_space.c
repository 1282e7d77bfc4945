/* Address spaces that the process which mapped managed memory there has left (guard/space.c). */
#include "guard/guard_private.h"
#include "guard/managed.h"
#include "guard/process.h"
#include "guard/space.h"
#include "guard/tenant.h"
#include "privsep_bed.h"
#include "supervisor/proc.h"
#include "tap.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEEN 3000u
#define ANNOUNCED 400u

static struct guard guard;
static struct tenant *tenant;
static uint8_t stacks[2][65536] __attribute__ ((aligned (16)));
static int go[2], back[2]; /* what the child waits for, and what it says */

enum deed { ENDS, EXECUTES, FAILS, EXECUTES_BY_THREAD };

static int stay (void *argument)
{
    (void) argument;
    alarm (60);
    for (;;)
        pause ();
    return 0;
}

static int execute (void *argument)
{
    (void) argument;
    execl ("/proc/self/exe", "test_guard_space", "stay", (char *) NULL);
    _exit (1);
}

static pid_t start (int (*function) (void *), unsigned number, int flags)
{
    return clone (function, stacks[number] + sizeof (stacks[number]), flags, NULL);
}

static void child (enum deed deed, bool is_shared)
{
    char byte;

    prctl (PR_SET_PDEATHSIG, SIGKILL);
    setpgid (0, 0);
    if ((is_shared && start (stay, 0, CLONE_VM | SIGCHLD) < 0) || read (go[0], &byte, 1) != 1 || deed == ENDS)
        _exit (0);
    if (deed == EXECUTES)
        execute (NULL);
    if (deed == FAILS && (execl ("/nowhere", "nothing", (char *) NULL) == 0 || write (back[1], "b", 1) != 1))
        _exit (1);
    if (deed == EXECUTES_BY_THREAD)
        start (execute, 1, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD);
    stay (NULL);
}

/* A process that has mapped SEEN bytes and may map ANNOUNCED more; then it is let go on. NULL: it could not be held. */
static struct process *begin (enum deed deed, bool is_shared)
{
    static uint64_t serial = TENANT_PROCESSES;
    struct process *process = &tenant->processes[0];
    pid_t pid;

    if (pipe (go) != 0 || pipe (back) != 0 || (pid = fork ()) < 0)
        return NULL;
    if (pid == 0)
        child (deed, is_shared);
    setpgid (pid, pid);
    *process = (struct process) { .serial = serial += TENANT_PROCESSES,
                                  .pid = pid,
                                  .start_time = proc_start_time (pid),
                                  .pidfd = (int) syscall (SYS_pidfd_open, pid, 0),
                                  .memory = fcntl (0, F_DUPFD_CLOEXEC, 0) };
    if (!space_hold (tenant, process, pid))
        return NULL;
    managed_charge (tenant, &process->managed, SEEN, pid);
    space_announced (process, ANNOUNCED);
    return write (go[1], "g", 1) == 1 ? process : NULL;
}

static bool is_true (bool (*question) (const struct process *process), const struct process *process)
{
    for (unsigned i = 0; i < 5000; i++, usleep (1000))
        if (question (process))
            return true;
    return false;
}

static bool has_left (const struct process *process) { return !space_is_current (process); }

static bool has_ended (const struct process *process) { return waitpid (process->pid, NULL, WNOHANG) == process->pid; }

static bool is_over (const struct process *process)
{
    (void) process;
    space_check (tenant);
    return tenant->orphan_space_count == 0;
}

static void end (struct process *process)
{
    kill (-process->pid, SIGKILL);
    kill (process->pid, SIGKILL);
    waitpid (process->pid, NULL, 0);
    managed_forget (tenant, process);
    process_forget (tenant, process);
    close (go[0]);
    close (go[1]);
    close (back[0]);
    close (back[1]);
}

static void claim (bool good, const char *how, const char *what)
{
    char line[160];

    snprintf (line, sizeof (line), "%s: %s", how, what);
    tap_ok (good, line);
}

static void left (enum deed deed, bool is_shared, const char *how)
{
    struct process *process = begin (deed, is_shared);
    bool is_left;

    if (process == NULL) {
        claim (false, how, "held");
        return;
    }
    is_left = is_true (deed == ENDS ? has_ended : has_left, process);
    space_orphan (tenant, process);
    if (is_shared)
        claim (is_left && tenant->orphan_space_count == 1 && process->managed == 0, how, "left to another one");
    else /* the threads of a process that executes something end before it has another address space */
        claim (is_left && is_true (is_over, process), how, "left without users");
    claim (tenant->managed[0] == (is_shared ? SEEN + ANNOUNCED : process->managed), how, "charged once");
    end (process);
    claim (is_true (is_over, process) && tenant->managed[0] == 0, how, "until no process uses it");
}

static void failed (void)
{
    struct process *process = begin (FAILS, true);
    char byte;

    tap_ok (process != NULL && read (back[0], &byte, 1) == 1, "held");
    if (process == NULL)
        return;
    tap_ok (space_is_current (process) && space_hold (tenant, process, process->pid) && tenant->orphan_space_count == 0,
            "an execve that fails leaves nothing");
    end (process);
    tap_ok (tenant->managed[0] == 0, "and is charged nothing more");
}

/* Between its end and the kernel's word of it there is nothing to be read: it has not given back what it had mapped. */
static void ended_and_not_told (void)
{
    struct process *process = begin (ENDS, true);
    siginfo_t told;

    tap_ok (process != NULL && waitid (P_PID, (id_t) process->pid, &told, WEXITED | WNOWAIT) == 0, "a process ended");
    if (process == NULL)
        return;
    managed_now (tenant);
    tap_ok (process->managed == SEEN, "and is not taken for one that has nothing mapped");
    end (process);
}

static unsigned descriptors (void)
{
    DIR *directory = opendir ("/proc/self/fd");
    unsigned count = 0;

    while (directory != NULL && readdir (directory) != NULL)
        count++;
    closedir (directory);
    return count;
}

static void many (void)
{
    struct process *process = begin (EXECUTES, true);
    struct orphan_space kept[TENANT_SPACES];

    tap_ok (process != NULL && is_true (has_left, process), "left");
    if (process == NULL)
        return;
    memcpy (kept, tenant->orphan_spaces, sizeof (kept));
    tenant->orphan_space_count = TENANT_SPACES;
    space_orphan (tenant, process);
    tap_ok (tenant->orphan_overflow.bytes == SEEN + ANNOUNCED && tenant->managed[0] == SEEN + ANNOUNCED,
            "what there is no room for is charged for good");
    memcpy (tenant->orphan_spaces, kept, sizeof (kept));
    tenant->orphan_space_count = 0;
    managed_charge (tenant, &tenant->orphan_overflow.bytes, 0, 0);
    end (process);
}

static void announced (void)
{
    struct process process = { .serial = TENANT_PROCESSES };

    space_announced (&process, 1);
    space_announced (&process, UINT64_MAX);
    space_announced (&process, UINT64_MAX);
    tap_ok (process.space.announced == UINT64_C (1) << 50, "no sum of what is announced begins again at nothing");
    process.managed = 5;
    space_seen (&process, 12, process.space.announced_at + 1);
    tap_ok (process.space.announced == (UINT64_C (1) << 50) - 7, "what is seen for the first time was announced");
    space_seen (&process, 5, process.space.announced_at + 1);
    tap_ok (process.space.announced == (UINT64_C (1) << 50) - 7, "a mapping can be made a while after it was let through");
    space_seen (&process, 5, process.space.announced_at + 2000000000u);
    tap_ok (process.space.announced == 0, "but not a second");
}

/* The monitor's thread closes what it gave before it answers the next request. */
static unsigned settled (void)
{
    (void) privsep_device (&guard.privsep, -1);
    return descriptors ();
}

int main (int argc, char **argv)
{
    unsigned before;

    (void) argv;
    if (argc > 1)
        stay (NULL);
    privsep_begin (&guard.privsep, privsep_bed (NULL, 0));
    space_begin (&guard);
    if (!guard.sees_exec || geteuid () != 0) {
        puts ("1..0 # SKIP the kernel does not tell of an execve, or this is not root");
        return 0;
    }
    guard.event_descriptor = -1;
    pthread_mutex_init (&guard.lock, NULL);
    tenant = calloc (1, sizeof (*tenant));
    tenant->guard = &guard;
    tenant->limits.gpu_count = 1;
    tenant->epoll = epoll_create1 (EPOLL_CLOEXEC);
    pthread_mutex_init (&tenant->lock, NULL);
    pthread_mutex_lock (&tenant->lock);
    before = settled ();
    left (ENDS, false, "ended");
    left (ENDS, true, "ended, with a child that shares it");
    left (EXECUTES, false, "execve");
    left (EXECUTES, true, "execve, with a child that shares it");
    left (EXECUTES_BY_THREAD, false, "execve by a thread");
    left (EXECUTES_BY_THREAD, true, "execve by a thread, with a child that shares it");
    failed ();
    ended_and_not_told ();
    many ();
    announced ();
    tap_ok (settled () == before, "what is forgotten is closed");
    return tap_done ();
}
