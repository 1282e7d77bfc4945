/* See successor.h. Runs in the acceptor, and in the monitor that it becomes, before that has a tenant. */
#include "successor.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

/* go: what it waits for; -1: it accepts at once. */
static bool execute (const struct successor *successor, int go)
{
    char number[16], *argv[] = { successor->argv[0], successor->argv[1], successor->argv[2], successor->argv[3], NULL, NULL };
    int made = proc_fork_apart ();

    if (made != 0)
        return made > 0;
    fcntl (successor->socket, F_SETFD, 0);
    if (go >= 0) {
        fcntl (go, F_SETFD, 0);
        snprintf (number, sizeof (number), "%d", go);
        argv[4] = number;
    }
    execv (argv[0], argv);
    _exit (127);
}

void successor_prepare (struct successor *successor)
{
    struct pollfd killed = { .fd = successor->go };
    int ends[2];

    if (successor->go >= 0 && poll (&killed, 1, 0) == 0)
        return;
    if (successor->go >= 0)
        close (successor->go);
    successor->go = -1;
    if (pipe2 (ends, O_CLOEXEC) != 0)
        return;
    if (execute (successor, ends[0]))
        successor->go = ends[1];
    else
        close (ends[1]);
    close (ends[0]);
}

/* Messages of the acceptor before. End of file: it was killed, and this one accepts what waits at the socket. */
enum told { TOLD_GO = 'g', TOLD_END = 'e' };

bool successor_may_go (int go)
{
    char told = TOLD_GO;
    ssize_t size;

    prctl (PR_SET_NAME, "nvc-successor");
    while ((size = read (go, &told, 1)) < 0 && errno == EINTR)
        continue;
    close (go);
    prctl (PR_SET_NAME, "nvc-monitor");
    return size >= 0 && told == TOLD_GO;
}

static bool tell (struct successor *successor, enum told told)
{
    char byte = (char) told;
    bool is_told = successor->go >= 0 && write (successor->go, &byte, 1) == 1;

    if (successor->go >= 0)
        close (successor->go);
    successor->go = -1;
    return is_told;
}

void successor_end (struct successor *successor) { (void) tell (successor, TOLD_END); }

void successor_start (struct successor *successor)
{
    if (successor->socket < 0)
        return; /* it was started */
    /* What waits at the socket is lost with its last copy: where no process can be started now, it is tried again. */
    if (!tell (successor, TOLD_GO) && !execute (successor, -1))
        return;
    close (successor->lock);
    close (successor->socket);
    successor->socket = -1;
}
