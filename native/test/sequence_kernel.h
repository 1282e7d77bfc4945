/*
 * A kernel for sequences of calls (sequence.h): processes, their descriptors and mappings, the driver's nodes on a simulated
 * manager, /proc as the guard reads it, a clock, and one announced call at a time. The guard's own files are linked with it by
 * --wrap: what they ask the kernel is answered here, and no system call is made.
 */
#ifndef NVC_TEST_SEQUENCE_KERNEL_H
#define NVC_TEST_SEQUENCE_KERNEL_H

#include "manager.h"

#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define TASKS 16u
#define TASK_FILES 12u
#define TASK_MAPS 8u
/* Above every pid and every descriptor of this machine. */
#define FIRST_PID 5000000
#define FIRST_THREAD 6000000
#define GUARD_PID(tenant) (7000000 + 2 * (pid_t) (tenant)) /* and the next one: the quarantine's */
#define FIRST_DESCRIPTOR 0x100000
#define LISTENER 0x200000
#define MAPPED_AT UINT64_C (0x7f0000000000)

struct description { /* an open file description */
    struct description *next, **place; /* of all */
    unsigned references, tenant; /* tenant: of the process that opened it, by a mount of that one's container */
    enum { FILE_NODE, FILE_TEXT, FILE_PIDFD, FILE_SPACE, FILE_PIPE, FILE_WATCH } what;
    enum manager_node node;
    struct manager_file *file;
    struct task *task;
    struct address_space *space;
    char text[2048];
    size_t at, size;
};

struct mapping {
    struct description *file; /* of UVM; NULL: free */
    uint64_t address, bytes;
};

struct address_space {
    unsigned users, references; /* processes; and open /proc/PID/mem */
    struct mapping maps[TASK_MAPS];
};

struct task {
    bool is_alive;
    bool is_killed; /* it ends as soon as the guard has returned */
    pid_t pid;
    unsigned tenant, executed; /* executed: so often */
    struct address_space *space;
    struct description *files[TASK_FILES];
};

struct kernel {
    struct manager *manager;
    uint64_t now;      /* ns */
    uint64_t random;   /* what getrandom gives, made of it */
    pid_t caller;      /* which calls the driver now */
    struct task *task; /* that is a process of a container; NULL: a guard */
    struct task tasks[TASKS];
    unsigned task_count;
    pid_t next_pid, next_thread;
    struct task *thread_tasks[256]; /* of FIRST_THREAD and so on */
    uint64_t thread_calls[256][3];  /* the ioctl that such a thread is in; [1] 0: none */
    struct seccomp_notif *notification; /* that the listener has; NULL: none */
    struct seccomp_notif_resp response;
    void *(*closer) (void *); /* the last thread that was to be started: it closes the guard's files */
    void *closer_argument;
};
extern struct kernel kernel;

const uint8_t *kernel_uuid (void); /* of the GPU, 16 bytes */
uint32_t kernel_instance (void);   /* of the GPU's device: what its ALLOC names */
void kernel_begin (struct manager *manager, uint64_t seed);
void kernel_end (void);
struct task *task_find (pid_t thread); /* NULL: it is over */
struct task *task_start (unsigned tenant, struct task *parent, bool shares_memory);
void task_end (struct task *task);
void task_execute (struct task *task);
/* An open file of a node; slot: of the task. */
bool task_open (struct task *task, unsigned slot, enum manager_node node);
void task_close (struct task *task, unsigned slot);
void task_pass (struct task *task, unsigned slot, struct task *to, unsigned to_slot);
bool task_map (struct task *task, unsigned slot, uint64_t bytes);
void task_unmap (struct task *task, unsigned place);
struct description *description_new (int what);
/* The tenant whose process, or whose guard, opened it. */
unsigned kernel_tenant_of (const struct manager_file *file);
struct description *description_hold (struct description *description);
void description_drop (struct description *description);
/* A descriptor of the guards' for it; and what a descriptor is, NULL: none of this kernel's. */
int descriptor_new (struct description *description);
struct description *descriptor_find (int descriptor);
/* What is read of an open /proc/PID/maps. */
ssize_t kernel_read_maps (struct description *file, void *to, size_t size, size_t at);
/* The driver's part of a call, by this process; 0 or -errno. */
int kernel_call (struct task *task, struct description *description, uint32_t request, void *argument);

#endif
