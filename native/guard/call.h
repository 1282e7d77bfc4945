/* Announced ioctls. */
#ifndef NVC_GUARD_CALL_H
#define NVC_GUARD_CALL_H

#include <stdbool.h>
#include <stdint.h>

struct process;
struct seccomp_notif;
struct tenant;

/* Of an ioctl. */
struct answer {
    int32_t error; /* 0 or -errno */
    bool continue_syscall; /* the kernel makes the call as the tenant */
    bool is_parked; /* it is begun again later (park.h) */
    bool is_stale; /* the process is not the thread's */
    uint32_t head_size; /* not 0: the call was made, and its answer lies in the container's memory and in tenant->head */
};
struct answer call_ioctl (struct tenant *tenant, const struct seccomp_notif *notification, struct process *process);

#endif
