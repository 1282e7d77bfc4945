/* One notification from receiving to answering, in the tenant's thread. Which calls are announced: nvc/guard/filter.py. */
#include "call.h"
#include "clock.h"
#include "guard_private.h"
#include "inflight.h"
#include "managed.h"
#include "notify.h"
#include "process.h"
#include "reconcile.h"
#include "replay.h"
#include "schedule.h"
#include "space.h"
#include "tenant.h"
#include "uvm_file.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

/* No process ends, and another one starts and calls the driver, within this time. */
#define EVENTS_NS 200000u
/* After which looks from time to time may have become rarer than once a second (tenant_quiet). */
#define QUIET_NS UINT64_C (1000000000)

/*
 * NOTIF_ID_VALID says that the thread of a notification waits in its call still: so its number, its process, its address space and its
 * descriptors are what they were when it made the call. It is asked after each look-up by a number, and before what was
 * found is used. It is not needed where nothing was looked up, because what is used then cannot become another's:
 *
 * - the thread was this process's within the last THREAD_SOON_NS (process.c), in which its number is not given again;
 * - the memory is an open file of the address space that the thread was in when it made the call (memory.c), for it leaves that by its
 *   end alone. Where an execve before the call left nothing to be read there, another address space is looked for, which is a look-up;
 * - the driver's file is held, and was the process's when its client was first used (client_files.c).
 *
 * A thread can end after any such check: its call is made all the same, and the answer dropped (replay.c).
 */
void notify_found_by_number (struct tenant *tenant) { tenant->notified.is_unchecked = true; }

bool notify_is_waiting (struct tenant *tenant)
{
    struct notified *notified = &tenant->notified;

    if (notified->is_unchecked && !notified->is_over)
        notified->is_over = ioctl (notified->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &notified->id) != 0;
    notified->is_unchecked = false;
    return !notified->is_over;
}

/* NULL: it does not wait any more, or there is no room. again: what is remembered of the thread is wrong. */
static struct process *find_caller (struct tenant *tenant, pid_t thread, bool again)
{
    struct process *process = again ? process_of_thread_again (tenant, thread) : process_of_thread (tenant, thread);

    return process != NULL && notify_is_waiting (tenant) ? process : NULL;
}

static struct answer decide (struct tenant *tenant, const struct seccomp_notif *notification)
{
    struct process *process;
    struct answer answer;

    if (notification->data.arch != SECCOMP_ARCH_NATIVE) {
        /* The 32-bit entries reach the same driver, with other numbers. */
        guard_note (tenant, RM_FORBIDDEN_ESCAPE, notification->data.arch, (pid_t) notification->pid);
        tenant->status.refused++;
        return (struct answer) { .error = -EPERM };
    }
    process = find_caller (tenant, (pid_t) notification->pid, false);
    if (process == NULL)
        return (struct answer) { .error = -EAGAIN };
    if (notification->data.nr == SYS_mmap) {
        /* It must land in the container's own memory, so only the container can make it. */
        if (!process_is_there (process))
            process = find_caller (tenant, (pid_t) notification->pid, true);
        if (process == NULL)
            return (struct answer) { .error = -EAGAIN };
        if (!space_hold (tenant, process, (pid_t) notification->pid)) {
            tenant->status.refused++;
            return (struct answer) { .error = -ENOMEM };
        }
        if (!uvm_file_mapped (tenant, process, (int) notification->data.args[4]))
            return (struct answer) { .error = -EACCES };
        space_announced (process, notification->data.args[1]);
        managed_look (tenant, process);
        return (struct answer) { .continue_syscall = true };
    }
    if (notification->data.nr != SYS_ioctl)
        return (struct answer) { .continue_syscall = true };
    answer = call_ioctl (tenant, notification, process);
    if (answer.is_stale && (process = find_caller (tenant, (pid_t) notification->pid, true)) != NULL)
        answer = call_ioctl (tenant, notification, process);
    return answer;
}

int notify_receive (int listener, struct seccomp_notif *notification)
{
    memset (notification, 0, sizeof (*notification)); /* the kernel wants it so */
    return ioctl (listener, SECCOMP_IOCTL_NOTIF_RECV, notification) != 0 ? errno : 0;
}

/* ENOENT: its thread was interrupted meanwhile. */
bool notify_is_passing (int error) { return error == ENOENT || error == EINTR || error == EAGAIN; }

uint64_t notify_answer (struct tenant *tenant, int listener, const struct seccomp_notif *notification)
{
    struct seccomp_notif_resp response = { .id = notification->id };
    uint64_t began = guard_now (), before = atomic_exchange (&tenant->called_at, began), ended;
    struct answer answer;
    bool undelivered;

    /* The other thread may not have come to it yet: what a process had that has ended is there for the next one at once. */
    if (began - before > EVENTS_NS)
        tenant_take_events (tenant, NULL);
    pthread_mutex_lock (&tenant->lock);
    if (began - before > QUIET_NS) {
        managed_called (tenant, began);
        reconcile_called (tenant, began);
    }
    tenant->status.notifications++;
    inflight_remove (tenant, (pid_t) notification->pid);
    tenant->notified = (struct notified) { .listener = listener,
                                           .id = notification->id,
                                           .is_unchecked = tenant->parked_until != 0 };
    tenant->window.size = 0;
    answer = decide (tenant, notification);
    tenant_unlock (tenant);
    if (answer.is_parked)
        return guard_now ();

    if (answer.continue_syscall)
        response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    else
        response.error = answer.error;
    /* ENOENT: the thread does not wait any more. What was made stays in the ledger, and is there when the thread comes again. */
    undelivered = ioctl (listener, SECCOMP_IOCTL_NOTIF_SEND, &response) != 0;
    ended = guard_now ();

    pthread_mutex_lock (&tenant->lock);
    if (undelivered && answer.continue_syscall)
        inflight_withdraw (tenant, (pid_t) notification->pid);
    replay_keep (tenant, notification, &answer, undelivered);
    tenant->status.handling_ns += ended - began;
    tenant_unlock (tenant);
    guard_changed (tenant->guard);
    return ended;
}

bool notify_handle (struct tenant *tenant, int listener)
{
    struct seccomp_notif notification;
    int error = notify_receive (listener, &notification);

    if (error == 0)
        notify_answer (tenant, listener, &notification);
    return error == 0 || notify_is_passing (error);
}
