/* Numbers of processes as a caller of the simulated driver has them (sim/fuse_caller.c). */
#include "sim/fuse.h"
#include "tap.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main (void)
{
    struct manager_caller functions;
    struct caller caller;
    pid_t ended = fork ();

    if (ended == 0)
        _exit (0);
    waitpid (ended, NULL, 0);
    caller_begin (&caller, &functions, NULL, (pid_t) syscall (SYS_gettid));
    tap_ok (functions.process (&caller) == (uint32_t) getpid () &&
                functions.show (&caller, (uint32_t) getpid ()) == (uint32_t) getpid (),
            "its own");
    tap_ok (functions.show (&caller, 0) == 0 && functions.show (&caller, (uint32_t) ended) == 0,
            "none of a process that is not there");
    tap_ok (functions.show (&caller, UINT32_MAX) == 0 && functions.show (&caller, (uint32_t) -getpgrp ()) == 0,
            "none that kill(2) takes for several processes");
    caller_end (&caller);
    return tap_done ();
}
