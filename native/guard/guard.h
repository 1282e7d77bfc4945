/*
 * The guard: enforces the shares of containers from outside, by seccomp user notification.
 *
 * The supervisor (native/supervisor) is linked with it, configures it and reads it; nothing of a container's calls passes
 * through Python. A guard has one tenant, which is described by the same `struct limits` as the shim's file (native/shim/share.h);
 * native/rm makes every decision, in posture GUARD.
 *
 * Every function may be called from any thread, and none waits for a container or for a call that the driver makes for one: what
 * asks about a tenant whose thread is in such a call answers -EBUSY after some milliseconds, what schedules it is done as soon as the
 * call is over. guard_destroy takes one second, if threads do not end. Numbers are returned as 0 or -errno unless said otherwise.
 */
#ifndef NVC_GUARD_H
#define NVC_GUARD_H

#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>

#define GUARD_REASONS 32 /* enum rm_reason */

struct guard;

/* What the guard has counted and knows of a tenant; a snapshot. */
struct guard_status {
    uint64_t memory[SHARE_MAX_GPUS];  /* bytes charged, managed memory included */
    uint64_t managed[SHARE_MAX_GPUS]; /* of them, mappings of managed memory */
    uint64_t driver_usage[SHARE_MAX_GPUS];   /* what the driver says that the tenant's processes hold; 0: not asked yet */
    uint32_t groups[SHARE_MAX_GPUS];  /* compute groups */
    uint32_t slice[SHARE_MAX_GPUS];   /* microseconds, as last written; 0: libcuda's own */
    uint32_t frozen[SHARE_MAX_GPUS];  /* 1: its channels are off now */
    uint64_t frozen_ns[SHARE_MAX_GPUS];
    uint64_t notifications, performed, continued, refused;
    uint64_t reasons[GUARD_REASONS];
    uint64_t handling_ns; /* sum over notifications, from receiving to answering */
    uint32_t processes, listeners;
    uint32_t waits_for, spare; /* the process, or thread, that the tenant's thread waits for; 0: it does not */
    uint64_t waits_ns;         /* for so long */
    uint64_t called_ns;        /* its last announced call (CLOCK_MONOTONIC); 0: none yet */
};

/* Something worth a line in the log, or an audit. */
struct guard_event {
    uint64_t when_ns; /* CLOCK_REALTIME */
    uint32_t tenant;
    uint32_t reason; /* enum rm_reason */
    uint32_t number; /* escape, class or control */
    uint32_t pid;    /* host pid */
    uint64_t repeated; /* of the same tenant, reason and number since the last such event that was read */
};

struct guard_process {
    uint32_t pid; /* host */
    uint32_t clients;
    uint64_t start_time; /* field 22 of /proc/PID/stat */
    uint64_t memory[SHARE_MAX_GPUS];
};

/* privsep: a socket, which is the guard's from then on: what takes rights is asked for by it (privsep.h). NULL on failure, with errno. */
struct guard *guard_create (int privsep);
/* 1 when the guard has a client of the driver of its own; without one, memory of dead processes is refunded at once. */
int guard_sees_driver (const struct guard *guard);
/* 1 when the kernel tells of an execve of processes that map managed memory (perf_event_open(2)); without that, what such a
 * process mapped before an execve is not charged if others share its address space. */
int guard_sees_exec (const struct guard *guard);
/* No call is answered any more, and all channels are off, until the processes have ended. */
void guard_abandon (struct guard *guard);
/* Ends the threads; listeners that guard owns are closed, everything frozen is thawed first. */
void guard_destroy (struct guard *guard);
/*
 * The node's usage page (usage_page.h), which begins with which tenants called the driver last (struct guard_contention), written by the
 * prober some times a second. Without it, or while it is not written, others are taken to call the driver, and the guard asks it about
 * usage itself. The descriptor is the guard's from then on.
 */
#define GUARD_CONTENTION_MAGIC 0x4f434e564eu
struct guard_contention {
    uint64_t magic, written_ns; /* CLOCK_MONOTONIC */
    struct {
        uint64_t tenant, called_ns;
    } last[2]; /* of two tenants: one of them is another one */
};
void guard_set_contention (struct guard *guard, int file);
/* What is called when the guard holds a tenant no longer; the event is there, and the container is to be ended. By a thread of the guard's:
 * when channels are to be off and could not be stopped for half a second (late.h), and again each 100 ms. By the thread that has no memory
 * for a record (tenant_allocate): it may hold every lock of the tenant, and ends this process when it returns. */
