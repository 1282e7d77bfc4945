/* What the process that waits to be ldconfig does from its last line of Python on (nvc/container/ldcache/sandbox.py).
 *
 * It gives its memory back first, while nobody waits: executing a program in a Python process means freeing thousands
 * of pages, and who waits for the program waits for that. So nothing here may use libc, or anything else that lies in
 * other pages than this file's own, the stack and the thread's block. */
#ifndef NVC_SYSCALL_STANDBY_H
#define NVC_SYSCALL_STANDBY_H

#include <stddef.h>
#include <stdint.h>

enum { STANDBY_COVERS = 3, STANDBY_LIMITS = 6 };

/* Descriptors, and what holds for the program. nvc/container/ldcache/sandbox.py: _ORDERS has the same layout. */
struct standby_orders {
    /* The socket that the word comes by; the pipe for what went wrong; the program; where the container's tree goes. */
    int32_t end, report, program, ground;
    /* What hides the container's /proc, /sys and /dev. */
    int32_t covers[STANDBY_COVERS];
    int32_t may_set_groups;
    /* Capabilities, bit n for number n. */
    uint64_t kept;
    /* RLIMIT_*, and what soft and hard limit become unless the hard one is lower. */
    struct {
        uint64_t kind, value;
    } limits[STANDBY_LIMITS];
};

struct standby_range {
    uint64_t start, end;
};

/* orders: struct standby_orders; filter: `length` bytes of struct sock_filter; ranges: `count` struct standby_range. Of
 * any alignment. Unmaps `ranges`, but for what it stands on itself; waits, and becomes the program: does not return.
 * Where it cannot, it returns -errno and nothing has been done. */
long standby(const void *orders, const void *filter, size_t length, const void *ranges, size_t count);

#endif
