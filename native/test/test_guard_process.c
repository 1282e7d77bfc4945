/* Which process the guard forgets when its table of processes is full, and a process whose first thread has ended (guard/process.c). */
#include "bare_tenant.h"
#include "guard/descriptors.h"
#include "guard/guard_private.h"
#include "guard/managed.h"
#include "guard/process.h"
#include "rm/state.h"
#include "tap.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct tenant *tenant;

/* 511 processes with clients, and one without. */
static struct process *fill (void)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        tenant->processes[i] = (struct process) { .serial = TENANT_PROCESSES + i, .pid = -1, .pidfd = -1, .client_count = 1 };
    tenant->processes[7].client_count = 0;
    memset (tenant->threads, 0, sizeof (tenant->threads));
    return &tenant->processes[7];
}

static void *wait_for_ever (void *argument)
{
    for (;;)
        pause ();
    return argument;
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
static void without_first_thread (void)
{
    struct process *process;
    pid_t child = fork ();
    enum rm_node node;
    struct stat status;
    pthread_t thread;
    int copy;

    if (child == 0) {
        if (pthread_create (&thread, NULL, wait_for_ever, NULL) == 0)
            syscall (SYS_exit, 0);
        _exit (1);
    }
    memset (tenant->processes, 0, sizeof (tenant->processes));
    while (state_of (child) != 'Z' && state_of (child) != 0)
        usleep (1000);
    process = process_of_thread (tenant, child);
    tap_ok (process != NULL && process_copy (tenant, process, STDOUT_FILENO, &node) == -ENOTTY,
            "nothing is copied but the driver's nodes");
    fstat (STDOUT_FILENO, &status);
    tenant->limits.node_count = 1;
    tenant->limits.nodes[0] = (struct limits_node) { .kind = RM_NODE_GPU, .device = status.st_dev, .inode = status.st_ino };
    copy = process != NULL ? process_copy (tenant, process, STDOUT_FILENO, &node) : -1;
    tap_ok (copy >= 0 && node == RM_NODE_GPU, "a process whose first thread has ended has its descriptors still");
    close (copy);
    tap_ok (process != NULL && process_copy (tenant, process, 1000000, &node) == -EBADF, "and no others");
    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    tap_ok (process != NULL && process_copy (tenant, process, STDOUT_FILENO, &node) == -ESRCH, "until it ends");
    if (process != NULL)
        close (process->pidfd);
}

/* A process that could make the guard forget a client by having others, or naming them, would have to be searched at every stop. */
static void clients (void)
{
    struct process *process = &tenant->processes[0];
    static struct object channel;
    struct client *known[PROCESS_CLIENTS + 1];

    *process = (struct process) { .serial = TENANT_PROCESSES, .pid = -1, .pidfd = -1 };
    for (uint32_t i = 0; i <= PROCESS_CLIENTS; i++)
        known[i] = tracker_client (tenant->rm, process->serial, 0xc1d00000 + i);
    process_remember_client (tenant, process, 0xc1d00000, 0);
    known[0]->channels = &channel;
    for (uint32_t i = 1; i < 100; i++)
        process_remember_client (tenant, process, i <= PROCESS_CLIENTS ? 0xc1d00000 + i : 0xbad00000 + i, 77);
    tap_ok (process_descriptor_of (process, 0xc1d00000) == 0 && process_descriptor_of (process, 0xc1d00002) < 0 &&
                process_descriptor_of (process, 0xbad00000 + 99) == 77,
            "a client that computes is not forgotten for others, nor for names of what is none");
    for (uint32_t i = 0; i < PROCESS_CLIENTS; i++) {
        process_remember_client (tenant, process, 0xc1d00000 + i, (int) i);
        known[i]->channels = &channel;
    }
    tap_ok (process_descriptor_of (process, 0xc1d00000) == 0 &&
                process_descriptor_of (process, 0xc1d00000 + PROCESS_CLIENTS - 1) == PROCESS_CLIENTS - 1,
            "they make room");
    tap_ok (!process_remember_client (tenant, process, 0xbad00000, 77) && process_descriptor_of (process, 0xc1d00000) == 0,
            "and get none");
    known[PROCESS_CLIENTS]->channels = &channel;
    tap_ok (process_remember_client (tenant, process, 0xc1d00000 + PROCESS_CLIENTS, 78) &&
                process_descriptor_of (process, 0xc1d00000) < 0 && process_descriptor_of (process, 0xc1d00001) == 1,
            "of more that compute than there is room for, the oldest goes");
    for (uint32_t i = 0; i <= PROCESS_CLIENTS; i++)
        known[i]->channels = NULL;
    rm_close_file (tenant->rm, process->serial);
}

int main (void)
{
    static struct guard guard;
    struct process *free_one;
    pid_t child;

    tenant = bare_tenant (&guard);
    pthread_mutex_lock (&tenant->lock);
    tenant->next_serial = 1000;
    child = fork ();
    if (child == 0)
        for (;;)
            pause ();

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
    *other = (struct process) { .serial = TENANT_PROCESSES, .pid = getpid (), .pidfd = -1 };
    *entry = (struct thread_entry) { .thread = child, .serial = other->serial, .called_at = 1 };
    free_one = process_of_thread (tenant, child);
    tap_ok (free_one != NULL && free_one != other && free_one->pid == child, "a thread's number can mean another one after a while");
    tap_ok (entry->called_at != 1, "and that it called is known");
    if (free_one != NULL)
        close (free_one->pidfd);

    free_one = fill ();
    free_one->managed = 1;
    tap_ok (process_of_thread (tenant, child) == NULL, "nor one that has managed memory");

    free_one = fill ();
    free_one->is_suspect = true;
    tap_ok (process_of_thread (tenant, child) == NULL, "nor one with continued calls");

    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    without_first_thread ();
    clients ();
    memset (tenant->processes, 0, sizeof (tenant->processes));
    bare_end (tenant);
    return tap_done ();
}
