/* The node's prober: what prober.c (its life, the agent's messages) and prober_usage.c, prober_time.c and prober_trace.c (questions, the
 * page) share. */
#ifndef NVC_SUPERVISOR_PROBER_H
#define NVC_SUPERVISOR_PROBER_H

#include "channel.h"
#include "guard/driver_client.h"
#include "guard/usage_page.h"
#include "rm/nv_params.h"

/* Processes on a GPU, and those that a tenant's counters can add. */
#define ADDED_MOST 64u
#define PIDS_MOST 8192u

struct probed {
    struct channel_probe tenant;
    int counters, published; /* the last: -1: nothing tells that the counters are others, and they are read each time */
    bool is_read; /* what follows is what they say */
    uint64_t called_ns; /* 0: they are none */
    uint32_t pids[ADDED_MOST];
    unsigned pid_count;
};

/* What the driver's samples say of a GPU (prober_time.c). */
#define SAMPLES_MOST 72u
struct sampled {
    uint64_t last; /* the time stamp of the newest one that was taken, by the driver's clock; 0: none */
    uint64_t again_ns; /* when to ask again, after the driver answered in no way that is known */
    uint64_t sampled_ns, busy_ns;
    unsigned layout;
};

/* What the driver's trace of context switches says of a GPU (prober_trace.c). */
#define TRACE_RECORDS 16384u
#define TRACED_MOST 256u
struct traced {
    uint8_t uuid[16];
    const NV_EVENT_BUFFER_FECS_RECORD *records; /* the driver's ring, which it writes; NULL: there is no trace */
    uint64_t looked_at; /* while there was no record */
    bool is_followed; /* the next two are known */
    uint16_t number; /* of the next record */
    uint32_t at; /* where it will be */
    enum { TRACE_UNKNOWN, TRACE_IDLE, TRACE_ON } state;
    uint32_t pid; /* that is on */
    uint64_t last, until; /* by the GPU's clock: the newest record, and what is counted */
    int64_t ahead; /* of that clock before CLOCK_MONOTONIC, at least */
    uint64_t ahead_at; /* when that was so, by the latter; 0: it is not known */
    uint64_t traced_ns, untraced_ns;
};

struct prober {
    int socket, connection, page; /* socket -1: there is one connection; connection -1: there is no agent */
    uint64_t usage_at; /* the next question */
    uint64_t called_ns; /* when a tenant called the driver last */
    uint64_t used_at; /* with an agent, or a tenant's process that holds memory */
    struct driver_client client;
    int epoll; /* of all tenants' `published`, edge-triggered: nothing is read from them, which the agent hears of too */
    struct probed **tenants;
    unsigned tenant_count, room;
    struct channel_pids named; /* by the agent */
    uint32_t index; /* of the valid copy */
    uint64_t idle[RM_MAX_GPUS];
    bool has_idle[RM_MAX_GPUS];
    struct sampled sampled[RM_MAX_GPUS];
    struct traced traced[RM_MAX_GPUS];
    unsigned traced_gpus;
    struct usage now, before; /* as published last */
    uint32_t pids[PIDS_MOST]; /* of the GPU that is asked about */
    unsigned pid_count;
    struct {
        uint32_t pid;
        uint64_t busy_ns;
    } computed[SAMPLES_MOST]; /* on that GPU since the last question */
    unsigned computed_count;
    struct {
        uint32_t pid;
        uint64_t ns;
    } on[TRACED_MOST]; /* the engine, of that GPU, since the last question */
    unsigned on_count;
};

/* Which tenants called the driver last. */
void prober_publish_calls (struct prober *self);
/* Whether nothing of any tenant is left, as their supervisors say. */
bool prober_is_over (const struct prober *self);
/* prober_time.c: takes the samples of a GPU that are new, into self->computed. */
void prober_take_samples (struct prober *self, unsigned gpu);
/* prober_trace.c: takes the context switches of a GPU that are new, into self->on. What it has of the trace; NULL: there is none. */
const struct traced *prober_take_trace (struct prober *self, unsigned gpu);
/* prober_bind.c: asks the driver for traces of all GPUs, of which nodes are open. As root; no descriptor is left. */
void prober_bind_traces (struct prober *self, const char *devices);
/* Asks the driver about the processes of each GPU. */
void prober_publish_usage (struct prober *self);

#endif
