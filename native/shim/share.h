/*
 * The two files that a container's processes and the host share about a share.
 *
 * limits: written by the host, read-only in the container; what the container may use. Changed in place, live.
 * region: written by the container's processes; what they use, and which channels they have. The host reads it with
 *         pread and trusts nothing in it, as the tenant can write anything there.
 *
 * nvc/share/limits.py and nvc/share/region.py are the Python side; tests compare every size and offset. All fields are
 * little-endian, of fixed width, naturally aligned. Unknown versions are refused, spare bytes are zero.
 */
#ifndef NVC_SHARE_H
#define NVC_SHARE_H

#include <stdint.h>

#define SHARE_MAX_GPUS 32
#define SHARE_MAX_NODES 64

/* Paths in a container. All is mounted read-only but the region. */
#define SHARE_DIRECTORY "/usr/lib/nvc"
#define SHARE_LIMITS_PATH "/run/nvc-share/limits"
#define SHARE_REGION_PATH "/run/nvc-share/region"
/* For use without a container; read only where SHARE_LIMITS_PATH does not exist. */
#define SHARE_LIMITS_ENVIRONMENT "NVC_SHIM_LIMITS"
#define SHARE_REGION_ENVIRONMENT "NVC_SHIM_REGION"

#define LIMITS_MAGIC 0x4c43564eu /* "NVCL" */
#define LIMITS_VERSION 1u
#define LIMITS_SIZE 8192u

/* limits.flags */
#define LIMITS_PAUSED 1u /* every compute channel frozen, new ones too */
#define LIMITS_GRAPHICS 2u /* objects of graphics, which are not preempted, are made: for a guard */

/* limits_gpu.flags */
#define LIMITS_OVERSUBSCRIBE 1u

enum limits_priority { PRIORITY_NORMAL = 0, PRIORITY_LOW = 1, PRIORITY_HIGH = 2 };

struct limits_gpu {
    uint8_t uuid[16]; /* as in the driver's GID_INFO (binary) and in UVM */
    uint64_t memory;  /* bytes; 0: no limit */
    uint32_t cap;     /* share of the GPU's time in 1/1000; 0 or 1000: no cap */
    uint32_t weight;  /* 1 to 1000; 0: not set, counts as 10 */
    uint32_t priority;
    uint32_t flags;
    uint32_t latency; /* of a service (PRIORITY_HIGH): microseconds that it waits for others at most; 0: no service. The agent's */
    uint32_t idle; /* seconds without computing after which it may be suspended; 0: never. The agent's */
    uint64_t
        request; /* of a range of memory, bytes that are guaranteed, and the most; `memory` is in force. 0: no range. The agent's */
    uint64_t most;
}; /* 64 bytes */

/* How a node of the driver is recognised by fstat. inode 0: a character device with number `device` (st_rdev);
 * otherwise a file with this st_dev and st_ino (the simulated machine). */
struct limits_node {
    uint32_t kind; /* enum rm_node */
    uint32_t minor;
    uint64_t device;
    uint64_t inode;
    uint64_t spare;
}; /* 32 bytes */

struct limits {
    uint32_t magic;
    uint32_t version;
    uint32_t size; /* LIMITS_SIZE */
    uint32_t generation; /* odd while the file is being written; a reader takes a copy and checks it again (a seqlock) */
    uint32_t checksum; /* CRC-32 (IEEE 802.3) of bytes 64 to LIMITS_SIZE */
    uint32_t spare0[11];
    /* from here: 64 */
    uint32_t flags;
    uint32_t gpu_count;
    uint32_t node_count;
    uint32_t period; /* microseconds of one on-and-off of a cap; 0: 50000 */
    char driver[32]; /* "580.159.04", with a NUL */
    char container[64];
    uint8_t spare1[16];
    /* 192 */
    struct limits_gpu gpus[SHARE_MAX_GPUS]; /* 192 to 2240 */
    struct limits_node nodes[SHARE_MAX_NODES]; /* 2240 to 4288 */
    uint8_t spare2[LIMITS_SIZE - 4288];
};

