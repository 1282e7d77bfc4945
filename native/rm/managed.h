/*
 * Managed memory in two steps: its charge is taken before the mapping is made, and what the mapping takes the place of
 * is given up only when it is there. rm_map_managed is both at once.
 */
#ifndef NVC_RM_MANAGED_H
#define NVC_RM_MANAGED_H

#include "rm/rm.h"

struct rm_mapping {
    int gpu; /* that was said; RM_NO_GPU: every one that is registered with UVM */
    uint64_t length;
    uint64_t reserved[RM_MAX_GPUS]; /* bytes */
};

/* Reserves what a mapping at `address` needs beside what is charged at these addresses already. false: over a quota, or
 * not a range of addresses; nothing was reserved. */
bool rm_mapping_begin (struct rm *rm, int gpu, uint64_t address, uint64_t length, struct rm_mapping *mapping);
/* It was made, at this address: a mapping at a fixed one takes the place of others. */
void rm_mapping_made (struct rm *rm, const struct rm_mapping *mapping, uint64_t address);
/* It was not: everything is as before. */
void rm_mapping_refused (struct rm *rm, const struct rm_mapping *mapping);
/* The first address from `address` on where managed memory is charged; UINT64_MAX: none below address + length. */
uint64_t rm_managed_from (const struct rm *rm, uint64_t address, uint64_t length);

#endif
