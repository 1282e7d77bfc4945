/* Packets with descriptors on SOCK_SEQPACKET sockets: between agent and monitor, and between monitor and supervisor. */
#ifndef NVC_SUPERVISOR_CHANNEL_H
#define NVC_SUPERVISOR_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The first word of a packet. nvc/guard/channel.py has the same numbers; a test compares them. */
enum channel_operation {
    CHANNEL_REPLY = 0, /* result; what a request asked for */
    CHANNEL_START =
        1, /* a tenant: struct channel_start; descriptors: plan; for the supervisor, counters; the node's usage page if known; for the
                          supervisor, an eventfd of what it publishes, and the container's cgroup.kill, where there is one */
    CHANNEL_OPEN = 2, /* reply: struct channel_state; descriptors: counters, for reading; the eventfd */
    CHANNEL_LISTEN = 3, /* struct channel_listen; descriptor: a listener */
    CHANNEL_ATTACH = 4, /* struct channel_attach; descriptors: pidfd, then those of the channels */
    CHANNEL_REMOVE = 5, /* the tenant is over: its channels are started, supervisor and monitor end */
    CHANNEL_DONE = 6, /* agent to acceptor: the listener is another monitor's */
    CHANNEL_ADMIT = 7, /* acceptor to agent: struct channel_admit; descriptors: the runtime's message (a memfd), a listener */
    CHANNEL_PUBLISH = 8, /* monitor to supervisor: counters are of now */
    CHANNEL_REFUSED = 9, /* agent to acceptor: what has the filter is to end (drain.h) */
    CHANNEL_JOIN =
        10, /* one more container of the tenant's group: struct channel_container; descriptor: its listener; to the supervisor: its
                            cgroup.kill, where there is one */
    CHANNEL_LEAVE = 11, /* that container has ended: struct channel_container. -EBUSY: not wholly */
    CHANNEL_PROBE =
        12, /* agent to prober: struct channel_probe; descriptors: a tenant's counters, for reading, and the eventfd of what
                            is published, if it has one; none: the tenant is over */
    CHANNEL_PIDS = 13, /* agent to prober: struct channel_pids: it asks about these too, until the next ones */
};

#define CHANNEL_PATH 256u
#define CHANNEL_DESCRIPTORS 16u
#define CHANNEL_CHANNELS 1024u
#define CHANNEL_PIDS_MOST 4096u

struct channel_head {
    uint32_t operation;
    int32_t result; /* of a reply: 0 or -errno */
};
struct channel_start {
    struct channel_head head;
    uint32_t tenant;
    int32_t pid; /* the container's first process, host pid; or a process that is attached */
    uint32_t user, spare; /* the supervisor's uid and gid */
    uint64_t start_time; /* of that process, field 22 of /proc/PID/stat */
    char devices[CHANNEL_PATH]; /* the directory of the driver's nodes */
    char directory[CHANNEL_PATH]; /* of the tenant: the monitor's socket is made there; "": none */
};
struct channel_listen {
    struct channel_head head;
    int32_t first; /* the container's first process, as the runtime says; 0: it does not */
    uint32_t spare;
};
struct channel_container {
    struct channel_head head;
    int32_t pid; /* its first process, host pid */
    uint32_t spare;
    uint64_t start_time; /* of that process */
};
struct channel_admit {
    struct channel_head head;
    uint32_t descriptors, spare; /* that came with the message */
};
struct channel_state {
    struct channel_head head;
    uint32_t tenant, version;
    int32_t monitor, supervisor; /* pids */
};
struct channel_attach {
    struct channel_head head;
    uint32_t count, spare;
    uint64_t device, inode; /* of the control node, as in limits */
    struct {
        uint32_t client, subdevice, channel, place; /* place: of its descriptor, among those that came after the pidfd */
    } channels[CHANNEL_CHANNELS];
};

struct channel_probe {
    struct channel_head head;
    uint32_t tenant, gpu_count;
    uint8_t uuids[32][16]; /* of its GPUs */
};
struct channel_pids {
    struct channel_head head;
    uint32_t count, spare;
    int32_t pids[CHANNEL_PIDS_MOST];
};

struct sockaddr_un;
/* The address of a socket in this directory, also where the path is longer than an address may be: by a descriptor of the directory,
 * which is returned; the caller closes it when the address was used. -1: errno. */
int channel_address (const char *directory, const char *name, struct sockaddr_un *address);
/* A connection to that socket, or -errno. EAGAIN: as many as it has room for wait there; this one does not, for a process that does not
 * accept would keep the caller. */
int channel_connect (const char *directory, const char *name);
/* false: with errno. */
bool channel_send (int socket, const void *packet, size_t size, const int *descriptors, unsigned count);
/* Bytes; 0: the other end is closed; -1: errno. count: room for descriptors, then how many came. Descriptors beyond the
 * room are closed and the packet is refused (EMSGSIZE). */
ssize_t channel_receive (int socket, void *packet, size_t size, int *descriptors, unsigned *count);
/* Whether the process at the other end was root's when it connected. */
bool channel_is_root (int socket);
/* CHANNEL_REPLY with this result. */
bool channel_reply (int socket, int result);

#endif
