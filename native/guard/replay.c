/*
 * A thread that waits for the guard can be interrupted by a signal (before Linux 5.19 and without a flag of the filter,
 * by any). Its system call then starts again, or libcuda makes it again: what was made already must not be made twice, for
 * the handle of an allocation is taken and that of a freed object is gone. The answer lies in the container's memory, so
 * only that it is the same call has to be seen: the same thread, the same arguments, the struct as it was answered.
 */
#include "tenant.h"

#include <linux/seccomp.h>
#include <string.h>

void replay_keep (struct tenant *tenant, const struct seccomp_notif *notification, const struct answer *answer)
{
    struct replay *replay = &tenant->replays[tenant->replay_next++ % REPLAYS];

    if (answer->head_size == 0 || answer->head_size > REPLAY_HEAD)
        return;
    tenant->replay_count += replay->thread == 0;
    replay->thread = (pid_t) notification->pid;
    memcpy (replay->arguments, notification->data.args, sizeof (replay->arguments));
    replay->error = answer->error;
    replay->head_size = answer->head_size;
    memcpy (replay->head, tenant->head, answer->head_size);
}

bool replay_find (struct tenant *tenant, const struct seccomp_notif *notification, struct answer *answer)
{
    bool found = false;

    if (tenant->replay_count == 0)
        return false;
    for (unsigned i = 0; i < REPLAYS; i++) {
        struct replay *replay = &tenant->replays[i];

        if (replay->thread != (pid_t) notification->pid)
            continue;
        /* Whatever it does now, what it was waiting for is over. */
        found = memcmp (replay->arguments, notification->data.args, sizeof (replay->arguments)) == 0 &&
                memcmp (replay->head, tenant->head, replay->head_size) == 0;
        if (found)
            *answer = (struct answer) { .error = replay->error, .head_size = replay->head_size };
        replay->thread = 0;
        tenant->replay_count--;
        if (found)
            return true;
    }
    return false;
}
