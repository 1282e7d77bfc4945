/* A tenant's monitor: what monitor.c and acceptor.c share. */
#ifndef NVC_SUPERVISOR_MONITOR_H
#define NVC_SUPERVISOR_MONITOR_H

#include "channel.h"
#include "containers.h"
#include "copies.h"
#include "pages.h"
#include "privileged.h"

/* Of a tenant at a time: one a process that a runtime started in the container (run, exec). */
#define MONITOR_LISTENERS 256u
#define MONITOR_CONNECTIONS 16u

struct monitor {
    const char *directory; /* the agent's */
    const char *program;   /* the supervisor's path */
    struct channel_start start;
    struct containers containers;
    pid_t pid; /* the supervisor's */
    int pidfd; /* the same: a process that it made may keep its descriptors */
    int supervisor, privsep, server, counters,
        published; /* the last: an eventfd, which the supervisor writes to and the agent waits for */
    int watchdog; /* a pipe, of which the watchdog waits for the end; -1: there is none */
    pid_t watchdog_pid;
    pid_t acceptor_watchdog; /* 0: there is none (acceptor_watchdog.h) */
    int acceptor_pidfd;      /* this process's, which that one waits by */
    struct privileged privileged;
    int own_watch; /* of an acceptor, which becomes privileged's; -1: none */
    unsigned late_answers; /* of the supervisor, to requests that were given up */
    int listeners[MONITOR_LISTENERS];
    unsigned listener_count;
    int connections[MONITOR_CONNECTIONS]; /* of the agent, of acceptors, of commands */
    unsigned connection_count;
    struct copies copies; /* of attached processes */
    bool is_over; /* the tenant was removed: the supervisor was asked to end */
};

/* start.c: the counters, and the supervisor's process, which waits for its tenant: a container's first call need not wait for an execve. Nothing
 * where both are there. false: with errno. */
bool monitor_prepare (struct monitor *self);
/* files: the plan, and the node's usage page or -1; the caller closes them. The supervisor is there and has the plan and, where there
 * is one, the listener, which is the monitor's from then on. 0 or -errno. */
int monitor_start (struct monitor *self, const struct channel_start *start, const int files[2], int listener);
/* The supervisor, and what it made, is over when this returns; one that is to end has a second for it. */
void monitor_end_supervisor (const struct monitor *self);
/* Until the tenant is over. connection: the agent's, which gets the state; -1: none. The process's exit status. */
int monitor_run (struct monitor *self, int connection);
/* One request to the supervisor, and its result; -ETIMEDOUT: it hangs. */
int monitor_ask (struct monitor *self, const void *packet, size_t size, const int *files, unsigned count);
/* One more listener, which is the monitor's then. 0 or -errno. */
int monitor_hold (struct monitor *self, int listener);
/* start.c: DIRECTORY/cgroup, for an agent that finds neither this process nor the supervisor. */
void monitor_write_cgroups (const struct monitor *self);
/* A line of nvc/agent/ending.py: inode and path of cgroup.kill of the container's own cgroup, or else of its directory. Nothing without one. */
void monitor_write_cgroup (int file, const struct container *of);
/* watchdog.c: whether nothing of the tenant is left, as its supervisor says. */
bool monitor_is_gone (const struct monitor *self);
/* Processes that called the driver, as its supervisor says: COUNTERS_PROCESSES at most; how many. */
unsigned monitor_known (const struct monitor *self, struct container_process *known);
/* SIGKILL to the containers; returns when no process is left that could be answered ENOSYS. event: for the log. */
void monitor_end_container (const struct monitor *self, const char *event);
/* A process that ends the containers when this one dies; another one in the place of one that was killed. */
void watchdog_start (struct monitor *self);
/* Another one, of the containers of now; there is one all the time. */
void watchdog_renew (struct monitor *self);
/* The tenant is over. */
void watchdog_stop (struct monitor *self);
/* One line of JSON on standard error: more are further members, or "". */
void monitor_log (const struct monitor *self, const char *event, const char *more);
/* acceptor.c: accepts runtimes' connections until one is a new container's, and is its monitor then. The exit status. */
int acceptor_run (struct monitor *self, int socket, char **argv);
/* Whether a process has the lock (flock(2)) of a file of DIRECTORY; it is taken for a moment to see that. unknown: the result without the file. */
bool acceptor_lock_is_held (const struct monitor *self, const char *name, bool unknown);

#endif
