/* Address spaces that hold managed memory. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_SPACE_H
#define NVC_GUARD_SPACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct guard;
struct process;
struct tenant;

/* The address space of a process that maps managed memory (space.c); all zero: it is not held. */
struct space {
    bool is_held;
    int memory;  /* its /proc/PID/mem */
    int watch;   /* a counter that says when the process executes something */
    void *page;  /* of that; NULL: there is none */
    uint64_t announced, announced_at; /* bytes that may be mapped and were not seen yet; the last (CLOCK_MONOTONIC ns) */
};

/* Bytes, more than any GPU has: what an address space is charged at the most. 512 of them, and those that are left, add up to less
 * than 2^62. */
#define SPACE_MOST (UINT64_C (1) << 50)
#define TENANT_SPACES 64u
/* One that its process left, by ending or by execve, and that others use. */
struct orphan_space {
    int memory;
    pid_t pid; /* of the process that left it */
    uint64_t bytes;
};

/* Finds out whether the kernel tells of an execve. */
void space_begin (struct guard *guard);
/* A thread of the process is about to map something: its address space is held. false: it could not be, and a mapping might
 * be lost sight of. */
bool space_hold (struct tenant *tenant, struct process *process, pid_t thread);
/* Whether what is held is what the process has now. */
bool space_is_current (const struct process *process);
/* It may map so many bytes from now on. */
void space_announced (struct process *process, uint64_t bytes);
/* It was looked at, and has mapped so many bytes; before that is charged. */
void space_seen (struct process *process, uint64_t bytes, uint64_t now);
/* It ended, or executed something: what it had mapped is charged as long as others use its address space. */
void space_orphan (struct tenant *tenant, struct process *process);
/* Gives back what lay in address spaces without users. */
void space_check (struct tenant *tenant);
void space_close (struct process *process);
void space_release (struct tenant *tenant);

#endif
