/*
 * The processes of a tenant, found by the thread that a notification names. A process is pinned by a pidfd, so that its
 * number cannot come to mean another one; which process a thread belongs to is read from /proc once and then only checked.
 */
#include "tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

bool process_is_there (const struct process *process)
{
    return !process->dead && syscall (SYS_pidfd_send_signal, process->pidfd, 0, NULL, 0) == 0;
}

struct process *process_by_serial (struct tenant *tenant, uint64_t serial)
{
    /* The number says where it lies (enter). */
    struct process *process = &tenant->processes[serial % TENANT_PROCESSES];

    return serial != 0 && process->serial == serial ? process : NULL;
}

/* The thread group of a thread; 0 when it is gone. */
static pid_t group_of (pid_t thread)
{
    char path[64], text[1024];
    const char *line;
    ssize_t size;
    int descriptor;

    snprintf (path, sizeof (path), "/proc/%d/status", (int) thread);
    descriptor = open (path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    size = read (descriptor, text, sizeof (text) - 1);
    close (descriptor);
    if (size <= 0)
        return 0;
    text[size] = '\0';
    line = strstr (text, "\nTgid:");
    return line ? (pid_t) strtol (line + 6, NULL, 10) : 0;
}

uint64_t process_start_time (pid_t pid)
{
    char path[64], text[1024];
    const char *word;
    int descriptor;
    ssize_t size;

    snprintf (path, sizeof (path), "/proc/%d/stat", (int) pid);
    descriptor = open (path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    size = read (descriptor, text, sizeof (text) - 1);
    close (descriptor);
    text[size > 0 ? size : 0] = '\0';
    word = strrchr (text, ')'); /* the name before it may be anything */
    for (int field = 2; word != NULL && field < 22; field++)
        word = strchr (word + 1, ' ');
    return word != NULL ? strtoull (word + 1, NULL, 10) : 0;
}

void process_forget (struct tenant *tenant, struct process *process)
{
    epoll_ctl (tenant->epoll, EPOLL_CTL_DEL, process->pidfd, NULL);
    close (process->pidfd);
    memset (process, 0, sizeof (*process));
    books_process (tenant, process);
}

static struct process *free_place (struct tenant *tenant)
{
    struct process *oldest = NULL;

    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0)
            return process;
        /* Without clients there is nothing to remember about it. */
        if (process->client_count == 0 && !process->dead && (oldest == NULL || process->used_at < oldest->used_at))
            oldest = process;
    }
    if (oldest != NULL)
        process_forget (tenant, oldest);
    return oldest;
}

static struct process *enter (struct tenant *tenant, pid_t group)
{
    struct epoll_event event = { .events = EPOLLIN };
    struct process *process;
    int pidfd;

    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        process = &tenant->processes[i];
        if (process->serial != 0 && process->pid == group && process_is_there (process))
            return process;
    }
    pidfd = (int) syscall (SYS_pidfd_open, group, 0);
    if (pidfd < 0)
        return NULL;
    process = free_place (tenant);
    if (process == NULL) {
        close (pidfd);
        return NULL;
    }
    *process = (struct process) {
        .serial = ++tenant->next_serial * TENANT_PROCESSES + (uint64_t) (process - tenant->processes),
        .pid = group,
        .pidfd = pidfd,
        .start_time = process_start_time (group),
    };
    event.data.u64 = process->serial;
    if (epoll_ctl (tenant->epoll, EPOLL_CTL_ADD, pidfd, &event) != 0) {
        process_forget (tenant, process);
        return NULL;
    }
    books_process (tenant, process);
    managed_watch (tenant, process);
    return process;
}

void process_restore (struct tenant *tenant, uint64_t serial, pid_t pid, uint64_t start_time)
{
    struct process *process = &tenant->processes[serial % TENANT_PROCESSES];
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = serial };
    int pidfd = (int) syscall (SYS_pidfd_open, pid, 0);

    /* After the pidfd was got: it pins this process and no other. */
    if (pidfd >= 0 && process_start_time (pid) != start_time) {
        close (pidfd);
        pidfd = -1;
    }
    *process = (struct process) { .serial = serial, .pid = pid, .pidfd = pidfd, .start_time = start_time };
    process->dead = pidfd < 0 || epoll_ctl (tenant->epoll, EPOLL_CTL_ADD, pidfd, &event) != 0;
    truth_ask_at (tenant, process, guard_now ());
    if (!process->dead)
        managed_look (tenant, process);
}

struct process *process_of_thread (struct tenant *tenant, pid_t thread)
{
    struct thread_entry *entry = &tenant->threads[(uint32_t) thread % TENANT_THREADS];
    struct process *process = entry->thread == thread ? process_by_serial (tenant, entry->serial) : NULL;

    /* The thread's number may mean another one by now: it must still be of this process. That the process is the one that the
     * pidfd pins shows when a descriptor is taken from it. */
    if (process == NULL || process->dead || syscall (SYS_tgkill, process->pid, thread, 0) != 0) {
        pid_t group = group_of (thread);

        process = group > 0 ? enter (tenant, group) : NULL;
        if (process == NULL || syscall (SYS_tgkill, process->pid, thread, 0) != 0)
            return NULL;
        entry->replay.head_size = 0;
        entry->thread = thread;
        entry->serial = process->serial;
    }
    process->used_at = guard_now ();
    return process;
}

struct process *process_of_thread_again (struct tenant *tenant, pid_t thread)
{
    tenant->threads[(uint32_t) thread % TENANT_THREADS].serial = 0;
    return process_of_thread (tenant, thread);
}

bool process_remember_client (struct process *process, uint32_t client, int descriptor)
{
    for (unsigned i = 0; i < process->client_count; i++)
        if (process->clients[i].client == client) {
            bool is_other = process->clients[i].descriptor != descriptor;

            process->clients[i].descriptor = descriptor;
            return is_other;
        }
    if (process->client_count == PROCESS_CLIENTS)
        memmove (process->clients, process->clients + 1, sizeof (process->clients) - sizeof (process->clients[0]));
    else
        process->client_count++;
    process->clients[process->client_count - 1].client = client;
    process->clients[process->client_count - 1].descriptor = descriptor;
    return true;
}

int process_descriptor_of (const struct process *process, uint32_t client)
{
    for (unsigned i = 0; i < process->client_count; i++)
        if (process->clients[i].client == client)
            return process->clients[i].descriptor;
    return -1;
}

static enum rm_node node_of (const struct limits *limits, const struct stat *status)
{
    for (uint32_t i = 0; i < limits->node_count && i < SHARE_MAX_NODES; i++) {
        const struct limits_node *node = &limits->nodes[i];

        if (node->inode == 0 ? S_ISCHR (status->st_mode) && status->st_rdev == node->device
                             : status->st_dev == node->device && status->st_ino == node->inode)
            return (enum rm_node) node->kind;
    }
    return RM_NODE_OTHER;
}

int process_copy (struct tenant *tenant, const struct process *process, int descriptor, enum rm_node *node)
{
    struct stat status;
    int copy = (int) syscall (SYS_pidfd_getfd, process->pidfd, descriptor, 0);

    if (copy < 0)
        return -errno;
    *node = fstat (copy, &status) == 0 ? node_of (&tenant->limits, &status) : RM_NODE_OTHER;
    return copy;
}
