/* See successor.h. Runs in the acceptor, and in the monitor that it becomes, before that has a tenant. */
#include "successor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

void successor_start (struct successor *successor)
{
    int status = 0;
    pid_t child;

    if (successor->socket < 0)
        return; /* it was started */
    child = fork ();
    if (child == 0) {
        pid_t second = fork ();

        if (second != 0)
            _exit (second < 0);
        setsid ();
        fcntl (successor->socket, F_SETFD, 0);
        execv (successor->argv[0], successor->argv);
        _exit (127);
    }
    while (child > 0 && waitpid (child, &status, 0) < 0 && errno == EINTR)
        continue;
    /* What waits at the socket is lost with its last copy: where no process can be started now, it is tried again. */
    if (child < 0 || status != 0)
        return;
    close (successor->lock);
    close (successor->socket);
    successor->socket = -1;
}
