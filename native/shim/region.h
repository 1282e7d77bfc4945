/*
 * One process's place in the region that a container's processes share (share.h), and admission of memory.
 *
 * A slot is alive while its byte lock is held, and the lock belongs to an open file, which lives as long as a
 * descriptor *or the mapping* does: the descriptor is closed at once, and a program that closes every descriptor does
 * not lose its slot. Another one is opened with the first memory, for locks and for the host, which knows a container's
 * process by it; it is checked before each use, and opened anew when the program took its number.
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
    bool private;   /* no file: nobody else counts */
    bool identified;
    uint32_t index; /* of the own slot */
    struct region_header *header;
    struct region_slot *slots; /* of the whole region */
    struct region_slot *slot;  /* the own one */
    uint64_t device, inode;    /* of the file */
    const char *path;
};

/* Takes a slot of the region at `path` (NULL: none is known; it must stay where it is); private counters when that
 * cannot be. false only when there is no memory at all. */
bool region_attach (struct region *region, const char *path);
/* Says in the slot who has it, and keeps the file open: once, before anything is written there that others look for the
 * owner of. Reads files of /proc, which a process without memory on a GPU is spared. */
void region_identify (struct region *region);
/* Gives the slot back (tests; a process's slot dies with it). */
void region_detach (struct region *region);
/* Clears the slots of processes that are gone. Returns how many. */
unsigned region_sweep (struct region *region);
/* Likewise, but where there are many, only if nobody has just done so: hundreds of processes that ask for memory's
 * numbers at once would do nothing else. What a process that died had is then seen for that much longer by questions;
 * admission always sweeps. */
#define REGION_FEW 16u
#define REGION_FRESH_NS 5000000u
void region_sweep_sometimes (struct region *region);
/* Sum over all processes, without a sweep. pending: also what is being asked for. */
uint64_t region_sum (const struct region *region, int gpu, bool pending);
uint32_t region_groups (const struct region *region, int gpu);
/* Tells the others that the own groups are other ones. */
void region_regrouped (struct region *region);
/* Among the processes that have compute groups on the GPU, by slots. */
struct region_place {
    uint32_t rank, count;
};
struct region_place region_place (const struct region *region, int gpu);
/* Is this a process of the container, by what the slots say? */
bool region_has_process (struct region *region, uint32_t pid);
void region_note (struct region *region, unsigned reason, uint32_t number);
/* The descriptor if it is still the region's, else a new one; -1 when there is none. */
int region_descriptor (struct region *region);

/* --- admission.c --- */
/* Takes bytes of a GPU's quota, all or nothing; limit 0: none. The sum over the processes never exceeds the limit, and
 * nobody is refused who would fit: exactly, also when many ask at once (docs/internals/shim.md has the argument). One
 * call at a time in a process: under the process's lock. */
bool region_reserve (struct region *region, int gpu, uint64_t bytes, uint64_t limit);
void region_refund (struct region *region, int gpu, uint64_t bytes);

/* How long a slow admission waits for a process that asked for memory and does not go on (stopped by a debugger); what
 * it asked for counts as granted after that. */
#define REGION_PATIENCE_NS 1000000000u

#endif
