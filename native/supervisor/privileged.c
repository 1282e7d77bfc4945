/* See privileged.h. Runs in the monitor, in its thread for requests ("nvc-monitor-req"). */
#include "channel.h"
#include "guard/privsep.h"
#include "privileged.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Texts of /proc lie on it, of 8 KiB each at most. */
#define STACK_SIZE (128u * 1024)
#define FILES_MOST 2u
/* CAP_PERFMON: linux/capability.h since 5.8. */
#define PERFMON 38u

struct answering {
    struct privileged *self;
    const struct privsep_request *request;
    struct privsep_reply *reply;
    int files[FILES_MOST];
    unsigned count;
};

/* A process, pinned: as long as it is, its number means no other one. */
struct pinned {
    pid_t pid;
    int pidfd;
    uint64_t start_time;
};

static bool is_there (int pidfd) { return syscall (SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0; }

/* start_time 0: whatever it is. 0, -ESRCH, -EPERM. */
static int pin (const struct privileged *self, pid_t pid, uint64_t start_time, struct pinned *pinned)
{
    int result = 0;

    *pinned = (struct pinned) { .pid = pid, .pidfd = pid > 0 ? (int) syscall (SYS_pidfd_open, pid, 0) : -1 };
    if (pinned->pidfd < 0)
        return -ESRCH;
    pinned->start_time = proc_start_time (pid);
    if (pinned->start_time == 0 || (start_time != 0 && pinned->start_time != start_time))
        result = -ESRCH;
    else if (!self->has (self->containers, pid))
        result = -EPERM;
    /* What was read was about this one. */
    if (!is_there (pinned->pidfd))
        result = -ESRCH;
    if (result != 0)
        close (pinned->pidfd);
    return result;
}

static int open_of (pid_t pid, pid_t thread, const char *name, int flags)
{
    char path[64];
    int file;

    snprintf (path, sizeof (path), "/proc/%d/task/%d/%s", (int) pid, (int) thread, name);
    file = open (path, flags | O_CLOEXEC);
    return file < 0 ? -errno : file;
}

static void give (struct answering *answering, int file) { answering->files[answering->count++] = file; }

/* NSpid of /proc/PID/status: from the reader's pid namespace on inwards. */
static void read_numbers (pid_t pid, struct privsep_reply *reply)
{
    char value[1024], *end;

    if (!proc_status (pid, "NSpid", value, sizeof (value)))
        return;
    for (const char *at = value; reply->count <= PRIVSEP_LEVELS; at = end) {
        long number = strtol (at, &end, 10);

        if (end == at)
            break;
        reply->numbers[reply->count++] = (int32_t) number;
    }
}

/* Whether its parent has the same memory, as after vfork(2): not for long, if it executes something. */
static bool shares_memory (pid_t pid)
{
    pid_t parent = (pid_t) proc_status_number (pid, "PPid");

    return parent > 0 && syscall (SYS_kcmp, pid, parent, KCMP_VM, 0, 0) == 0;
}

static int answer_process (struct answering *answering)
{
    pid_t thread = answering->request->thread, group = thread > 0 ? (pid_t) proc_status_number (thread, "Tgid") : 0;
    struct pinned pinned;
    int result = group > 0 ? pin (answering->self, group, 0, &pinned) : -ESRCH, memory;

    if (result != 0)
        return result;
    give (answering, pinned.pidfd);
    if (syscall (SYS_tgkill, group, thread, 0) != 0)
        return -ESRCH;
    /* By the thread: the first one of the process may have ended, and has no memory then. */
    memory = open_of (group, thread, "mem", O_RDWR);
    if (memory < 0)
        return memory;
    give (answering, memory);
    answering->reply->pid = group;
    answering->reply->start_time = pinned.start_time;
    read_numbers (group, answering->reply);
    answering->reply->state = shares_memory (group);
    return is_there (pinned.pidfd) ? 0 : -ESRCH;
}

static int answer_file (struct answering *answering, const struct pinned *pinned)
{
    enum rm_node node;
    int copy = privileged_copy (answering->self, pinned->pid, pinned->pidfd, answering->request->number,
                                answering->request->operation == PRIVSEP_NAMED, &node);

    if (copy < 0)
        return copy;
    answering->reply->node = node;
    give (answering, copy);
    return 0;
}

static int answer_files (struct answering *answering, const struct pinned *pinned)
{
    int count = privileged_list (answering->self, pinned->pid, answering->reply->numbers, PRIVSEP_NUMBERS);

    answering->reply->count = count > 0 ? (uint32_t) count : 0;
    return count < 0 ? count : 0;
}

/* The first thread that has mappings; those of one that has ended are none. */
static bool maps_of_thread (pid_t pid, pid_t thread, void *context)
{
    int *maps = context; /* or -errno */
    int file = open_of (pid, thread, "maps", O_RDONLY);
    char byte;

    if (file >= 0 && pread (file, &byte, 1, 0) == 1) {
        *maps = file;
        return false;
    }
    if (file >= 0)
        close (file);
    else if (file != -ENOENT && file != -ESRCH)
        *maps = -EAGAIN;
    return true;
}

static int answer_maps (struct answering *answering, const struct pinned *pinned)
{
    int maps = -ESRCH;
    bool is_whole = privileged_threads (pinned->pid, maps_of_thread, &maps);

    if (maps < 0)
        return is_whole ? maps : -EAGAIN;
    give (answering, maps);
    return is_there (pinned->pidfd) ? 0 : -ESRCH;
}

static int answer_syscall (struct answering *answering, const struct pinned *pinned)
{
    unsigned long long number, arguments[3];
    int file = open_of (pinned->pid, answering->request->thread, "syscall", O_RDONLY);
    struct privsep_reply *reply = answering->reply;
    char text[256];
    ssize_t size;

    reply->state = THREAD_ENDED;
    if (file == -ENOENT || file == -ESRCH)
        return 0;
    reply->state = THREAD_RUNNING; /* what cannot be looked at is as good as that */
    if (file < 0)
        return 0;
    size = read (file, text, sizeof (text) - 1);
    close (file);
    text[size > 0 ? size : 0] = '\0';
    if (strncmp (text, "running", 7) == 0)
        return 0;
    reply->state = THREAD_WAITING;
    if (sscanf (text, "%llu 0x%llx 0x%llx 0x%llx", &number, &arguments[0], &arguments[1], &arguments[2]) != 4)
        number = UINT64_MAX; /* in none */
    reply->arguments[0] = number;
    for (unsigned i = 0; i < 3 && number != UINT64_MAX; i++)
        reply->arguments[1 + i] = arguments[i];
    return 0;
}

/* Watched before it is opened: what was executed between the two would not be known. Without a counter the memory alone comes, twice. */
static int answer_space (struct answering *answering, pid_t pid, pid_t thread)
{
    int watch = privileged_watch (thread), memory = open_of (pid, thread, "mem", O_RDONLY);

    if (memory < 0 || (watch < 0 && (watch = fcntl (memory, F_DUPFD_CLOEXEC, 0)) < 0)) {
        if (watch >= 0)
            close (watch);
        return memory < 0 ? memory : watch;
    }
    give (answering, watch);
    give (answering, memory);
    return 0;
}

/* Of the monitor itself a counter alone, twice: its memory is nothing of the container's. */
static int answer_own_watch (struct answering *answering)
{
    int watch = answering->self->own_watch >= 0 ? privileged_watch (getpid ()) : -EOPNOTSUPP, copy;

    if (watch < 0)
        return watch;
    give (answering, watch);
    copy = fcntl (watch, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return -errno;
    give (answering, copy);
    return 0;
}

static int answer_device (struct answering *answering)
{
    char path[512];
    int32_t number = answering->request->number;
    const struct privileged *self = answering->self;
    enum rm_node kind;
    int32_t found = 0;
    int file;

    snprintf (path, sizeof (path), "%s/nvidiactl", self->devices);
    for (uint32_t i = 0; number > 0 && i < self->node_count; i++)
        if (self->nodes[i].kind == RM_NODE_GPU && ++found == number)
            snprintf (path, sizeof (path), "%s/nvidia%u", self->devices, self->nodes[i].minor);
    if (number < 0 || found < number)
        return -ENODEV;
    file = open (path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return -errno;
    give (answering, file);
    return privileged_node (self, file, &kind) != 0 || kind != (number == 0 ? RM_NODE_CONTROL : RM_NODE_GPU) ? -EPERM : 0;
}

static int answer_about (struct answering *answering, const struct pinned *pinned)
{
    pid_t thread = answering->request->thread;

    switch (answering->request->operation) {
    case PRIVSEP_FILE:
    case PRIVSEP_NAMED:
        return answer_file (answering, pinned);
    case PRIVSEP_FILES:
        return answer_files (answering, pinned);
    case PRIVSEP_MAPS:
        return answer_maps (answering, pinned);
    case PRIVSEP_SYSCALL:
        return answer_syscall (answering, pinned);
    case PRIVSEP_SPACE:
        return thread > 0 && syscall (SYS_tgkill, pinned->pid, thread, 0) == 0 ? answer_space (answering, pinned->pid, thread)
                                                                               : -ESRCH;
    case PRIVSEP_KILL:
        return syscall (SYS_pidfd_send_signal, pinned->pidfd, SIGKILL, NULL, 0) != 0 ? -errno : 0;
    default:
        return -EPROTO;
    }
}

/* An ending process that has left its namespaces is in no container any more (-EPERM), and is answered for all the same. */
static int answer_ending (struct answering *answering)
{
    const struct privsep_request *request = answering->request;
    struct pinned pinned;
    int result = pin (answering->self, request->pid, request->start_time, &pinned);

    if (result == 0)
        close (pinned.pidfd);
    else if (result != -EPERM)
        return result;
    answering->reply->state = proc_is_ending (request->pid);
    return answering->reply->state ? 0 : result;
}

static int answer (struct answering *answering)
{
    const struct privsep_request *request = answering->request;
    struct pinned pinned;
    int result;

    if (request->operation == PRIVSEP_PROCESS)
        return answer_process (answering);
    if (request->operation == PRIVSEP_DEVICE)
        return answer_device (answering);
    if (request->operation == PRIVSEP_SPACE && request->pid == 0)
        return answer_own_watch (answering);
    if (request->start_time == 0)
        return -ESRCH;
    if (request->operation == PRIVSEP_ENDING)
        return answer_ending (answering);
    result = pin (answering->self, request->pid, request->start_time, &pinned);
    if (result != 0)
        return result;
    result = answer_about (answering, &pinned);
    close (pinned.pidfd);
    return result;
}

/* The supervisor would wait for an answer for ever, or go on without: the monitor's other thread sees it end, and ends the container. */
static void stop_serving (const struct privileged *self)
{
    (void) shutdown (self->socket, SHUT_RDWR);
    if (self->supervisor > 0)
        (void) kill (self->supervisor, SIGKILL);
}

void privileged_serve (struct privileged *self)
{
    struct privsep_request request;
    struct privsep_reply reply;
    unsigned none = 0;

    if (self->own_watch < 0)
        self->own_watch = privileged_watch (0);
    while (channel_receive (self->socket, &request, sizeof (request), NULL, &none) == sizeof (request)) {
        struct answering answering = { .self = self, .request = &request, .reply = &reply };
        bool is_sent;

        memset (&reply, 0, PRIVSEP_REPLY_LEAST);
        reply.result = answer (&answering);
        is_sent = channel_send (self->socket, &reply, PRIVSEP_REPLY_LEAST + reply.count * sizeof (reply.numbers[0]),
                                answering.files, reply.result == 0 ? answering.count : 0);
        if (!is_sent && reply.result == 0 && answering.count != 0) {
            reply.result = -errno; /* the descriptors cannot be passed now (unix(7): ETOOMANYREFS) */
            is_sent = channel_send (self->socket, &reply, PRIVSEP_REPLY_LEAST, NULL, 0);
        }
        for (unsigned i = 0; i < answering.count; i++)
            close (answering.files[i]);
        none = 0;
        if (!is_sent)
            break;
    }
    stop_serving (self);
    if (self->own_watch >= 0)
        close (self->own_watch);
    mounts_close (&self->mounts);
}

bool privileged_drop (void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    struct __user_cap_data_struct data[2] = { { 0 }, { 0 } };

    if (prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall (SYS_capget, &header, data) != 0)
        return false;
    data[0].permitted &= 1u << CAP_SYS_PTRACE | 1u << CAP_KILL | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_SYS_RESOURCE;
    data[1].permitted &= 1u << (PERFMON - 32);
    for (unsigned i = 0; i < 2; i++) {
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall (SYS_capset, &header, data) == 0;
}

static void *serve (void *argument)
{
    struct privileged *self = argument;

    prctl (PR_SET_NAME, "nvc-monitor-req");
    if (privileged_drop ())
        privileged_serve (self);
    else
        stop_serving (self);
    return NULL;
}

int privileged_start (struct privileged *self)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int error;

    pthread_attr_init (&attributes);
    pthread_attr_setstacksize (&attributes, STACK_SIZE);
    pthread_attr_setdetachstate (&attributes, PTHREAD_CREATE_DETACHED);
    error = pthread_create (&thread, &attributes, serve, self);
    pthread_attr_destroy (&attributes);
    return -error;
}
