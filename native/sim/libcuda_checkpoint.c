/*
 * CUDA's checkpoint functions: a process is locked, its video memory and contexts go, and come back. In the process
 * that is checkpointed a thread of the library does the work; the caller's requests reach it through shared memory that
 * the caller finds in /proc/PID/fd, as the real library finds its channel there. Requests run on the caller's thread.
 *
 * What the driver's document says is followed (CUDA driver API, "CUDA Checkpointing"): states, their order, and the
 * errors of a call in another state. Memory has no content here. Pools, cuMemCreate, arrays, managed and imported
 * memory are refused: the real library takes some of these, never memory that processes share.
 */
#include "libcuda.h"
#include "libcuda_api.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME "nvc-sim-checkpoint"
#define MAGIC 0x6b706863u
#define STACK ((size_t) 128 << 10)

enum operation { OPERATION_LOCK = 1, OPERATION_CHECKPOINT, OPERATION_RESTORE, OPERATION_UNLOCK };

/* One a process, in a memory file. `request` and `reply` are counters. */
struct channel {
    uint32_t magic;
    int32_t pid;  /* in the process's own namespace: a forked child has the same file */
    int32_t wake; /* its descriptor of a pipe: a byte is a request */
    sem_t requested;
    int32_t thread;
    _Atomic uint32_t state, request, reply;
    uint32_t operation, argument, result;
};

static struct channel *channel;

static void pause_ms (void)
{
    const struct timespec pause = { .tv_nsec = 1000000 };

    nanosleep (&pause, NULL);
}

/* --- in the process that is checkpointed --- */

static bool all_idle (void)
{
    CUcontext context = NULL;

    while ((context = cuda_next_context (context)) != NULL) {
        if (cuda_wait (context, context->submitted, false) == CUDA_ERROR_NOT_READY)
            return false;
    }
    return true;
}

/* Calls that are being made end, and so does all work; 0: no limit. */
static CUresult lock_process (uint32_t timeout_ms)
{
    uint32_t waited = 0;

    cuda_lock ();
    cuda_hold_calls (true);
    while (cuda_calls () > 0 || !all_idle ()) {
        cuda_unlock ();
        if (timeout_ms != 0 && waited++ >= timeout_ms) {
            cuda_lock ();
            cuda_hold_calls (false);
            cuda_unlock ();
            return CUDA_ERROR_NOT_READY;
        }
        pause_ms ();
        cuda_lock ();
    }
    cuda_unlock ();
    return CUDA_SUCCESS;
}

static void evict (void)
{
    CUcontext context = NULL;

    cuda_each_memory (cuda_memory_evict);
    while ((context = cuda_next_context (context)) != NULL) {
        cuda_small_evict (context);
        cuda_context_unbuild (context);
    }
}

/* Under the lock. What came back goes again where the rest cannot. */
static CUresult bring_back (void)
{
    CUresult result = CUDA_SUCCESS;
    CUcontext context = NULL;

    while (result == CUDA_SUCCESS && (context = cuda_next_context (context)) != NULL) {
        context->before = context->submitted;
        result = cuda_context_build (context);
        if (result == CUDA_SUCCESS)
            result = cuda_small_return (context);
    }
    if (result == CUDA_SUCCESS)
        result = cuda_each_memory (cuda_memory_return);
    if (result != CUDA_SUCCESS)
        evict ();
    return result;
}

