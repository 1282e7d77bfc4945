/*
 * The acceptor after this one. It is made while no container waits, and accepts when this one has a container: before this one waits for an
 * agent or for a monitor that does not answer. It is no child of this process, so that neither waits for the other.
 */
#ifndef NVC_SUPERVISOR_SUCCESSOR_H
#define NVC_SUPERVISOR_SUCCESSOR_H

#include <stdbool.h>

/* What it takes over. */
struct successor {
    int socket, lock; /* socket -1: it accepts */
    int go;           /* write end of the pipe that it reads; -1: it is not there yet */
    char **argv;
};

/* Nothing where it is there, or cannot be made now. */
void successor_prepare (struct successor *successor);
/* It accepts from now on, and is made if it was not. Where that cannot be now, a later call tries again; where it accepts, nothing is done. */
void successor_start (struct successor *successor);
/* This one has no socket to accept on, or another acceptor has: its successor ends. One whose acceptor was killed accepts. */
void successor_end (struct successor *successor);
/* In the successor. Waits; false: it is to end. go: the other end of the pipe, which is closed. */
bool successor_may_go (int go);

#endif
