/*
 * The call that a guard had in hand when it was killed. What was made is undone, and its thread told to try again; what
 * was freed is freed. Whether anybody waits is known by the notification: an answer that was sent is not sent twice.
 *
 * That takes a descriptor and memory of the container's, which can keep whoever does it waiting: it is done by the tenant's own
 * thread, before that answers any call. Who takes over all tenants waits for it a while. What is not done by then is done later:
 * calls of this tenant wait for that, and a call that was to be answered is made again.
 */
#include "books.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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
/* nvstatuscodes.h: INVALID_CLIENT, INVALID_OBJECT, INVALID_OBJECT_HANDLE, OBJECT_NOT_FOUND. */
static const uint32_t not_there[] = { 0x23, 0x31, 0x33, 0x57 };

/* That who takes over all tenants waits for the call that was in hand of one. */
#define RESUME_NS 200000000u

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
    wait_close (tenant, process->pid, copy);
    return is_gone;
}

bool resume_answer (struct tenant *tenant, const struct kept_call *call, int listener)
{
    struct seccomp_notif_resp response = { .id = call->id };
    uint32_t good = 0;
    struct memory_piece piece = { call->arguments[2] + FREE_STATUS * 4, &good, sizeof (good) };

    return memory_write_all (tenant, call->thread, &piece, 1) && ioctl (listener, SECCOMP_IOCTL_NOTIF_SEND, &response) == 0;
}

/* Whether it was answered, through a listener that a thread waits at; -1: none does. */
static bool finish (struct tenant *tenant, const struct kept_call *call, int listener)
{
    uint32_t number = number_of (call), client, handle;
    bool is_made, is_freed;

    if (call->phase < PHASE_PERFORMING || (call->phase == PHASE_ANSWERED && listener < 0))
        return false;
    if (number == CONTROL)
        repeat_resume (tenant, call);
    call_names (call, &client, &handle);
    is_freed = number == FREE || (number == HEAP && word_at (call, HEAP_FUNCTION) == HEAP_FREE);
    is_made = number == ALLOC || number == DUPLICATE || number == ALLOC_MEMORY ||
              (number == HEAP && !is_freed && word_at (call, HEAP_FUNCTION) != HEAP_INFO);
    if ((!is_made && !is_freed) || handle == 0 || (is_made && call->was_there) || (is_freed && !call->was_there))
        return false;
    if (!free_object (tenant, call, client, handle))
        return false;
    rm_drop (tenant->rm, client, handle);
    return number == FREE && listener >= 0 && resume_answer (tenant, call, listener);
}

bool resume_begin (struct tenant *tenant, const struct kept_call *call, const int *listeners, uint32_t count)
{
    struct resumed *resumed = call->phase != PHASE_NONE ? calloc (1, sizeof (*resumed)) : NULL;

    if (resumed == NULL)
        return call->phase == PHASE_NONE;
    resumed->call = *call;
    resumed->listener = -1;
    for (uint32_t i = 0; i < count && resumed->listener < 0; i++)
        if (waits (call, listeners[i]))
            resumed->listener = fcntl (listeners[i], F_DUPFD_CLOEXEC, 0);
    /* Killed before it is done: the next guard does it. */
    if (tenant->books != NULL)
        books_enter (tenant, call);
    tenant->resumed = resumed;
    return true;
}

void resume_now (struct tenant *tenant)
{
    struct resumed *resumed = tenant->resumed;

    if (resumed == NULL)
        return;
    tenant->is_answered = finish (tenant, &resumed->call, resumed->listener);
    tenant->resumed = NULL;
    books_answering (tenant, true);
    if (resumed->listener >= 0)
        close (resumed->listener);
    free (resumed);
    sem_post (&tenant->is_resumed);
}

/* Under the tenant's lock: its books go on where those of another guard end. 0 or -errno. */
static int take_over (struct tenant *tenant, int before, const int *listeners, uint32_t count)
{
    struct kept_call call = { .phase = PHASE_NONE };
    uint64_t one = 1;
    int result = books_restore (tenant, before, &call);

    if (result != 0)
        return result;
    if (!resume_begin (tenant, &call, listeners, count))
        return -ENOMEM;
    tenant->wants_files = true; /* by its thread: to copy descriptors can take long */
    /* Whoever was off may have been thawed since. */
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        rm_freeze (tenant->rm, (int) gpu, false);
        tenant->frozen[gpu] = false;
        schedule_apply (tenant, gpu);
    }
    return write (tenant->wake, &one, sizeof (one)) < 0 ? -errno : 0;
}

int guard_tenant_keep (struct guard *guard, uint32_t id, int file, int before, const int *listeners, uint32_t count)
{
    struct timespec until;
    struct tenant *tenant;
    bool is_taken = false;
    int result = guard_hold (guard, id, GUARD_TELL_NS, &tenant);

    if (result != 0)
        return result;
    if (tenant->books != NULL || tenant->listener_count != 0)
        return guard_release (tenant, -EEXIST);
    result = books_open (tenant, file);
    if (result == 0 && before >= 0) {
        result = take_over (tenant, before, listeners, count);
        is_taken = result == 0 && tenant->resumed != NULL;
    }
    tenant_unlock (tenant);
    until = guard_time_in (RESUME_NS, CLOCK_REALTIME);
    while (is_taken && sem_timedwait (&tenant->is_resumed, &until) != 0)
        is_taken = errno == EINTR;
    if (is_taken)
        result = tenant->is_answered;
    guard_let_go (tenant);
    return result;
}
