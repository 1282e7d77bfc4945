/*
 * The process's slot in the region that a container's processes share (share.h; region.c), and admission of memory
 * (admission.c).
 *
 * A slot is alive while its byte lock is held. The lock belongs to the open file description, which a descriptor *or
 * the mapping* keeps open: the descriptor is closed at once, so that a program that closes every descriptor does not
 * lose its slot. With the first allocation the file is opened again, for locks, and for the host, which recognises a
 * container's process by it. That descriptor is checked before each use, and opened anew when the program has reused
 * its number.
 *
 * Without a usable region the counters are private pages: the quota then holds for this process alone.
 */
#ifndef NVC_SHIM_REGION_H
#define NVC_SHIM_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/share.h"

struct region {
    int descriptor; /* -1: none */
    bool private;   /* no file: the counters are this process's alone */
    bool identified;
    uint32_t index; /* of this process's slot */
    struct region_header *header;
    struct region_slot *slots; /* of the whole region */
    struct region_slot *slot;  /* this process's */
    uint64_t device, inode;    /* of the file */
    const char *path;
};

/* Takes a slot of the region at `path` (NULL: there is none; the string must stay valid), or private counters when that
 * fails. false: no memory. */
bool region_attach (struct region *region, const char *path);
/* Writes the process's identity into the slot and opens the file permanently. Once, before the slot gets any usage.
 * Reads files of /proc: so a process that allocates nothing on a GPU does not. */
void region_identify (struct region *region);
/* Frees the slot. For tests: otherwise it is freed when the process ends. */
void region_detach (struct region *region);
/* Clears the slots of processes that have ended; returns how many. */
unsigned region_sweep (struct region *region);
/* region_sweep, except that with more than REGION_FEW slots at most one process sweeps in REGION_FRESH_NS: hundreds of
 * processes that query memory at once would do nothing else. Queries count a killed process's memory for that much
 * longer; admission always sweeps. */
#define REGION_FEW 16u
#define REGION_FRESH_NS 5000000u
void region_sweep_throttled (struct region *region);
/* Memory of all processes, without a sweep. pending: including requests that are not decided yet. */
uint64_t region_sum (const struct region *region, int gpu, bool pending);
uint32_t region_groups (const struct region *region, int gpu);
/* Signals a change of this process's compute groups to the others (region_header.grouped). */
void region_groups_changed (struct region *region);
/* This process's rank among those with compute groups on the GPU, by slots, and their count. */
struct region_place {
    uint32_t rank, count;
};
struct region_place region_place (const struct region *region, int gpu);
/* Whether a slot names this pid in this process's pid namespace. */
bool region_has_process (struct region *region, uint32_t pid);
void region_note (struct region *region, unsigned reason, uint32_t number);
/* The region's descriptor, opened anew if its number was reused; -1: none. */
int region_descriptor (struct region *region);

/* --- admission.c --- */
/* Reserves bytes of a GPU's quota, all or nothing; limit 0: none. The sum over the processes never exceeds the limit,
 * and every request that fits is granted, also among concurrent ones (admission.c has the argument). One call at
 * a time in a process: under the process's lock. */
bool region_reserve (struct region *region, int gpu, uint64_t bytes, uint64_t limit);
void region_refund (struct region *region, int gpu, uint64_t bytes);

/* How long an ordered admission waits for a process that has a pending request and makes no progress (stopped by a
 * debugger); after that its request counts as granted. */
#define REGION_TIMEOUT_NS 1000000000u

#endif
