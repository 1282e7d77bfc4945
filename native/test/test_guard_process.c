/* Which process the guard forgets when its table of processes is full, and a process whose first thread has ended (guard/process.c). */
#include "bare_tenant.h"
#include "guard/client_files.h"
#include "guard/guard_private.h"
#include "guard/managed.h"
#include "guard/process.h"
#include "rm/state.h"
#include "privsep_bed.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* A descriptor of the child's that stands for the driver's control node. */
#define NODE 78

static struct tenant *tenant;
static int node_file;

/* 511 processes with clients, and one without. */
static struct process *fill (void)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        tenant->processes[i] = (struct process) {
            .serial = TENANT_PROCESSES + i, .pid = -1, .pidfd = -1, .memory = -1, .has_clients = true
        };
    tenant->processes[7].has_clients = false;
    memset (tenant->threads, 0, sizeof (tenant->threads));
    return &tenant->processes[7];
}

static void *wait_for_ever (void *argument)
{
    for (;;)
        pause ();
    return argument;
}

/* Any but the first. */
static pid_t other_thread (pid_t pid)
{
    char path[64];
    struct dirent *entry;
    DIR *directory;
    pid_t found = 0;

    snprintf (path, sizeof (path), "/proc/%d/task", (int) pid);
    directory = opendir (path);
    while (directory != NULL && (entry = readdir (directory)) != NULL)
        if (atoi (entry->d_name) > 0 && atoi (entry->d_name) != pid)
            found = atoi (entry->d_name);
    if (directory != NULL)
        closedir (directory);
    return found;
}

