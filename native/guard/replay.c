/*
 * A thread that waits for the guard can be interrupted by a signal (before Linux 5.19 and without a flag of the filter,
 * by any). Its system call then starts again, or libcuda makes it again: what was made already must not be made twice,
 * for the handle of an allocation is taken and that of a freed object is gone. Sending the answer does not always tell:
 * the kernel takes an answer for a thread that a signal has woken and that has not looked yet, and drops it.
 *
 * The answer lies in the container's memory, so only that it is the same call has to be seen: the last one of the same
 * thread, the same arguments, the struct as it was answered. Where it is not certain that the answer was lost, the
 * ledger tells whether making the call again could mean anything.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "call.h"
#include "process.h"
#include "replay.h"
#include "tenant.h"

#include "rm/nv_numbers.h"
#include "rm/nvos.h"

#include <linux/seccomp.h>
#include <string.h>

static struct thread_entry *entry_of (struct tenant *tenant, pid_t thread)
{
    struct thread_entry *entry = &tenant->threads[(uint32_t) thread % TENANT_THREADS];

    return entry->thread == thread ? entry : NULL;
}

void replay_keep (struct tenant *tenant, const struct seccomp_notif *notification, const struct answer *answer, bool undelivered)
{
    struct thread_entry *entry = entry_of (tenant, (pid_t) notification->pid);
    struct replay *replay = entry != NULL ? &entry->replay : NULL;

    if (replay == NULL)
        return;
    /* Not made, and interrupted again: what was made before is still asked for. */
    if (answer->head_size == 0 && undelivered)
        return;
    replay->head_size = 0;
    if (answer->head_size == 0 || answer->head_size > REPLAY_HEAD)
        return;
    memcpy (replay->arguments, notification->data.args, sizeof (replay->arguments));
    replay->error = answer->error;
    replay->head_size = answer->head_size;
    replay->undelivered = undelivered;
    memcpy (replay->head, tenant->head, answer->head_size);
}

/* An object that is there cannot be what a freeing that was answered was about,
 * nor one that is not there what was made. */
static bool is_done (const struct tenant *tenant, const struct replay *replay)
{
    const NVOS00_PARAMETERS *freed = (const void *) replay->head;
    const NVOS64_PARAMETERS *made = (const void *) replay->head; /* the short form begins as the long one */
    const NVOS55_PARAMETERS *duplicate = (const void *) replay->head;

    switch (replay->arguments[1] & 0xff) {
    case NV_ESC_RM_FREE:
        return !rm_has_object (tenant->rm, freed->hRoot, freed->hObjectOld);
    case NV_ESC_RM_ALLOC:
        return rm_has_object (tenant->rm, made->hRoot, made->hObjectNew);
    case NV_ESC_RM_DUP_OBJECT:
        return rm_has_object (tenant->rm, duplicate->hClient, duplicate->hObject);
    default:
        return false;
    }
}

bool replay_find (struct tenant *tenant, const struct seccomp_notif *notification, struct answer *answer)
{
    struct thread_entry *entry = entry_of (tenant, (pid_t) notification->pid);
    struct replay *replay = entry != NULL ? &entry->replay : NULL;

    if (replay == NULL || replay->head_size == 0 ||
        memcmp (replay->arguments, notification->data.args, sizeof (replay->arguments)) != 0 ||
        memcmp (replay->head, tenant->head, replay->head_size) != 0 || (!replay->undelivered && !is_done (tenant, replay)))
        return false;
    *answer = (struct answer) { .error = replay->error, .head_size = replay->head_size };
    return true;
}
