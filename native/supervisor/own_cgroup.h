/* A cgroup of a process's own and of what it makes, with limits of memory and of processes: a tenant's, or the prober's. */
#ifndef NVC_SUPERVISOR_OWN_CGROUP_H
#define NVC_SUPERVISOR_OWN_CGROUP_H

#define OWN_CGROUP_MESSAGE 256u

/*
 * Makes DIRECTORY/cgroups/PID-TIME, with the limits, and with version 1 DIRECTORY/cgroups-pids/PID-TIME, and moves this process into it. Before it has
 * threads, and before anything waits for it: a move waits for a grace period of RCU, some milliseconds. Both lead to the agent's trees
 * (nvc/agent/cgroups.py), which removes what has no process any more. Sets RLIMIT_NPROC of what it starts. directory: the agent's; "": there is none. problem: what went wrong, for the log; "" where nothing did, or
 * where there is no tree: the agent has said why.
 */
void own_cgroup_enter (const char *directory, char problem[OWN_CGROUP_MESSAGE]);

#endif
