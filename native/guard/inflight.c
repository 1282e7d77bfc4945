/*
 * In-flight calls: a continued call is read again by the kernel after the guard has checked it, and can have become another one
 * (TOCTOU): an OS descriptor can have become video memory, of any size. The calls whose outcome is not known yet are recorded here,
 * so that the driver is asked often enough meanwhile (reconcile.c), and with the processes that made them.
 *
 * A thread has come back from such a call when it makes another one, or is seen outside of it. It can be held in the
 * call by a page fault for as long as it likes.
 *
 * Runs in the tenant's thread, under its lock.
 */
#include "clock.h"
#include "guard_private.h"
#include "inflight.h"
#include "privsep.h"
#include "process.h"
#include "reconcile.h"
#include "tenant.h"
#include "wait.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/syscall.h>

/* A thread that runs, in the kernel or outside, is not seen, nor one that has yet to be given a processor: a program
 * can see to it that this takes long. */
#define RUNNING_NS 2000000000u

static bool is_inflight (struct tenant *tenant, const struct inflight_call *call, uint64_t now)
{
    const struct process *process = process_by_serial (tenant, call->serial);
    enum privsep_thread_state state;
    struct process *current;
    uint64_t arguments[4];
    int result;

    if (process == NULL)
        return false;
    current = wait_begin (tenant, call->thread);
    result = privsep_syscall (&tenant->guard->privsep, process, call->thread, &state, arguments);
    wait_end (tenant, current);
    if (result == -ESRCH || (result == 0 && state == THREAD_ENDED))
        return false;
    /* What cannot be looked at is as good as running. */
    if (result != 0 || state == THREAD_RUNNING)
        return now - call->at < RUNNING_NS;
    return arguments[0] == SYS_ioctl && memcmp (arguments + 1, call->arguments, sizeof (call->arguments)) == 0;
}

static void drop (struct tenant *tenant, unsigned place) { tenant->inflight[place] = tenant->inflight[--tenant->inflight_count]; }

bool inflight_add (struct tenant *tenant, struct process *process, const struct seccomp_notif *notification)
{
    uint64_t now = guard_now ();

    if (tenant->inflight_count == TENANT_INFLIGHT)
        for (unsigned i = tenant->inflight_count; i-- > 0;)
            if (!is_inflight (tenant, &tenant->inflight[i], now))
                drop (tenant, i);
    if (tenant->inflight_count == TENANT_INFLIGHT)
        return false;
    if (!process->is_suspect) {
        reconcile_baseline (tenant, process);
        process_set_suspect (tenant, process, true);
    }
    tenant->unconfirmed_calls++;
    tenant->inflight[tenant->inflight_count] = (struct inflight_call) { .thread = (int32_t) notification->pid,
                                                                        .serial = process->serial,
                                                                        .at = now };
    memcpy (tenant->inflight[tenant->inflight_count++].arguments, notification->data.args, sizeof (tenant->inflight[0].arguments));
    return true;
}

void inflight_remove (struct tenant *tenant, pid_t thread)
{
    for (unsigned i = tenant->inflight_count; i-- > 0;)
        if (tenant->inflight[i].thread == thread)
            drop (tenant, i);
}

bool inflight_is_pending (struct tenant *tenant, const struct process *process, uint64_t now)
{
    bool has_inflight = false;

    for (unsigned i = tenant->inflight_count; i-- > 0;) {
        if (tenant->inflight[i].serial != process->serial)
            continue;
        if (is_inflight (tenant, &tenant->inflight[i], now))
            has_inflight = true;
        else
            drop (tenant, i);
    }
    return has_inflight;
}

void kill_offender (struct tenant *tenant, struct process *process)
{
    guard_note (tenant, RM_TOCTOU_KILLED, 0, process->pid);
    process_kill (tenant, process);
}
