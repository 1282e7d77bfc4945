/* The answer that an earlier guard left open (guard/resume.c), to a container whose memory does not come. */
#include "bare_tenant.h"
#include "caller.h"
#include "guard/books.h"
#include "tap.h"

#include <string.h>
#include <sys/wait.h>

#define STATUS 3

static struct tenant *tenant;
static struct kept_call call = { .phase = PHASE_PERFORMED };
static int listener;
static bool is_answered;

static uint32_t *good, *missing;

/* Makes a FREE that waits for its answer; `missing` does not come. */
static void child (int told)
{
    caller_begin (missing, told);
    ioctl (-1, CALLER_REQUEST, good);
    _exit (good[STATUS] != 0);
}

/* As the tenant's thread does. */
static void *answer (void *argument)
{
    pthread_mutex_lock (&tenant->lock);
    is_answered = resume_answer (tenant, &call, listener);
    pthread_mutex_unlock (&tenant->lock);
    return argument;
}

static bool is_waiting (void)
{
    uint64_t since = 0;

    for (unsigned i = 0; i < 3000 && since == 0; i++, usleep (10000)) {
        pthread_mutex_lock (&tenant->lock);
        since = tenant->waits_since;
        pthread_mutex_unlock (&tenant->lock);
    }
    return since != 0;
}

int main (void)
{
    struct seccomp_notif notification;
    int told[2], hidden[2], status = 1, real;
    pthread_t thread;
    char byte;
    pid_t pid, other;

    good = caller_page ();
    missing = caller_page ();
    good[STATUS] = 0xffff;
    if (pipe2 (told, O_CLOEXEC) != 0 || pipe2 (hidden, O_CLOEXEC) != 0 || (pid = fork ()) < 0)
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
    call.arguments[2] = (uintptr_t) missing;
    tenant = bare_tenant (NULL);
    alarm (60);
    other = fork ();
    if (other == 0) { /* with the same memory, which does not come either */
        if (caller_hide (missing) && write (hidden[1], "h", 1) == 1)
            pause ();
        _exit (1);
    }
    tap_ok (read (hidden[0], &byte, 1) == 1, "a process whose memory does not come");
    call.thread = other;
    real = listener;
    listener = -1;
    pthread_create (&thread, NULL, answer, NULL);
    tap_ok (is_waiting (), "while memory does not come whoever asks about the tenant does not wait");
    kill (other, SIGKILL);
    pthread_join (thread, NULL);
    tap_ok (!is_answered, "and nobody is answered who does not wait any more");
    listener = real;
    call.thread = pid;
    call.arguments[2] = (uintptr_t) good;
    answer (NULL);
    tap_ok (is_answered, "other memory is written, and the thread answered");
    waitpid (pid, &status, 0);
    tap_ok (WIFEXITED (status) && WEXITSTATUS (status) == 0, "with success");
    bare_end (tenant);
    return tap_done ();
}
