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
 * can see to it that this takes long. After so long the driver is not asked oftener for it; what the call came to stays unknown. */
#define RUNNING_NS 2000000000u

enum flight { FLIGHT_OVER, FLIGHT_RUNNING, FLIGHT_WAITING };

static enum flight flight_of (struct tenant *tenant, const struct inflight_call *call)
{
    const struct process *process = process_by_serial (tenant, call->serial);
    enum privsep_thread_state state;
    struct process *current;
    uint64_t arguments[4];
    int result;

    if (process == NULL)
        return FLIGHT_OVER;
    current = wait_begin (tenant, call->thread);
    result = privsep_syscall (&tenant->guard->privsep, process, call->thread, &state, arguments);
    wait_end (tenant, current);
    if (result == -ESRCH || (result == 0 && state == THREAD_ENDED))
        return FLIGHT_OVER;
    /* What cannot be looked at is as good as running. */
    if (result != 0 || state == THREAD_RUNNING)
        return FLIGHT_RUNNING;
    return arguments[0] == SYS_ioctl && memcmp (arguments + 1, call->arguments, sizeof (call->arguments)) == 0 ? FLIGHT_WAITING
                                                                                                               : FLIGHT_OVER;
}

static void drop (struct tenant *tenant, unsigned place)
{
    rm_outcome_over (tenant->rm, tenant->inflight[place].outcome);
    tenant->inflight[place] = tenant->inflight[--tenant->inflight_count];
}

static void look (struct tenant *tenant)
{
    for (unsigned i = tenant->inflight_count; i-- > 0;)
        if (flight_of (tenant, &tenant->inflight[i]) == FLIGHT_OVER)
            drop (tenant, i);
}

/* About each thread the monitor is asked: not oftener, however many calls wait for what comes out. */
#define LOOK_NS 1000000u

void inflight_look (struct tenant *tenant)
{
    uint64_t now = guard_now ();

    if (now - tenant->inflight_looked_at < LOOK_NS)
        return;
    tenant->inflight_looked_at = now;
    look (tenant);
}

bool inflight_add (struct tenant *tenant, struct process *process, const struct seccomp_notif *notification)
{
    if (tenant->inflight_count == TENANT_INFLIGHT)
        look (tenant);
    if (tenant->inflight_count == TENANT_INFLIGHT)
        return false;
    if (!process->is_suspect) {
        reconcile_baseline (tenant);
        process_set_suspect (tenant, process, true);
    }
    tenant->unconfirmed_calls++;
    tenant->inflight[tenant->inflight_count] = (struct inflight_call) { .thread = (int32_t) notification->pid,
                                                                        .serial = process->serial,
                                                                        .at = guard_now () };
    memcpy (tenant->inflight[tenant->inflight_count++].arguments, notification->data.args, sizeof (tenant->inflight[0].arguments));
    return true;
}

void inflight_set_outcome (struct tenant *tenant, uint64_t outcome)
{
    tenant->inflight[tenant->inflight_count - 1].outcome = outcome;
}

void inflight_withdraw (struct tenant *tenant, pid_t thread)
{
    for (unsigned i = tenant->inflight_count; i-- > 0;)
        if (tenant->inflight[i].thread == thread) {
            rm_outcome_none (tenant->rm, tenant->inflight[i].outcome);
            drop (tenant, i);
        }
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
        switch (flight_of (tenant, &tenant->inflight[i])) {
        case FLIGHT_OVER:
            drop (tenant, i);
            break;
        case FLIGHT_RUNNING:
            has_inflight |= now - tenant->inflight[i].at < RUNNING_NS;
            break;
        case FLIGHT_WAITING:
            has_inflight = true;
        }
    }
    return has_inflight;
}

void kill_offender (struct tenant *tenant, struct process *process)
{
    guard_note (tenant, RM_TOCTOU_KILLED, 0, process->pid);
    process_kill (tenant, process);
}