static char state_of (pid_t pid)
{
    char path[64], state = 0;
    FILE *file;

    snprintf (path, sizeof (path), "/proc/%d/stat", (int) pid);
    file = fopen (path, "re");
    if (file == NULL || fscanf (file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    if (file != NULL)
        fclose (file);
    return state;
}

/* A daemon that leaves the work to its threads, and one that would not be seen. */
static void without_first_thread (struct guard *guard)
{
    struct process *process;
    pid_t child = fork ();
    enum rm_node kind;
    pthread_t thread;
    int copy;

    if (child == 0) {
        dup2 (STDOUT_FILENO, 77);
        if (dup2 (node_file, NODE) == NODE && pthread_create (&thread, NULL, wait_for_ever, NULL) == 0)
            syscall (SYS_exit, 0);
        _exit (1);
    }
    memset (tenant->processes, 0, sizeof (tenant->processes));
    while (state_of (child) != 'Z' && state_of (child) != 0)
        usleep (1000);
    process = process_of_thread (tenant, child);
    tap_ok (process == NULL, "a first thread that has ended has no memory, and no call is made for it");
    process = process_of_thread (tenant, other_thread (child));
    tap_ok (process != NULL && process->pid == child, "its process is found by another one");
    if (process == NULL)
        return;
    tap_ok (privsep_file (&guard->privsep, process, 77, false, &kind) == -ENOTTY, "nothing is copied but the driver's nodes");
    copy = privsep_file (&guard->privsep, process, NODE, false, &kind);
    tap_ok (copy >= 0 && kind == RM_NODE_CONTROL, "a process whose first thread has ended has its descriptors still");
    close (copy);
    tap_ok (privsep_file (&guard->privsep, process, 1000000, false, &kind) == -EBADF, "and no others");
    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    tap_ok (privsep_file (&guard->privsep, process, NODE, false, &kind) == -ESRCH, "until it ends");
    process_forget (tenant, process);
}

/* What is remembered of a process before its end was reported, where another one has its number by now. */
static void number_given_again (pid_t child)
{
    struct process *ended = tenant->processes, *found;
    pid_t other = fork ();

    if (other == 0)
        _exit (0);
    memset (tenant->processes, 0, sizeof (tenant->processes));
    *ended = (struct process) { .serial = TENANT_PROCESSES, .pid = child, .memory = -1, .has_clients = true };
    ended->pidfd = (int) syscall (SYS_pidfd_open, other, 0);
    waitpid (other, NULL, 0);
    tenant->threads[(uint32_t) child % TENANT_THREADS] = (struct thread_entry) { .thread = child,
                                                                                 .serial = ended->serial,
                                                                                 .called_at = 1 };
    found = process_of_thread (tenant, child);
    tap_ok (found != NULL && found != ended && found->pid == child, "nor is it the process that had the number before");
    if (found != NULL)
        process_forget (tenant, found);
    close (ended->pidfd);
}

/* The file by which a client is known is asked for once. */
static void client_files (pid_t child)
{
    struct process *process;
    enum rm_node kind;
    int first, second;

    memset (tenant->processes, 0, sizeof (tenant->processes));
    process = process_of_thread (tenant, child);
    if (process == NULL) {
        tap_ok (false, "a process");
        return;
    }
    first = client_file (tenant, process, NODE, 0xc1d00001, &kind);
    tap_ok (first >= 0 && kind == RM_NODE_CONTROL && client_file (tenant, process, NODE, 0xc1d00001, &kind) == first,
            "a client's file is the same for every call");
    second = process_file (tenant, process, NODE, &kind);
    tap_ok (second >= 0 && second != first && process->client_count == 1, "that of a client which is to be made is not kept");
    close (second);
    tap_ok (client_file (tenant, process, 1000000, 0xc1d00002, &kind) == -EBADF && process->client_count == 1,
            "nor one that is none");
    for (uint32_t i = 0; i < PROCESS_CLIENTS - 1; i++) {
        tenant->status.notifications++;
        (void) client_file (tenant, process, NODE, 0xbad00000 + i, &kind);
    }
    tenant->status.notifications++;
    tap_ok (client_file (tenant, process, NODE, 0xc1d00001, &kind) == first && process->client_count == PROCESS_CLIENTS,
            "there is room for 32");
    (void) client_file (tenant, process, NODE, 0xbad00000 + PROCESS_CLIENTS, &kind);
    tap_ok (client_file (tenant, process, NODE, 0xc1d00001, &kind) == first && process->client_count == PROCESS_CLIENTS,
            "the one that was not used for longest makes room");
    client_files_forget (tenant, 0xc1d00001);
    tap_ok (process->client_count == PROCESS_CLIENTS - 1 && fcntl (first, F_GETFD) < 0, "that of a client that is gone is closed");
    client_files_release (tenant, process);
    tap_ok (process->client_count == 0, "and all when the process ends");
    process_forget (tenant, process);
}

int main (void)
{
    static struct guard guard;
    struct process *free_one;
    struct limits_node node;
    struct stat status;
    pid_t child;

    node_file = memfd_create ("nvidiactl", MFD_CLOEXEC);
    fstat (node_file, &status);
    node = (struct limits_node) { .kind = RM_NODE_CONTROL, .device = status.st_dev, .inode = status.st_ino };
    tenant = bare_tenant (&guard);
    guard.closing[1] = -1;
    privsep_begin (&guard.privsep, privsep_bed (&node, 1));
    pthread_mutex_lock (&tenant->lock);
    tenant->next_serial = 1000;
    child = fork ();
    if (child == 0) {
        dup2 (node_file, NODE);
        for (;;)
            pause ();
    }

    free_one = fill ();
    tap_ok (process_of_thread (tenant, child) == free_one, "one that has no client and mapped nothing makes room");
    close (free_one->pidfd);

    free_one = fill ();
    managed_look (tenant, free_one);
    tap_ok (process_of_thread (tenant, child) == NULL && free_one->pid == -1, "not before it was seen what it announced");
    managed_refresh (tenant, free_one->look_at);
    tap_ok (process_of_thread (tenant, child) == NULL, "nor after the first look: the mapping may not be made yet");
    for (unsigned i = 0; i < 10; i++)
        managed_refresh (tenant, free_one->look_at);
    tap_ok (process_of_thread (tenant, child) == free_one, "but when it was looked at often enough");
    close (free_one->pidfd);

    /* The number meant a thread of this test's once. */
    struct thread_entry *entry = &tenant->threads[(uint32_t) child % TENANT_THREADS];
    struct process *other = tenant->processes;

    memset (tenant->processes, 0, sizeof (tenant->processes));
    *other = (struct process) { .serial = TENANT_PROCESSES, .pid = getpid (), .pidfd = -1, .memory = -1 };
    *entry = (struct thread_entry) { .thread = child, .serial = other->serial, .called_at = 1 };
    free_one = process_of_thread (tenant, child);
    tap_ok (free_one != NULL && free_one != other && free_one->pid == child,
            "a thread's number can mean another one after a while");
    tap_ok (entry->called_at != 1, "and that it called is known");
    if (free_one != NULL)
        close (free_one->pidfd);
    number_given_again (child);

    free_one = fill ();
    free_one->managed = 1;
    tap_ok (process_of_thread (tenant, child) == NULL, "nor one that has managed memory");

    free_one = fill ();
    process_set_suspect (tenant, free_one, true);
    tap_ok (process_of_thread (tenant, child) == NULL, "nor one with continued calls");

    client_files (child);
    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    without_first_thread (&guard);
    memset (tenant->processes, 0, sizeof (tenant->processes));
    bare_end (tenant);
    return tap_done ();
}