#define REGION_MAGIC 0x5243564eu /* "NVCR" */
#define REGION_VERSION 1u
#define REGION_PAGE 4096u
#define REGION_SLOTS 8192u
#define REGION_SIZE ((uint64_t) REGION_PAGE * (1u + REGION_SLOTS))
/*
 * Locks are byte locks on the region, beyond its end. Slot i is alive while its byte REGION_LOCKS + i has an
 * open-file-description lock (F_OFD_SETLK, exclusive): the kernel frees it with the last descriptor of the open file,
 * as the driver frees what was allocated (a forked child inherits both). The order of admission is a process lock
 * (F_SETLKW) on byte REGION_ADMISSION.
 */
#define REGION_LOCKS ((uint64_t) 1 << 40)
#define REGION_ADMISSION (((uint64_t) 1 << 40) - 1)

struct region_note {
    uint64_t count;
    uint32_t last; /* the number of the latest one: class, control, escape */
    uint32_t spare;
};

struct region_header { /* the first page */
    uint32_t magic;
    uint32_t version;
    uint32_t page; /* REGION_PAGE */
    uint32_t slots;
    uint32_t high; /* slots [0, high) have been used */
    uint32_t unknown_driver; /* 1: a process found a driver that rm does not support, and passes every call */
    uint64_t swept_ns; /* CLOCK_MONOTONIC: the last sweep of dead slots */
    uint32_t grouped; /* incremented when a process's compute groups change */
    uint32_t spare0[7];
    /* 64: limits lowered by the container itself; 0: none */
    uint64_t memory[SHARE_MAX_GPUS];
    uint32_t cap[SHARE_MAX_GPUS]; /* 1/1000 */
    uint32_t weight[SHARE_MAX_GPUS];
    /* 576 */
    struct region_note notes[32]; /* by enum rm_reason */
    uint8_t spare1[REGION_PAGE - 576 - 512];
};

struct region_channel {
    uint32_t client, subdevice, group, channel;
    int32_t descriptor; /* of the control node, in the owner */
    int32_t gpu; /* index in limits.gpus */
}; /* 24 bytes */

#define REGION_CHANNELS 96u

struct region_slot { /* one page a process; never moves */
    uint32_t state; /* 0 free, 1 used; used with a free lock: dead, cleared by the next holder of the lock */
    uint32_t generation; /* incremented when the slot is cleared */
    uint64_t pid_namespace; /* inode of /proc/self/ns/pid */
    uint32_t pid; /* in that namespace */
    uint32_t threads_cap; /* 1: this process has a thread that enforces caps */
    uint64_t start_time; /* clock ticks since boot, field 22 of /proc/PID/stat */
    char name[16]; /* as /proc/PID/comm */
    uint8_t spare0[16];
    /* 64 */
    uint64_t memory[SHARE_MAX_GPUS]; /* bytes: granted; managed memory included */
    uint64_t pending[SHARE_MAX_GPUS]; /* bytes: requested, not granted yet */
    uint64_t managed[SHARE_MAX_GPUS]; /* bytes of `memory` that are managed memory */
    uint32_t groups[SHARE_MAX_GPUS]; /* compute groups */
    uint64_t frozen_ns[SHARE_MAX_GPUS]; /* time that this process's channels were frozen */
    /* 1216 */
    uint32_t channel_version; /* odd while the list is being written */
    uint32_t channel_count;
    struct region_channel channels[REGION_CHANNELS]; /* 1224 to 3528 */
    uint8_t spare1[REGION_PAGE - 3528];
};

_Static_assert (sizeof (struct limits_gpu) == 64, "limits_gpu");
_Static_assert (sizeof (struct limits_node) == 32, "limits_node");
_Static_assert (sizeof (struct limits) == LIMITS_SIZE, "limits");
_Static_assert (sizeof (struct region_header) == REGION_PAGE, "region_header");
_Static_assert (sizeof (struct region_slot) == REGION_PAGE, "region_slot");

#endif
