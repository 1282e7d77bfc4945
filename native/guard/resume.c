/*
 * The call that a guard had in hand when it was killed. What was made is undone, and its thread told to try again; what
 * was freed is freed. Whether anybody waits is known by the notification: an answer that was sent is not sent twice.
 */
#include "books.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define FREE 0x29u
#define CONTROL 0x2au
#define ALLOC_MEMORY 0x27u
#define ALLOC 0x2bu
#define DUPLICATE 0x34u
#define HEAP 0x4au
/* NVOS00 (hRoot, hObjectParent, hObjectOld, status) and its request. NVOS32: function, hMemory. */
#define FREE_REQUEST 0xc0104629u
#define FREE_SIZE 16u
#define FREE_STATUS 3u
#define HEAP_FUNCTION 8u
#define HEAP_HANDLE 44u
#define HEAP_FREE 3u
#define HEAP_INFO 5u
/* A page that has to be read from a disk is there by then. */
#define PATIENCE_S 1
/* nvstatuscodes.h: INVALID_CLIENT, INVALID_OBJECT, INVALID_OBJECT_HANDLE, OBJECT_NOT_FOUND. */
static const uint32_t not_there[] = { 0x23, 0x31, 0x33, 0x57 };

static uint32_t word_at (const struct kept_call *call, unsigned at)
{
    uint32_t word;

    memcpy (&word, call->head + at, sizeof (word));
    return word;
}

static uint32_t number_of (const struct kept_call *call) { return (uint32_t) call->arguments[1] & 0xff; }

void call_names (const struct kept_call *call, uint32_t *client, uint32_t *handle)
{
    *client = word_at (call, 0);
    *handle = word_at (call, number_of (call) == HEAP ? HEAP_HANDLE : 8);
    if (*client == 0)
        *client = *handle; /* a client that frees itself */
}

static bool waits (const struct kept_call *call, int listener)
{
    uint64_t id = call->id;

    return ioctl (listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

/* Whether the object is not there afterwards. */
static bool free_object (struct tenant *tenant, const struct kept_call *call, uint32_t client, uint32_t handle)
{
    const struct process *process = process_by_serial (tenant, call->serial);
    uint32_t head[FREE_SIZE / 4] = { client, word_at (call, 4), handle, 0 };
    bool is_gone = false;
    enum rm_node node;
    int copy;

    if (process == NULL || process->dead)
        return false; /* with its file, or by the driver's own word (verdict.c) */
    copy = process_copy (tenant, process, (int) call->arguments[0], &node);
    if (copy < 0)
        return false;
    if (node == RM_NODE_CONTROL || node == RM_NODE_GPU)
        is_gone = ioctl (copy, FREE_REQUEST, head) == 0 && head[FREE_STATUS] == 0;
    for (unsigned i = 0; i < sizeof (not_there) / sizeof (not_there[0]); i++)
        is_gone |= head[FREE_STATUS] == not_there[i];
    close (copy);
    return is_gone;
}

struct late_answer {
    struct kept_call call;
    int listener;
    sem_t done;
    atomic_bool is_answered;
    atomic_int holders; /* who waits, and who answers */
};

static void let_go (struct late_answer *answer)
{
    if (atomic_fetch_sub (&answer->holders, 1) != 1)
        return;
    close (answer->listener);
    sem_destroy (&answer->done);
    free (answer);
}

static void *give (void *argument)
{
    struct late_answer *answer = argument;
    struct seccomp_notif_resp response = { .id = answer->call.id };
    uint32_t good = 0;
    struct memory_piece piece = { answer->call.arguments[2] + FREE_STATUS * 4, &good, sizeof (good) };

    prctl (PR_SET_NAME, "nvc-guard-late");
    if (tenant_drop_rights () && memory_write_all (NULL, answer->call.thread, &piece, 1))
        atomic_store (&answer->is_answered, ioctl (answer->listener, SECCOMP_IOCTL_NOTIF_SEND, &response) == 0);
    sem_post (&answer->done);
    let_go (answer);
    return NULL;
}

/* By a thread of its own, which can be kept waiting for as long as the container likes: this one takes over all tenants. */
bool resume_answer (const struct kept_call *call, int listener)
{
    struct late_answer *answer = listener >= 0 ? calloc (1, sizeof (*answer)) : NULL;
    struct timespec until;
    bool is_answered;
    pthread_t thread;

    if (answer == NULL)
        return false;
    answer->call = *call;
    answer->listener = fcntl (listener, F_DUPFD_CLOEXEC, 0);
    sem_init (&answer->done, 0, 0);
    answer->holders = 2;
    clock_gettime (CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    if (answer->listener >= 0 && pthread_create (&thread, NULL, give, answer) == 0) {
        pthread_detach (thread);
        while (sem_timedwait (&answer->done, &until) != 0 && errno == EINTR)
            continue;
    } else
        answer->holders = 1;
    is_answered = atomic_load (&answer->is_answered);
    let_go (answer);
    return is_answered;
}

int call_resume (struct tenant *tenant, struct kept_call *call, const int *listeners, uint32_t count)
{
    uint32_t number = number_of (call), client, handle;
    bool is_made, is_freed;
    int listener = -1;

    for (uint32_t i = 0; i < count && listener < 0; i++)
        if (call->phase != PHASE_NONE && waits (call, listeners[i]))
            listener = listeners[i];
    if (call->phase < PHASE_PERFORMING || (call->phase == PHASE_ANSWERED && listener < 0))
        return 0;
    if (number == CONTROL)
        repeat_resume (tenant, call);
    call_names (call, &client, &handle);
    is_freed = number == FREE || (number == HEAP && word_at (call, HEAP_FUNCTION) == HEAP_FREE);
    is_made = number == ALLOC || number == DUPLICATE || number == ALLOC_MEMORY ||
              (number == HEAP && !is_freed && word_at (call, HEAP_FUNCTION) != HEAP_INFO);
    if ((!is_made && !is_freed) || handle == 0 || (is_made && call->was_there) || (is_freed && !call->was_there))
        return 0;
    if (!free_object (tenant, call, client, handle))
        return 0;
    rm_drop (tenant->rm, client, handle);
    return number == FREE && resume_answer (call, listener);
}