static CUresult perform (uint32_t operation, uint32_t argument)
{
    static const uint32_t from[] = { [OPERATION_LOCK] = CU_PROCESS_STATE_RUNNING,
                                     [OPERATION_CHECKPOINT] = CU_PROCESS_STATE_LOCKED,
                                     [OPERATION_RESTORE] = CU_PROCESS_STATE_CHECKPOINTED,
                                     [OPERATION_UNLOCK] = CU_PROCESS_STATE_LOCKED };
    static const uint32_t to[] = { [OPERATION_LOCK] = CU_PROCESS_STATE_LOCKED,
                                   [OPERATION_CHECKPOINT] = CU_PROCESS_STATE_CHECKPOINTED,
                                   [OPERATION_RESTORE] = CU_PROCESS_STATE_LOCKED,
                                   [OPERATION_UNLOCK] = CU_PROCESS_STATE_RUNNING };
    CUresult result = CUDA_SUCCESS;

    if (operation < OPERATION_LOCK || operation > OPERATION_UNLOCK)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load (&channel->state) != from[operation])
        return CUDA_ERROR_ILLEGAL_STATE;
    if (operation == OPERATION_LOCK) {
        result = lock_process (argument);
    } else {
        cuda_lock ();
        if (operation == OPERATION_CHECKPOINT) {
            result = cuda_all_can_go () ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
            if (result == CUDA_SUCCESS)
                evict ();
        } else if (operation == OPERATION_RESTORE) {
            result = bring_back ();
        } else {
            cuda_hold_calls (false);
        }
        cuda_unlock ();
    }
    if (result == CUDA_SUCCESS)
        atomic_store (&channel->state, to[operation]);
    return result;
}

static void *serve (void *unused)
{
    const int *from = unused;
    int wake = *from;
    char byte;

    channel->thread = gettid ();
    for (;;) {
        /* As seen on an H100, whose thread waits for a lock from the checkpoint on. */
        if (atomic_load (&channel->state) == CU_PROCESS_STATE_CHECKPOINTED)
            sem_wait (&channel->requested); /* futex(2) */
        else if (read (wake, &byte, 1) != 1)
            return NULL;
        uint32_t request = atomic_load (&channel->request);
        if (request == atomic_load (&channel->reply))
            continue;
        channel->result = perform (channel->operation, channel->argument);
        atomic_store (&channel->reply, request);
    }
    return NULL;
}

