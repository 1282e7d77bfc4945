/* How a monitor starts its tenant's supervisor, and ends it. */
#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_USED ((uintptr_t) 1 << 20)
/* That a supervisor may take to end: it starts its channels, and the driver may be in a call. */
#define STOP_MS 1000
/* For a container's first call, of which the rest of a start is no part: the two, and the agent, would share processors. */
#define FIRST_CALL_MS 5
/* Milliseconds, or processes that the supervisor made, until those that are left are not waited for any more. */
#define CHILDREN_MOST 4000u
#define NICE_MOST 35u /* RLIMIT_NICE of nice -15 (getrlimit(2)) */
/* Bytes of the stack of each thread of a supervisor, which needs some 40 KiB (maps.c). */
#define STACK_MOST (1u << 20)

/* A socket whose other end is the supervisor's, under this number in it. */
struct end {
    int own, other, number;
};

static bool make_end (struct end *end)
{
    int pair[2];

    if (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    end->own = pair[0];
    end->other = fcntl (pair[1], F_DUPFD_CLOEXEC, 10); /* none of the numbers is one of theirs */
    close (pair[1]);
    if (end->other >= 0)
        return true;
    close (end->own);
    return false;
}

/* In the child. */
static void execute (const struct monitor *self, const struct end *requests, const struct end *privsep)
{
    struct rlimit nice = { NICE_MOST, NICE_MOST }, stack = { STACK_MOST, STACK_MOST };
    int nothing = open ("/dev/null", O_RDWR | O_CLOEXEC);
    char first[16], second[16];

    /* What the monitor writes to is the agent's, and others'. */
    for (int file = 0; file < 3; file++)
        if (nothing < 0 || dup2 (nothing, file) < 0)
            _exit (1);
    if (dup2 (requests->other, requests->number) < 0 || dup2 (privsep->other, privsep->number) < 0)
        _exit (1);
    (void) setrlimit (RLIMIT_NICE, &nice);
    (void) setrlimit (RLIMIT_STACK, &stack); /* of each thread */
    snprintf (first, sizeof (first), "%d", requests->number);
    snprintf (second, sizeof (second), "%d", privsep->number);
    execl (self->program, "nvc-supervisor", first, second, (char *) NULL);
    _exit (127);
}

/* Whether the supervisor that waits for its tenant is there. One that was killed is another one's place. */
static bool is_prepared (struct monitor *self)
{
    struct pollfd ended = { .fd = self->pidfd, .events = POLLIN };
    int *files[] = { &self->supervisor, &self->privsep, &self->pidfd };

    if (self->supervisor < 0)
        return false;
    if (poll (&ended, 1, 0) != 1)
        return true;
    (void) waitpid (self->pid, NULL, WNOHANG);
    for (unsigned i = 0; i < sizeof (files) / sizeof (files[0]); i++) {
        close (*files[i]);
        *files[i] = -1;
    }
    return false;
}

bool monitor_prepare (struct monitor *self)
{
    struct end requests = { .number = 3 }, privsep = { .number = 4 };

    if (is_prepared (self))
        return true;
    if (self->counters < 0)
        self->counters = counters_create ();
    if (self->counters < 0) {
        errno = -self->counters;
        return false;
    }
    if (!make_end (&requests))
        return false;
    if (!make_end (&privsep)) {
        close (requests.own);
        close (requests.other);
        return false;
    }
    self->pid = fork ();
    if (self->pid == 0)
        execute (self, &requests, &privsep);
    close (requests.other);
    close (privsep.other);
    if (self->pid > 0) {
        self->supervisor = requests.own;
        self->privsep = privsep.own;
        self->pidfd = (int) syscall (SYS_pidfd_open, self->pid, 0);
        return true;
    }
    close (requests.own);
    close (privsep.own);
    return false;
}

static int listen_at (const char *directory)
{
    struct sockaddr_un address;
    int place = channel_address (directory, "monitor", &address), made = socket (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    mode_t before = umask (0177);
    bool is_good = place >= 0 && (unlinkat (place, "monitor", 0) == 0 || errno == ENOENT) && made >= 0 &&
                   bind (made, (struct sockaddr *) &address, sizeof (address)) == 0 && listen (made, 64) == 0;

    umask (before);
    if (place >= 0)
        close (place);
    if (is_good)
        return made;
    if (made >= 0)
        close (made);
    return -1;
}

void monitor_write_cgroup (int file, const struct container *of)
{
    int named = of->kill >= 0 ? of->kill : of->directory;
    char link[32], path[4096];
    struct stat found;
    ssize_t size;

    if (named < 0)
        return;
    snprintf (link, sizeof (link), "/proc/self/fd/%d", named);
    size = readlink (link, path, sizeof (path) - 1);
    if (size > 0 && fstat (named, &found) == 0) {
        path[size] = '\0';
        dprintf (file, "%llu %s\n", (unsigned long long) found.st_ino, path);
    }
}

void monitor_write_cgroups (const struct monitor *self)
{
    char name[CHANNEL_PATH + 16], fresh[CHANNEL_PATH + 16];
    int file;

    if (self->start.directory[0] == '\0')
        return;
    snprintf (name, sizeof (name), "%s/cgroup", self->start.directory);
    snprintf (fresh, sizeof (fresh), "%s/cgroup.new", self->start.directory);
    file = open (fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return;
    for (unsigned i = 0; i < self->containers.count; i++)
        monitor_write_cgroup (file, &self->containers.list[i]);
    close (file);
    (void) rename (fresh, name);
}

/* What it takes to open a container is needed once: paths and files of cgroups lay on the stack, a third of a megabyte. Each monitor stays
 * as long as its container. */
static void trim_stack (void)
{
    uintptr_t page = (uintptr_t) sysconf (_SC_PAGESIZE), end = ((uintptr_t) __builtin_frame_address (0) & ~(page - 1)) - page;

    (void) madvise ((void *) (end - STACK_USED), STACK_USED, MADV_DONTNEED);
}

/* Attached processes: their descriptors came with the request. */
static bool has_none (const void *containers, pid_t pid)
{
    (void) containers;
    (void) pid;
    return false;
}

/* What the supervisor, which has no rights, asks for is answered from now on. */
static int start_privileged (struct monitor *self, int plan_file)
{
    struct plan *plan = malloc (sizeof (*plan));
    int error = plan != NULL ? plan_read (plan_file, plan) : -ENOMEM;

#ifdef M_ARENA_MAX
    mallopt (M_ARENA_MAX, 1); /* as the supervisor; and to make a heap of the thread's own takes time of the first call */
#endif
    if (error == 0 && plan->limits.node_count > SHARE_MAX_NODES)
        error = -EBADMSG;
    if (error == 0) {
        self->privileged = (struct privileged) { .socket = self->privsep,
                                                 .has = (self->start.tenant & GUARD_ATTACHED) != 0 ? has_none : containers_have,
                                                 .owns = containers_own,
                                                 .supervisor = self->pid,
                                                 .containers = &self->containers,
                                                 .devices = self->start.devices,
                                                 .node_count = plan->limits.node_count,
                                                 .own_watch = self->own_watch };
        memcpy (self->privileged.nodes, plan->limits.nodes, sizeof (plan->limits.nodes));
        error = privileged_start (&self->privileged);
    }
    free (plan);
    return error;
}

int monitor_start (struct monitor *self, const struct channel_start *start, const int files_of_start[2], int listener)
{
    int files[5] = { files_of_start[0], -1, files_of_start[1], -1, -1 }, error;
    char more[64];

    self->start = *start;
    self->start.devices[CHANNEL_PATH - 1] = self->start.directory[CHANNEL_PATH - 1] = '\0';
    /* The acceptor opened what the runtime's message calls the first process (admission.c). */
    if (self->containers.count != 0 && containers_find (&self->containers, start->pid) == NULL)
        containers_drop (&self->containers, self->containers.list[0].pid);
    error = containers_add (&self->containers, start->pid, start->start_time);
    if (error != 0 && error != -EEXIST)
        return error;
    if (!monitor_prepare (self))
        return -errno;
    self->published = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->published < 0)
        return -errno;
    files[1] = self->counters;
    files[3] = self->published;
    if ((self->start.tenant & GUARD_ATTACHED) == 0) /* attached processes outlive their supervisor */
        files[4] = self->containers.list[0].kill;
    error = start_privileged (self, files[0]);
    /* No process that the supervisor makes for its tenant outlives the tenant (monitor_end_supervisor). Not before: the next acceptor
     * (successor.c), another container's monitor later, would be this process's child. */
    if (error == 0 && prctl (PR_SET_CHILD_SUBREAPER, 1) != 0)
        error = -errno;
    if (error == 0)
        error = monitor_ask (self, &self->start, sizeof (self->start), files, files[4] >= 0 ? 5 : 4);
    if (error == 0 && listener >= 0)
        error = monitor_hold (self, listener); /* its calls wait: first */
    if (error == 0 && self->start.directory[0] != '\0' && (self->server = listen_at (self->start.directory)) < 0)
        error = -errno;
    if (error == 0) {
        snprintf (more, sizeof (more), "\"supervisor\": %d", (int) self->pid);
        monitor_log (self, "monitor", more);
        /* Meanwhile the acceptor's watchdog is there, and what admission.c noted for the agent. */
        if (listener >= 0)
            (void) poll (&(struct pollfd) { .fd = self->pidfd, .events = POLLIN }, 1, FIRST_CALL_MS);
        monitor_write_cgroups (self);
        trim_stack ();
        watchdog_start (self); /* a copy of this process */
    } else
        monitor_end_supervisor (self); /* it may wait for this process, or not answer at all */
    return error;
}

/* Processes that the supervisor made are this process's children when it has ended (PR_SET_CHILD_SUBREAPER). kept: the
 * watchdogs. How many are left; 0 where the kernel does not tell (CONFIG_PROC_CHILDREN). */
static unsigned end_children (pid_t kept, pid_t kept_too)
{
    char path[64], text[4096];
    unsigned count = 0;
    ssize_t size;
    int file;

    snprintf (path, sizeof (path), "/proc/self/task/%d/children", (int) getpid ());
    file = open (path, O_RDONLY | O_CLOEXEC);
    size = file >= 0 ? read (file, text, sizeof (text) - 1) : 0;
    if (file >= 0)
        close (file);
    text[size > 0 ? size : 0] = '\0';
    for (char *rest = text, *word; (word = strsep (&rest, " ")) != NULL;)
        if (atoi (word) > 0 && atoi (word) != kept && atoi (word) != kept_too) {
            (void) kill (atoi (word), SIGKILL);
            count++;
        }
    return count;
}

/* One that is to end has STOP_MS for it, and no process that it made stays. */
void monitor_end_supervisor (const struct monitor *self)
{
    struct pollfd waited = { .fd = self->pidfd, .events = POLLIN };

    if (self->is_over)
        (void) poll (&waited, 1, self->pidfd >= 0 ? STOP_MS : 0);
    (void) kill (self->pid, SIGKILL);
    for (unsigned i = 0; i < CHILDREN_MOST; i++) {
        pid_t ended = waitpid (-1, NULL, WNOHANG);

        if (ended < 0)
            return;
        if (ended > 0)
            continue;
        if (end_children (self->watchdog_pid, self->acceptor_watchdog) == 0)
            return;
        poll (NULL, 0, 1);
    }
}
