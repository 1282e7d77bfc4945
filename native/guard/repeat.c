/*
 * Controls that the driver does once. A guard that is killed between the driver's work and the answer leaves a thread
 * that makes its call again, and the driver says that it was made already, which CUDA takes for an unknown error.
 * Nothing asks the driver what is registered, so the next guard remembers the call, and makes of that one refusal what
 * it means: it is done. Only for the first call that the thread makes then, only if it is the same to the last byte,
 * and only for the statuses below. What has an answer that was lost with the guard is undone instead, and then made
 * anew.
 *
 * What it can get wrong: a program that registers the same twice in any case, and whose second call was in hand, is
 * told that it is registered, which it is.
 */
#include "books.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CONTROL 0x2au
/* NVOS54: hClient, hObject, cmd, flags, params, paramsSize, status. */
#define CONTROL_REQUEST 0xc020462au
#define OBJECT_AT 4u
#define COMMAND_AT 8u
#define STATUS_AT 28u
#define HEAD_SIZE 32u

/* A control, and the status of who makes it again (third_party_p2p.c and ctrl503c.h of the open kernel modules;
 * nvstatuscodes.h). undo: the control that takes the first 4 bytes of its params, a handle, back; 0: none is needed. */
static const struct once {
    uint32_t command, again, undo;
} rows[] = {
    { 0x503c0102, 0, 0x503c0103 }, /* REGISTER_VA_SPACE answers a token; UNREGISTER_VA_SPACE */
    { 0x503c0104, 0x19, 0 },       /* REGISTER_VIDMEM: INSERT_DUPLICATE_NAME */
    { 0x503c0105, 0x57, 0 },       /* UNREGISTER_VIDMEM: OBJECT_NOT_FOUND */
};

static uint32_t word_at (const uint8_t *head, size_t at)
{
    uint32_t word;

    memcpy (&word, head + at, sizeof (word));
    return word;
}

/* Of a call whose head, of this size, is here; NULL: it may be made as often as one likes. */
static const struct once *row_of (uint64_t request, const uint8_t *head, uint32_t head_size)
{
    if ((request & 0xff) != CONTROL || head_size != HEAD_SIZE)
        return NULL;
    for (size_t i = 0; i < sizeof (rows) / sizeof (rows[0]); i++)
        if (rows[i].command == word_at (head, COMMAND_AT))
            return &rows[i];
    return NULL;
}

void repeat_note (struct kept_call *kept, const struct rm_call *call)
{
    kept->params_size = 0;
    if (call->params == NULL || call->params_size > sizeof (kept->params) ||
        row_of (call->request, call->head, call->head_size) == NULL)
        return;
    memcpy (kept->params, call->params, call->params_size);
    kept->params_size = call->params_size;
}

static bool is_whole (const struct kept_call *kept)
{
    return kept->phase == PHASE_PERFORMING && kept->params_size <= sizeof (kept->params) &&
           row_of (kept->arguments[1], kept->head, kept->head_size) != NULL;
}

/* An address space that may have been registered is not, then: the thread's own call gives it a token. */
static void take_back (struct tenant *tenant, const struct kept_call *call, uint32_t undo)
{
    const struct process *process = process_by_serial (tenant, call->serial);
    uint32_t handle = word_at (call->params, 0);
    struct {
        uint32_t client, object, command, flags;
        uint64_t params;
        uint32_t params_size, status;
    } head = { word_at (call->head, 0), word_at (call->head, OBJECT_AT), undo, 0, (uint64_t) (uintptr_t) &handle,
               sizeof (handle), 0 };
    enum rm_node node;
    int copy;

    if (process == NULL || process->dead || call->params_size < sizeof (handle))
        return;
    copy = process_copy (tenant, process, (int) call->arguments[0], &node);
    if (copy < 0)
        return;
    /* Not there is as good as taken back, and whatever else is wrong the thread hears from its own call. */
    if ((node == RM_NODE_CONTROL || node == RM_NODE_GPU) && ioctl (copy, CONTROL_REQUEST, &head) != 0)
        head.status = 0;
    wait_close (tenant, process->pid, copy);
}

/* In the new books, which nobody reads before all of them are there. */
static void enter (struct tenant *tenant, const struct kept_call *call)
{
    const struct process *process = process_by_serial (tenant, call->serial);
    struct kept_call *again = tenant->books->again, *place = NULL;

    if (process == NULL || process->dead)
        return;
    for (unsigned i = 0; i < BOOKS_AGAIN; i++)
        if (again[i].phase == PHASE_NONE || again[i].thread == call->thread)
            place = place == NULL || again[i].phase != PHASE_NONE ? &again[i] : place;
    if (place == NULL) { /* the oldest is given up */
        memmove (again, again + 1, (BOOKS_AGAIN - 1) * sizeof (*again));
        place = &again[BOOKS_AGAIN - 1];
    }
    *place = *call;
    place->phase = PHASE_PERFORMING;
}

void repeat_restore (struct tenant *tenant, const struct books *before)
{
    for (unsigned i = 0; tenant->books != NULL && i < BOOKS_AGAIN; i++)
        if (is_whole (&before->again[i]))
            enter (tenant, &before->again[i]);
}

void repeat_resume (struct tenant *tenant, const struct kept_call *call)
{
    const struct once *row = row_of (call->arguments[1], call->head, call->head_size);

    /* An answer that is known, and is a refusal: nothing was done. */
    if (row == NULL || call->params_size > sizeof (call->params) ||
        (call->phase > PHASE_PERFORMING && word_at (call->head, STATUS_AT) != 0))
        return;
    if (row->undo != 0)
        take_back (tenant, call, row->undo);
    else if (tenant->books != NULL)
        enter (tenant, call);
}

bool repeat_find (const struct tenant *tenant, const struct seccomp_notif *notification, const struct rm_call *call)
{
    if (tenant->books == NULL || row_of (call->request, call->head, call->head_size) == NULL)
        return false;
    for (unsigned i = 0; i < BOOKS_AGAIN; i++) {
        const struct kept_call *kept = &tenant->books->again[i];

        /* All of the head but its status, which the dead guard may have written. */
        if (kept->phase != PHASE_NONE && kept->thread == (int32_t) notification->pid && kept->serial == call->file &&
            memcmp (kept->arguments, notification->data.args, sizeof (kept->arguments)) == 0 &&
            memcmp (kept->head, call->head, STATUS_AT) == 0 && kept->params_size == call->params_size &&
            memcmp (kept->params, call->params, kept->params_size) == 0)
            return true;
    }
    return false;
}

void repeat_settle (const struct rm_call *call)
{
    const struct once *row = row_of (call->request, call->head, call->head_size);
    uint8_t *status = (uint8_t *) call->head + STATUS_AT;

    if (row != NULL && row->again != 0 && word_at (status, 0) == row->again)
        memset (status, 0, sizeof (uint32_t));
}

void repeat_over (struct tenant *tenant, const struct seccomp_notif *notification, const struct answer *answer)
{
    /* Not made, and its thread comes again with it. */
    if (tenant->books == NULL || answer->error == -EINTR || answer->error == -EAGAIN)
        return;
    for (unsigned i = 0; i < BOOKS_AGAIN; i++)
        if (tenant->books->again[i].thread == (int32_t) notification->pid)
            tenant->books->again[i].phase = PHASE_NONE;
}
