/* Processes with channels out of reach are ended, unless they are ending, which no running process can pretend (guard/reach.c, supervisor/proc.c). */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/guard_private.h"
#include "guard/process.h"
#include "guard/reach.h"
#include "privsep_bed.h"
#include "supervisor/proc.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SECOND UINT64_C (1000000000)
#define CHAIN_LOOKS 1000u
#define CROWD 600u

static struct tenant *tenant;
static int device = -1; /* of a file system: its server reads all requests and answers the first */
static char place[] = "/tmp/nvc-reach.XXXXXX", name[64];

static bool mount_it (void)
{
    char options[128];

    device = open ("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0 || mkdtemp (place) == NULL)
        return false;
    snprintf (options, sizeof (options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    snprintf (name, sizeof (name), "%s/x", place);
    return mount ("fuse", place, "fuse", 0, options) == 0;
}

/* Until a process waits for an answer: from then on no signal ends that. */
static bool read_request (void)
{
    static char buffer[1 << 17];
    struct fuse_in_header *request = (struct fuse_in_header *) buffer;
    struct {
        struct fuse_out_header head;
        struct fuse_init_out body;
    } answer = { .head = { .len = sizeof (answer) }, .body = { .major = FUSE_KERNEL_VERSION, .minor = 23, .max_write = 4096 } };

    for (;;) {
        if (read (device, buffer, sizeof (buffer)) < (ssize_t) sizeof (*request))
            return false;
        if (request->opcode != FUSE_INIT)
            return true;
        answer.head.unique = request->unique;
        if (write (device, &answer, sizeof (answer)) != sizeof (answer))
            return false;
    }
}

static void *open_file (void *argument)
{
    (void) open (name, O_RDONLY);
    return argument;
}

static void *wait_for_ever (void *argument)
{
    for (;;)
        pause ();
    return argument;
}

static void *execute (void *argument)
{
    usleep (300000); /* the first thread waits for the file system by then */
    execl ("/bin/sleep", "sleep", "60", (char *) NULL);
    return argument;
}

static void *go_on (void *argument)
{
    pthread_t next;

    pthread_detach (pthread_self ());
    while (pthread_create (&next, NULL, go_on, argument) != 0)
        continue;
    return argument;
}

enum kind { RUNS, STOPPED, FIRST_THREAD_ENDED, CHAIN, WAITS_FOR_FILE_SYSTEM, EXECUTES, CROWD_WAITS };

static pid_t start (enum kind kind)
{
    pthread_t thread;
    pid_t child = fork ();

    if (child != 0)
        return child;
    prctl (PR_SET_PDEATHSIG, SIGKILL);
    close (device);
    if (kind == STOPPED)
        raise (SIGSTOP);
    if ((kind == FIRST_THREAD_ENDED && pthread_create (&thread, NULL, wait_for_ever, NULL) == 0) ||
        (kind == CHAIN && pthread_create (&thread, NULL, go_on, NULL) == 0))
        syscall (SYS_exit, 0);
    if (kind == EXECUTES)
        pthread_create (&thread, NULL, execute, NULL);
    for (unsigned i = 0; kind == CROWD_WAITS && i < CROWD; i++)
        pthread_create (&thread, NULL, open_file, NULL);
    if (kind == WAITS_FOR_FILE_SYSTEM || kind == EXECUTES || kind == CROWD_WAITS)
        open_file (NULL);
    wait_for_ever (NULL);
    _exit (1);
}

static void end (pid_t child)
{
    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
}

/* Whether the thread has SIGKILL pending. */
static bool is_killed (pid_t thread)
{
    char value[64];

    return proc_status (thread, "SigPnd", value, sizeof (value)) && (strtoull (value, NULL, 16) >> (SIGKILL - 1) & 1) != 0;
}

static void feign (void)
{
    pid_t child = start (RUNS);
    bool ever = false;

    usleep (50000);
    tap_ok (!proc_is_ending (child), "a process that runs does not end");
    kill (child, SIGSTOP);
    usleep (50000);
    tap_ok (!proc_is_ending (child), "nor one that is stopped");
    kill (child, SIGKILL);
    waitid (P_PID, (id_t) child, &(siginfo_t) { 0 }, WEXITED | WNOWAIT);
    tap_ok (proc_is_ending (child), "one that has ended does");
    waitpid (child, NULL, 0);

    child = start (FIRST_THREAD_ENDED);
    usleep (50000);
    tap_ok (!proc_is_ending (child), "a process is not ending where its first thread has ended");
    end (child);

    child = start (CHAIN);
    usleep (50000);
    for (unsigned i = 0; i < CHAIN_LOOKS; i++)
        ever |= proc_is_ending (child);
    tap_ok (!ever && kill (child, 0) == 0, "nor where each thread ends as soon as it has made another one");
    end (child);
}

static void feign_by_file_system (void)
{
    pid_t child = start (EXECUTES);

    if (!read_request ())
        return;
    for (unsigned i = 0; i < 300 && !is_killed (child); i++)
        usleep (10000);
    tap_ok (is_killed (child) && !proc_is_ending (child), "the thread that calls execve goes on, for which the others get SIGKILL");
    kill (child, SIGKILL);
    for (unsigned i = 0; i < 300 && !proc_is_ending (child); i++)
        usleep (10000);
    tap_ok (proc_is_ending (child), "until it gets it, too");
}

/* As when an ioctl found no file of its client some time ago. Whether it is waited for. */
static bool is_waited_for (struct process *process, uint64_t ago)
{
    uint64_t now = guard_now ();

    process->unreached_since = now - ago;
    process->unreached_client = 77;
    tenant->unreached = true;
    return reach_check (tenant, now) != 0;
}

static uint64_t counted (void) { return tenant->status.reasons[RM_UNREACHABLE]; }

static void reach (void)
{
    pid_t child = start (RUNS);
    struct process *process = process_of_thread (tenant, child);
    int status = 0;

    tap_ok (process != NULL && is_waited_for (process, SECOND / 10) && counted () == 0, "a file is looked for, 200 ms long");
    tap_ok (process != NULL && !is_waited_for (process, SECOND / 4) && counted () == 1, "then its process is counted");
    waitpid (child, &status, 0);
    tap_ok (WIFSIGNALED (status) && WTERMSIG (status) == SIGKILL, "and ended");
}

static void reach_ending (void)
{
    pid_t child = start (WAITS_FOR_FILE_SYSTEM);
    struct process *process = process_of_thread (tenant, child);
    bool is_there = process != NULL && read_request ();

    tap_ok (is_there && !proc_is_ending (child), "one that waits for a file system");
    kill (child, SIGKILL);
    usleep (100000);
    tap_ok (waitpid (child, NULL, WNOHANG) == 0 && proc_is_ending (child), "and is killed ends as soon as that answers");
    tap_ok (is_there && is_waited_for (process, SECOND / 4) && is_waited_for (process, 50 * SECOND) && counted () == 1,
            "it is waited for, and not counted");
    atomic_store (&bed_is_elsewhere, true);
    tap_ok (is_there && is_waited_for (process, SECOND / 4) && counted () == 1, "nor when it has left its namespaces");
    atomic_store (&bed_is_elsewhere, false);
    tap_ok (is_there && !is_waited_for (process, 61 * SECOND) && counted () == 2, "a minute long");
}

/* More threads than are looked at one by one wait for the name that another process looks up, which no signal ends. */
static void crowd (void)
{
    pid_t child = start (CROWD_WAITS);

    for (unsigned i = 0; i < 300 && proc_status_number (child, "Threads") <= CROWD; i++)
        usleep (10000);
    usleep (100000);
    tap_ok (proc_status_number (child, "Threads") > CROWD && !proc_is_ending (child), "one of many threads runs");
    kill (child, SIGKILL);
    usleep (100000);
    tap_ok (proc_status_number (child, "Threads") > CROWD && proc_is_ending (child), "and ends where it was killed");
}

int main (void)
{
    static struct guard guard;
    struct limits_node node = { .kind = RM_NODE_CONTROL };

    tenant = bare_tenant (&guard);
    guard.closing[1] = -1;
    privsep_begin (&guard.privsep, privsep_bed (&node, 1));
    pthread_mutex_lock (&tenant->lock);
    tenant->next_serial = 1000;
    feign ();
    reach ();
    if (mount_it ()) {
        reach_ending ();
        crowd ();
        feign_by_file_system ();
        close (device);
        umount2 (place, MNT_DETACH);
    }
    rmdir (place);
    return tap_done ();
}
