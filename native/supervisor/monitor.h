/* A tenant's monitor: what monitor.c and acceptor.c share. */
#ifndef NVC_SUPERVISOR_MONITOR_H
#define NVC_SUPERVISOR_MONITOR_H

#include "channel.h"
#include "container.h"
#include "copies.h"
#include "pages.h"

/* Of a tenant at a time: one a process that a runtime started in the container (run, exec). */
#define MONITOR_LISTENERS 64u
#define MONITOR_CONNECTIONS 16u

struct monitor {
    const char *directory; /* the agent's */
    const char *program;   /* the supervisor's path */
    struct channel_start start;
    struct container container;
    pid_t pid; /* the supervisor's */
    int supervisor, server, counters;
    unsigned late_answers; /* of the supervisor, to requests that were given up */
    int listeners[MONITOR_LISTENERS];
    unsigned listener_count;
    int connections[MONITOR_CONNECTIONS]; /* of the agent, of acceptors, of commands */
    unsigned connection_count;
    struct copies copies; /* of attached processes */
    bool is_over; /* the tenant was removed: the supervisor ends because it was told to */
};

/* The supervisor's process, which waits for its tenant: a container's first call need not wait for an execve. false: with errno. */
bool monitor_prepare (struct monitor *self);
/* files: the plan, and the node's contention or -1; the caller closes them. The supervisor is there and has the plan and, where there
 * is one, the listener, which is the monitor's from then on. 0 or -errno. */
int monitor_start (struct monitor *self, const struct channel_start *start, const int files[2], int listener);
/* Until the tenant is over. connection: the agent's, which gets the state; -1: none. The process's exit status. */
int monitor_run (struct monitor *self, int connection);
/* Whether the process at the other end was root's when it connected. */
bool monitor_is_root (int socket);
/* One line of JSON on standard error: more are further members, or "". */
void monitor_log (const struct monitor *self, const char *event, const char *more);
/* acceptor.c: accepts runtimes' connections until one is a new container's, and is its monitor then. The exit status. */
int acceptor_run (struct monitor *self, int socket, char **argv);

#endif