void cuda_checkpoint_begin (void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    static int ends[2];
    int fd = memfd_create (NAME, MFD_CLOEXEC);

    if (fd < 0)
        return; /* the process cannot be checkpointed */
    struct channel *made = ftruncate (fd, sizeof (*made)) < 0
                               ? MAP_FAILED
                               : mmap (NULL, sizeof (*made), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (made == MAP_FAILED || pipe2 (ends, O_CLOEXEC) < 0) {
        close (fd);
        return;
    }
    made->pid = getpid ();
    made->wake = ends[1];
    sem_init (&made->requested, 1, 0);
    channel = made;
    sigfillset (&all);
    pthread_sigmask (SIG_SETMASK, &all, &before);
    pthread_attr_init (&attributes);
    pthread_attr_setstacksize (&attributes, STACK);
    pthread_attr_setdetachstate (&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create (&thread, &attributes, serve, &ends[0]) == 0)
        made->magic = MAGIC;
    pthread_attr_destroy (&attributes);
    pthread_sigmask (SIG_SETMASK, &before, NULL);
}

/* --- in the caller --- */

struct target {
    int pid, fd;
    struct channel *channel;
};

/* The process's number in its innermost namespace, -1. */
static int innermost_pid (int pid)
{
    char path[64], line[256];
    int found = -1;

    snprintf (path, sizeof (path), "/proc/%d/status", pid);
    FILE *file = fopen (path, "re");
    while (file != NULL && fgets (line, sizeof (line), file) != NULL) {
        char *last = strncmp (line, "NSpid:", 6) == 0 ? strrchr (line, '\t') : NULL;
        if (last != NULL)
            found = (int) strtol (last, NULL, 10);
    }
    if (file != NULL)
        fclose (file);
    return found;
}

/* The descriptor of the process's channel, -1: it has none, or there is no such process. */
static int open_channel (int pid)
{
    static const char wanted[] = "/memfd:" NAME;
    char directory[64], path[sizeof (directory) + 256], link[128];
    int found = -1;

    snprintf (directory, sizeof (directory), "/proc/%d/fd", pid);
    DIR *opened = opendir (directory);
    for (const struct dirent *entry; opened != NULL && found < 0 && (entry = readdir (opened)) != NULL;) {
        snprintf (path, sizeof (path), "%s/%s", directory, entry->d_name);
        ssize_t length = readlink (path, link, sizeof (link) - 1);
        if (length >= (ssize_t) sizeof (wanted) - 1 && memcmp (link, wanted, sizeof (wanted) - 1) == 0)
            found = open (path, O_RDWR | O_CLOEXEC);
    }
    if (opened != NULL)
        closedir (opened);
    return found;
}

static void leave_target (struct target *target)
{
    if (target->channel != NULL)
        munmap (target->channel, sizeof (*target->channel));
    if (target->fd >= 0)
        close (target->fd);
}

static CUresult reach (int pid, struct target *target)
{
    *target = (struct target) { .pid = pid, .fd = pid > 0 ? open_channel (pid) : -1 };
    if (target->fd < 0)
        return pid > 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
    void *mapped = mmap (NULL, sizeof (struct channel), PROT_READ | PROT_WRITE, MAP_SHARED, target->fd, 0);
    target->channel = mapped != MAP_FAILED ? mapped : NULL;
    if (target->channel == NULL || target->channel->magic != MAGIC || target->channel->pid != innermost_pid (pid)) {
        leave_target (target);
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return CUDA_SUCCESS;
}

/* Wakes the process's thread. false: there is none any more. */
static bool wake (const struct target *target)
{
    char path[64];
    struct stat status;

    snprintf (path, sizeof (path), "/proc/%d/fd/%d", target->pid, target->channel->wake);
    int fd = open (path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    bool good = fd >= 0 && fstat (fd, &status) == 0 && S_ISFIFO (status.st_mode) && write (fd, "", 1) == 1;
    sem_post (&target->channel->requested);
    if (fd >= 0)
        close (fd);
    return good;
}

static CUresult request (int pid, enum operation operation, uint32_t argument)
{
    struct target target;
    CUresult result = reach (pid, &target);

    if (result != CUDA_SUCCESS)
        return result;
    flock (target.fd, LOCK_EX); /* one caller at a time; it goes with the descriptor */
    target.channel->operation = operation;
    target.channel->argument = argument;
    uint32_t wanted = atomic_load (&target.channel->reply) + 1;
    atomic_store (&target.channel->request, wanted);
    if (!wake (&target))
        result = CUDA_ERROR_NOT_INITIALIZED;
    while (atomic_load (&target.channel->reply) != wanted && result == CUDA_SUCCESS) {
        pause_ms ();
        if (kill (pid, 0) < 0 && errno == ESRCH)
            result = CUDA_ERROR_NOT_INITIALIZED;
    }
    if (result == CUDA_SUCCESS)
        result = (CUresult) target.channel->result;
    leave_target (&target);
    return result;
}

CUresult cuCheckpointProcessGetState (int pid, CUprocessState *state)
{
    struct target target;

    if (state == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = reach (pid, &target);
    if (result == CUDA_SUCCESS) {
        *state = (CUprocessState) atomic_load (&target.channel->state);
        leave_target (&target);
    }
    return result;
}

CUresult cuCheckpointProcessGetRestoreThreadId (int pid, int *thread)
{
    struct target target;

    if (thread == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = reach (pid, &target);
    if (result == CUDA_SUCCESS) {
        *thread = target.channel->thread;
        leave_target (&target);
    }
    return result;
}

CUresult cuCheckpointProcessLock (int pid, CUcheckpointLockArgs *arguments)
{
    return request (pid, OPERATION_LOCK, arguments != NULL ? arguments->timeoutMs : 0);
}

CUresult cuCheckpointProcessCheckpoint (int pid, CUcheckpointCheckpointArgs *arguments)
{
    (void) arguments;
    return request (pid, OPERATION_CHECKPOINT, 0);
}

CUresult cuCheckpointProcessRestore (int pid, CUcheckpointRestoreArgs *arguments)
{
    (void) arguments;
    return request (pid, OPERATION_RESTORE, 0);
}

CUresult cuCheckpointProcessUnlock (int pid, CUcheckpointUnlockArgs *arguments)
{
    (void) arguments;
    return request (pid, OPERATION_UNLOCK, 0);
}
