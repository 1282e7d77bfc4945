/* The acceptor after this one, started before this one waits for an agent or for a monitor that does not answer. */
#ifndef NVC_SUPERVISOR_SUCCESSOR_H
#define NVC_SUPERVISOR_SUCCESSOR_H

/* What it takes over. */
struct successor {
    int socket, lock; /* socket -1: it has been started */
    char **argv;
};

/* It is no child of this process, so that neither waits for the other. Where it cannot be started now, a later call tries again; where
 * it was started, nothing is done. */
void successor_start (struct successor *successor);

#endif
