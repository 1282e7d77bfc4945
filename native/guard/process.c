/*
 * The processes of a tenant, found by the thread that a notification names. A process is pinned by a pidfd, so that its
 * number cannot come to mean another one; which process a thread belongs to is read from /proc once and then only checked.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "clock.h"
#include "managed.h"
#include "process.h"
#include "space.h"
#include "tenant.h"
#include "wait.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
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
    space_close (process);
    memset (process, 0, sizeof (*process));
}

static struct process *free_place (struct tenant *tenant)
{
    struct process *oldest = NULL;

    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        struct process *process = &tenant->processes[i];

        if (process->serial == 0)
            return process;
        /* Without clients there is nothing to remember about it, once it was seen what it mapped. */
        if (process->client_count == 0 && !process->dead && !process->is_suspect && managed_was_seen (process) &&
            (oldest == NULL || process->used_at < oldest->used_at))
            oldest = process;
    }
    if (oldest != NULL)
        process_forget (tenant, oldest);
    return oldest;
}

/* Of a process that a pidfd pins. To read what the kernel tells of a process can make the reader the last user of its memory
 * and its files, which are then closed: they can be a file system's that does not answer. */
static uint64_t start_time_without_lock (struct tenant *tenant, pid_t pid)
{
    struct process *current = wait_begin (tenant, pid);
    uint64_t found = process_start_time (pid);

    wait_end (tenant, current);
    return found;
}

static struct process *enter (struct tenant *tenant, pid_t group)
{
    struct epoll_event event = { .events = EPOLLIN };
    struct process *process;
    uint64_t started;
    int pidfd;

    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        process = &tenant->processes[i];
        if (process->serial != 0 && process->pid == group && process_is_there (process))
            return process;
    }
    pidfd = (int) syscall (SYS_pidfd_open, group, 0);
    if (pidfd < 0)
        return NULL;
    started = start_time_without_lock (tenant, group);
    process = free_place (tenant);
    if (process == NULL) {
        close (pidfd);
        return NULL;
    }
    *process = (struct process) {
        .serial = ++tenant->next_serial * TENANT_PROCESSES + (uint64_t) (process - tenant->processes),
        .pid = group,
        .pidfd = pidfd,
        .start_time = started,
    };
    event.data.u64 = process->serial;
    if (epoll_ctl (tenant->epoll, EPOLL_CTL_ADD, pidfd, &event) != 0) {
        process_forget (tenant, process);
        return NULL;
    }
    managed_watch (tenant, process);
    return process;
}

struct process *process_of_thread (struct tenant *tenant, pid_t thread)
{
    struct thread_entry *entry = &tenant->threads[(uint32_t) thread % TENANT_THREADS];
    struct process *process = entry->thread == thread ? process_by_serial (tenant, entry->serial) : NULL;
    uint64_t now = guard_now ();

    /* The thread's number may mean another one by now, unless it called a moment ago: it must still be of this process. That
     * the process is the one that the pidfd pins shows when a descriptor is taken from it. */
    if (process == NULL || process->dead ||
        (now - entry->called_at >= THREAD_SOON_NS && syscall (SYS_tgkill, process->pid, thread, 0) != 0)) {
        struct process *current = wait_begin (tenant, thread);
        pid_t group = group_of (thread);

        wait_end (tenant, current);
        process = group > 0 ? enter (tenant, group) : NULL;
        if (process == NULL || syscall (SYS_tgkill, process->pid, thread, 0) != 0)
            return NULL;
        entry->replay.head_size = 0;
        entry->thread = thread;
        entry->serial = process->serial;
    }
    entry->called_at = process->used_at = now;
    return process;
}

struct process *process_of_thread_again (struct tenant *tenant, pid_t thread)
{
    tenant->threads[(uint32_t) thread % TENANT_THREADS].serial = 0;
    return process_of_thread (tenant, thread);
}

/* Its files are needed to stop what computes, so what does goes last; and what a call says of its client need not be so. */
static unsigned client_to_forget (const struct tenant *tenant, const struct process *process)
{
    unsigned place = 0;

    while (place < PROCESS_CLIENTS && rm_is_scheduled (tenant->rm, process->serial, process->clients[place].client))
        place++;
    return place;
}

bool process_remember_client (const struct tenant *tenant, struct process *process, uint32_t client, int descriptor)
{
    unsigned place;

    for (unsigned i = 0; i < process->client_count; i++)
        if (process->clients[i].client == client) {
            bool is_other = process->clients[i].descriptor != descriptor;

            process->clients[i].descriptor = descriptor;
            return is_other;
        }
    if (process->client_count == PROCESS_CLIENTS) {
        place = client_to_forget (tenant, process);
        if (place == PROCESS_CLIENTS && !rm_is_scheduled (tenant->rm, process->serial, client))
            return false;
        if (place == PROCESS_CLIENTS)
            place = 0;
        memmove (process->clients + place, process->clients + place + 1,
                 (PROCESS_CLIENTS - place - 1) * sizeof (process->clients[0]));
    } else
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

bool process_threads (const struct process *process, bool (*each) (const struct process *process, pid_t thread, void *context),
                      void *context)
{
    bool goes_on = true;
    struct dirent *entry;
    char path[64];
    DIR *directory;

    snprintf (path, sizeof (path), "/proc/%d/task", (int) process->pid);
    directory = opendir (path);
    if (directory == NULL)
        return errno == ENOENT || errno == ESRCH;
    while (goes_on && (errno = 0, entry = readdir (directory)) != NULL) {
        pid_t thread = (pid_t) atoi (entry->d_name);

        if (thread > 0 && thread != process->pid)
            goes_on = each (process, thread, context);
    }
    goes_on &= errno != 0 && errno != ENOENT && errno != ESRCH;
    closedir (directory);
    return !goes_on;
}
