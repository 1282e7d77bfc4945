/*
 * Calls that only their own thread can make are read again by the kernel after the guard looked at them, and can have
 * become others: an OS descriptor can have become video memory, of any size. Which ones are still under way is kept
 * here, so that the driver is asked often enough meanwhile (verdict.c), and who is responsible for what it says.
 *
 * A thread has come back from such a call when it makes another one, or is seen outside of it. It can be held in the
 * call by a page fault for as long as it likes.
 */
#include "tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A thread that runs, in the kernel or outside, is not seen, nor one that has yet to be given a processor: a program
 * can see to it that this takes long. */
#define RUNNING_NS 2000000000u

static bool is_under_way (struct tenant *tenant, const struct left_call *left, uint64_t now)
{
    struct process *current;
    unsigned long long number, arguments[3];
    char path[64], text[256];
    int file;
    ssize_t size;

    snprintf (path, sizeof (path), "/proc/%d/syscall", left->thread);
    file = open (path, O_RDONLY | O_CLOEXEC);
    if (file < 0) /* it ended; what cannot be looked at for another reason is as good as running */
        return errno != ENOENT && errno != ESRCH && now - left->at < RUNNING_NS;
    current = wait_begin (tenant, left->thread);
    size = read (file, text, sizeof (text) - 1);
    wait_end (tenant, current);
    close (file);
    text[size > 0 ? size : 0] = '\0';
    if (strncmp (text, "running", 7) == 0)
        return now - left->at < RUNNING_NS;
    return sscanf (text, "%llu 0x%llx 0x%llx 0x%llx", &number, &arguments[0], &arguments[1], &arguments[2]) == 4 &&
           number == SYS_ioctl && arguments[0] == left->arguments[0] && arguments[1] == left->arguments[1] &&
           arguments[2] == left->arguments[2];
}

static void forget (struct tenant *tenant, unsigned place) { tenant->left[place] = tenant->left[--tenant->left_count]; }

bool race_left (struct tenant *tenant, struct process *process, const struct seccomp_notif *notification)
{
    uint64_t now = guard_now ();

    if (tenant->left_count == TENANT_LEFT)
        for (unsigned i = tenant->left_count; i-- > 0;)
            if (!is_under_way (tenant, &tenant->left[i], now))
                forget (tenant, i);
    if (tenant->left_count == TENANT_LEFT)
        return false;
    if (!process->is_suspect) {
        truth_begin (tenant, process);
        process->is_suspect = true;
    }
    tenant->left[tenant->left_count] = (struct left_call) { .thread = (int32_t) notification->pid, .serial = process->serial, .at = now };
    memcpy (tenant->left[tenant->left_count++].arguments, notification->data.args, sizeof (tenant->left[0].arguments));
    return true;
}

void race_back (struct tenant *tenant, pid_t thread)
{
    for (unsigned i = tenant->left_count; i-- > 0;)
        if (tenant->left[i].thread == thread)
            forget (tenant, i);
}

bool race_is_on (struct tenant *tenant, const struct process *process, uint64_t now)
{
    bool is_on = false;

    for (unsigned i = tenant->left_count; i-- > 0;) {
        if (tenant->left[i].serial != process->serial)
            continue;
        if (is_under_way (tenant, &tenant->left[i], now))
            is_on = true;
        else
            forget (tenant, i);
    }
    return is_on;
}

void race_lost (struct tenant *tenant, struct process *process)
{
    guard_note (tenant, RM_TOCTOU_KILLED, 0, process->pid);
    syscall (SYS_pidfd_send_signal, process->pidfd, SIGKILL, NULL, 0);
}
