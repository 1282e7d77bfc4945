/*
 * Programs that try to get round a guarded share, by the driver's own calls and nothing else: they run against a simulated
 * driver and a real one alike. Each prints key=value lines; the tests say what the values must be.
 * Numbers and layouts: nv_escape.h, nvos.h, uvm_ioctl.h of the open kernel modules.
 */
#ifndef ATTACK_H
#define ATTACK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t) 1 << 20)
#define GIB ((uint64_t) 1 << 30)
#define REQUEST(number, size) (0xc0000000u | ((uint32_t) (size) << 16) | ('F' << 8) | (number))

struct alloc { /* escape 0x2b */
    uint32_t client, parent, object, number;
    uint64_t params, rights;
    uint32_t params_size, flags, status, spare;
};
struct control { /* 0x2a */
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct release { /* 0x29 */
    uint32_t client, parent, object, status;
};
struct duplicate { /* 0x34 */
    uint32_t client, parent, object, other_client, other_object, flags, status;
};
struct memory { /* params of class 0x40 and its kin */
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attributes, attributes2, format, compression, zcull, spare0;
    uint64_t low, high, size, alignment, offset, limit, address;
    uint32_t context_dma[5], spare1;
};
_Static_assert (sizeof (struct alloc) == 48 && sizeof (struct control) == 32 && sizeof (struct release) == 16, "");
_Static_assert (sizeof (struct duplicate) == 28, "");
_Static_assert (offsetof (struct memory, size) == 64 && offsetof (struct memory, attributes) == 24, "");

/* What every attack begins with: a client with a device and a subdevice on the first GPU. */
struct bed {
    int file, node;
    uint32_t client, device, subdevice, next;
};
struct bed bed_open (void);
/* The same on files that are open; the status of the first call that failed. */
uint32_t bed_begin (struct bed *bed);
/* The status of the call; 0x10000 + errno when the system call failed. */
uint32_t bed_alloc (struct bed *bed, uint32_t parent, uint32_t handle, uint32_t number, void *params);
uint32_t bed_memory (struct bed *bed, uint32_t *handle, uint64_t size);
/* How many pieces of 1 GiB there were to be had, up to 100. */
unsigned bed_fill (struct bed *bed);
uint32_t bed_control (const struct bed *bed, uint32_t object, uint32_t command, void *params, uint32_t size);
uint32_t bed_free (const struct bed *bed, uint32_t handle);
struct memory memory_of (uint64_t size);
/* Says `key=value`, and waits for a line of stdin. */
void say (const char *key, uint64_t value);
void hold (void);
/* The guard looks at a mapping a little after it is made. A test that knows sends a line when it has looked; the time is
 * for a test that cannot. */
void let_it_be_seen (void);
int send_descriptor (int socket, int descriptor);
int receive_descriptor (int socket);

/* uvm_bed.c */
#define UVM_BASE 0x700000000000u
struct uvm {
    int file;
    uint8_t uuid[16];
};
/* The status of a call; 0x10000 + errno when the system call failed. */
uint32_t uvm_call (int file, unsigned long number, void *params, size_t status_at);
/* An address space of the GPU that UVM manages. is_told: every step's status is said. */
struct uvm uvm_begin (struct bed *bed, bool is_told);
/* Maps memory at the GPU's address UVM_BASE + place GiB. */
uint32_t uvm_map (const struct uvm *uvm, const struct bed *bed, unsigned place, uint32_t handle, uint64_t size);

/* A system call by the 32-bit entry; -errno. Of other.c, on x86-64. */
long entry_32 (long number, long one, long two, long three);

typedef void attack (int argc, char **argv);
attack attack_type, attack_wrapped, attack_heap, attack_classes, attack_duplicate, attack_sizes, attack_pointers, attack_scheduling,
    attack_foreign;                                                            /* calls.c */
attack attack_size_race, attack_command_race, attack_class_race, attack_event_race, attack_heir_race, attack_orphan_race,
    attack_storm, attack_flood; /* races.c */
attack attack_child, attack_passed, attack_queued, attack_exec, attack_bomb, attack_traced, attack_victim,
    attack_reused; /* processes.c */
attack attack_entries, attack_uring, attack_churn, attack_unchanged, attack_batch, attack_contexts;                /* other.c */
attack attack_uvm, attack_uvm_tree, attack_uvm_heir, attack_uvm_refused, attack_unseen, attack_uvm_child, attack_uvm_busy,
    attack_uvm_thread, attack_uvm_slow, attack_uvm_heap, attack_uvm_tables; /* uvm.c */
attack attack_uvm_clone, attack_uvm_exec, attack_uvm_exec_thread, attack_idle; /* heirs.c */
attack attack_stalled; /* stalls.c */
attack attack_uvm_path, attack_uvm_zombies; /* maps.c */
attack attack_params; /* params.c */
attack attack_phantom, attack_race_free, attack_uvm_batch; /* ledger.c */
attack attack_fuse; /* fuse.c */
attack attack_group_race, attack_rests, attack_waits, attack_starts, attack_resets; /* outcomes.c */
attack attack_keep_race, attack_keep_uvm; /* orphans.c */
attack attack_shared; /* shares.c */
attack attack_lend, attack_borrow; /* lend.c */
attack attack_give, attack_take, attack_receive; /* pass.c */
attack attack_requests, attack_controls, attack_pids; /* requests.c */

#endif
