/*
 * The standby process of ldconfig after its last line of Python (nvc/container/ldcache/sandbox.py). Implemented in
 * standby.c.
 *
 * It unmaps its memory first, while no request waits: execve in a Python process frees thousands of pages, which would
 * delay the program's start. Therefore nothing here may use libc, or anything else in other pages than this file's, the
 * stack and the thread control block.
 */
#ifndef NVC_SYSCALL_STANDBY_H
#define NVC_SYSCALL_STANDBY_H

#include <stddef.h>
#include <stdint.h>

enum { STANDBY_COVERS = 3, STANDBY_LIMITS = 6 };

/* Descriptors, restrictions of the program, and the stack. nvc/container/ldcache/sandbox.py: _ORDERS has the same layout. */
struct standby_range {
    uint64_t start, end;
};

struct standby_orders {
    /* The socket of the request; the pipe for errors; the program; the mount point for the container's tree. */
    int32_t end, report, program, ground;
    /* Mounts that cover the container's /proc, /sys and /dev. */
    int32_t covers[STANDBY_COVERS];
    int32_t may_set_groups;
    /* Capabilities, bit n for number n. */
    uint64_t kept;
    /* RLIMIT_*, and the new soft and hard limit unless the hard one is lower. */
    struct {
        uint64_t kind, value;
    } limits[STANDBY_LIMITS];
    /* The main thread's stack: unmapped below the frame in use, so that what its caller once needed is given back. */
    struct standby_range stack;
};

/* orders: struct standby_orders; filter: `length` bytes of struct sock_filter; ranges: `count` struct standby_range. Of
 * any alignment. Unmaps `ranges` except its own code, data and stack; waits for a request, and executes the program:
 * does not return. On failure before that it returns -errno and nothing has changed. */
long standby (const void *orders, const void *filter, size_t length, const void *ranges, size_t count);

#endif
