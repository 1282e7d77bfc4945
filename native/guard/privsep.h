/*
 * Privilege separation: what the supervisor, which has no rights, asks its monitor for (native/supervisor/privileged.c). Each request
 * names a process or thread of the container; the monitor checks that it is the container's. None is made in the steady state: a
 * process's memory and the files of its clients are asked for once.
 *
 * Packets on a SOCK_SEQPACKET socket of its own, one request and its reply at a time; native-endian.
 */
#ifndef NVC_GUARD_PRIVSEP_H
#define NVC_GUARD_PRIVSEP_H

#include "rm/rm.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum privsep_operation {
    PRIVSEP_PROCESS =
        1, /* thread; reply: pid, start_time, numbers: its pid in each pid namespace, from the host's on inwards (NSpid);
                          * descriptors: a pidfd, /proc/PID/mem (O_RDWR) */
    PRIVSEP_FILE =
        2, /* process, number: a descriptor of its; reply: node; descriptor: a copy, of a node of the driver's only, that was opened in
                       * the tenant's containers, or on the host */
    PRIVSEP_FILES = 3, /* process; reply: numbers of its descriptors that are control nodes */
    PRIVSEP_MAPS = 4, /* process; descriptor: /proc/PID/maps */
    PRIVSEP_SYSCALL = 5, /* process, thread; reply: state, arguments */
    PRIVSEP_SPACE = 6, /* process, thread; descriptors: a counter that execve switches on, /proc/PID/mem; pid 0: a counter of the
                          * monitor's, twice */
    PRIVSEP_KILL = 7, /* process: SIGKILL */
    PRIVSEP_ENDING = 10, /* process; reply: state: it is ending */
    PRIVSEP_NAMED = 9, /* as FILE, wherever it was opened */
    PRIVSEP_DEVICE = 8, /* number: 0: the control node; n: of the container's n-th GPU, from 1 on; descriptor: opened */
};

#define PRIVSEP_NUMBERS 1024u
#define PRIVSEP_LEVELS 8u /* of pid namespaces */

enum privsep_thread_state { THREAD_ENDED, THREAD_RUNNING, THREAD_WAITING };

struct privsep_request {
    uint32_t operation;
    int32_t pid; /* of a process; host */
    uint64_t start_time; /* its, field 22 of /proc/PID/stat */
    int32_t thread, number;
};
struct privsep_reply {
    int32_t result; /* 0 or -errno */
    int32_t pid;
    uint64_t start_time;
    uint32_t node; /* enum rm_node */
    uint32_t state; /* enum privsep_thread_state; of a process: its parent has the same memory */
    uint64_t arguments[4]; /* of the system call in which the thread waits: its number, and the first three */
    uint32_t count, spare;
    int32_t numbers[PRIVSEP_NUMBERS]; /* as many as count says */
};
#define PRIVSEP_REPLY_LEAST offsetof (struct privsep_reply, numbers)

struct privsep {
    int socket; /* -1: nothing can be asked for */
    pthread_mutex_t lock; /* of a request and its reply; no other lock is taken under it */
};

void privsep_begin (struct privsep *self, int socket);
void privsep_end (struct privsep *self);

struct process;

struct privsep_process {
    pid_t pid;
    uint64_t start_time;
    unsigned levels; /* of numbers; 0: there are more */
    uint32_t numbers[PRIVSEP_LEVELS];
    int pidfd, memory;
    bool shares_memory; /* with its parent */
};

/* Each waits for the monitor, which can be kept waiting by the process: without the tenant's lock (wait.h). 0 or -errno: -ESRCH: the
 * process or thread has ended; -EPERM: it is not the container's. Descriptors are the caller's. */
int privsep_process (struct privsep *self, pid_t thread, struct privsep_process *found);
/* -ENOTTY: it is no node of the driver's; -EXDEV: it was opened in another container; is_named, by a call: wherever it was. */
int privsep_file (struct privsep *self, const struct process *process, int number, bool is_named, enum rm_node *node);
/* How many; up to PRIVSEP_NUMBERS of them. */
int privsep_files (struct privsep *self, const struct process *process, int32_t *numbers);
/* -ESRCH: it has none any more; -EAGAIN: some may not have been there to be read. */
int privsep_maps (struct privsep *self, const struct process *process);
/* THREAD_WAITING: arguments of the system call. */
int privsep_syscall (struct privsep *self, const struct process *process, pid_t thread, enum privsep_thread_state *state,
                     uint64_t arguments[4]);
/* process NULL: a counter of the monitor's, twice. */
int privsep_space (struct privsep *self, const struct process *process, pid_t thread, int files[2]);
/* Whether it is ending (proc_is_ending of the monitor). */
bool privsep_is_ending (struct privsep *self, const struct process *process);
int privsep_kill (struct privsep *self, const struct process *process);
int privsep_device (struct privsep *self, int number);

#endif