void guard_on_failure (struct guard *guard, void (*act) (void *context), void *context);
/* Readable (eventfd) when events wait. */
int guard_event_descriptor (const struct guard *guard);
/* A tenant's status may be another one now. */
void guard_changed (struct guard *guard);
/* Readable (eventfd) after guard_changed, until guard_take_changes; a change then makes it readable again. */
int guard_changed_descriptor (const struct guard *guard);
void guard_take_changes (struct guard *guard);
/* Readable (timerfd) when a tenant's thread has waited for a while for something of a process: guard_tenant_status is due. */
int guard_waits_descriptor (const struct guard *guard);
/* Up to capacity events, oldest first; returns how many. */
int guard_events (struct guard *guard, struct guard_event *events, uint32_t capacity);

/* `id`: the caller's number for the tenant. -EOPNOTSUPP: a driver version that rm has no tables for; -EEXIST: it has its tenant. */
int guard_tenant_add (struct guard *guard, uint32_t id, const struct limits *limits);
int guard_tenant_update (struct guard *guard, const struct limits *limits);
/* The listener's descriptor is duplicated; the caller keeps and closes its own. */
int guard_tenant_listen (struct guard *guard, int listener);
/* To be called every some 100 ms: a tenant whose thread has waited for two seconds for something of a process, such as memory
 * in a file that does not answer, is frozen until it goes on, for nothing sees what the tenant does meanwhile. */
int guard_tenant_status (struct guard *guard, struct guard_status *status);
int guard_tenant_processes (struct guard *guard, struct guard_process *processes, uint32_t capacity);
/* 1 when every listener has hung up, no process is left, and no memory that lives on without one. */
int guard_tenant_gone (struct guard *guard);

/* Scheduling: puts what was decided into force. */
int guard_tenant_slice (struct guard *guard, uint32_t gpu, uint32_t microseconds);
/* How many calls of the driver it took, one after the other; -errno. -EAGAIN: a channel could not be stopped, and it is to be asked
 * again. */
int guard_tenant_freeze (struct guard *guard, uint32_t gpu, uint32_t frozen);

/*
 * Phases: a tenant with a cap is on in its part of a period and off in the rest of it (phase_thread.c, phase.h). One
 * thread a GPU keeps the time. While the tenant has a phase, only the thread may call guard_tenant_freeze for the GPU.
 *
 * since and until in microseconds of a period that begins at multiples of `period` of CLOCK_MONOTONIC; until may lie beyond the
 * period's end and goes on at 0 then. period (1000 to 1000000) 0: always on.
 */
struct guard_phase {
    uint32_t period, since, until, spare;
};
struct guard_phases;
/*
 * Processes that are not guarded can have phases too ("attached"): their tenant's number has this bit, and the guard has no
 * tenant then. Their channels are stopped and started through copies of their descriptors.
 */
#define GUARD_ATTACHED 0x80000000u
struct guard_channel {
    uint32_t client, subdevice, channel;
    int32_t descriptor; /* of this process: a copy of the process's own, which is the control node */
};
struct guard_attached {
    uint64_t frozen_ns; /* of the process that was off for longest */
    uint32_t processes; /* that live */
    uint32_t frozen;
};
/* Of the guard's tenant, or of attached processes. The guard must be destroyed after it. NULL on failure, with errno. */
struct guard_phases *guard_phases_create (struct guard *guard, bool are_attached);
/* Starts all channels, ends the threads. */
void guard_phases_destroy (struct guard_phases *phases);
/* The phase on a GPU, by its index in the limits, from now on. -EINVAL, -EAGAIN (no thread): the one before stays in force. */
int guard_phases_set (struct guard_phases *phases, uint32_t gpu, const struct guard_phase *phase);
/* One more process, of phases of attached ones; pidfd and descriptors are duplicated, and held until it ends. node: the control
 * node, as in limits. Channels of one descriptor, client and subdevice lie side by side. -EBADF: a descriptor is not that node. */
int guard_attach (struct guard_phases *phases, int pidfd, const struct limits_node *node, const struct guard_channel *channels,
                  uint32_t count);
int guard_attached_status (struct guard_phases *phases, struct guard_attached *status);

#endif
