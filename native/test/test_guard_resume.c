/* The answer that an earlier guard left open (guard/resume.c), to a container whose memory does not come. */
#include "guard/books.h"
#include "caller.h"
#include "tap.h"

#include <string.h>
#include <sys/wait.h>

#define SECOND UINT64_C (1000000000)
#define STATUS 3

static uint32_t *good, *missing;

/* Makes a FREE that waits for its answer; `missing` does not come. */
static void child (int told)
{
    caller_begin (missing, told);
    ioctl (-1, CALLER_REQUEST, good);
    _exit (good[STATUS] != 0);
}

int main (void)
{
    struct seccomp_notif notification;
    struct kept_call call = { .phase = PHASE_PERFORMED };
    int told[2], listener, status = 1;
    uint64_t begun;
    pid_t pid;

    good = caller_page ();
    missing = caller_page ();
    good[STATUS] = 0xffff;
    if (pipe2 (told, O_CLOEXEC) != 0 || (pid = fork ()) < 0)
        return 1;
    if (pid == 0)
        child (told[1]);
    listener = caller_listener (pid, told);
    if (listener < 0) {
        puts (CALLER_SKIP);
        return 0;
    }
    memset (&notification, 0, sizeof (notification));
    tap_ok (ioctl (listener, SECCOMP_IOCTL_NOTIF_RECV, &notification) == 0, "a call that waits");
    call.id = notification.id;
    call.thread = pid;
    call.arguments[2] = (uintptr_t) missing;
    alarm (60);
    begun = guard_now ();
    tap_ok (!resume_answer (&call, listener) && guard_now () - begun < 30 * SECOND, "memory that does not come is not waited for");
    call.arguments[2] = (uintptr_t) good;
    tap_ok (resume_answer (&call, listener), "other memory is written, and the thread answered");
    waitpid (pid, &status, 0);
    tap_ok (WIFEXITED (status) && WEXITSTATUS (status) == 0, "with success");
    return tap_done ();
}
