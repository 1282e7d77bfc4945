/* See drain.h. Runs in what was an acceptor, or in a process that an acceptor started for it. */
#include "drain.h"
#include "proc.h"

#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A call that could not be received is tried again so soon. */
#define RETRY_MS 10

/* The thread waits for its answer as long as the notification is valid: until then its number is its own. */
static void end_caller (int listener, const struct seccomp_notif *notification)
{
    uint64_t id = notification->id;
    pid_t process = (pid_t) proc_status_number ((pid_t) notification->pid, "Tgid");
    int pidfd = process > 0 ? (int) syscall (SYS_pidfd_open, process, 0) : -1;

    if (pidfd < 0)
        return;
    if (ioctl (listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0)
        syscall (SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    close (pidfd);
}

void drain (int listener)
{
    for (;;) {
        struct pollfd waited = { .fd = listener, .events = POLLIN };
        struct seccomp_notif notification;

        if (poll (&waited, 1, -1) < 0)
            continue;
        if ((waited.revents & POLLIN) == 0)
            return;
        memset (&notification, 0, sizeof (notification));
        if (ioctl (listener, SECCOMP_IOCTL_NOTIF_RECV, &notification) == 0)
            end_caller (listener, &notification);
        else
            poll (NULL, 0, RETRY_MS);
    }
}

/* The acceptor's lock and socket, above all: a copy would keep every later acceptor from its work. */
static void close_others (int file)
{
    if (file > 3)
        (void) syscall (SYS_close_range, 3, file - 1, 0);
    (void) syscall (SYS_close_range, file + 1, ~0u, 0);
}

void drain_apart (int listener)
{
    int made = proc_fork_apart ();

    if (made > 0)
        return;
    if (made == 0)
        close_others (listener);
    drain (listener);
    if (made == 0)
        _exit (0);
}
