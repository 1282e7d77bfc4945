/*
 * Memory that lives on when its handle is freed, because UVM (or whoever else) still has a duplicate of it. A piece is given
 * back to the quota only when the guard's own duplicate is the last one. Under the tenant's lock.
 */
#ifndef NVC_GUARD_KEEP_H
#define NVC_GUARD_KEEP_H

#include "witness.h"

#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>

struct tenant;
struct rm_call;

struct kept {
    struct kept *next;
    struct witness_piece piece;
    uint32_t gpu; /* of the tenant's limits */
};

struct keep {
    struct kept *stand;  /* duplicates of what the call in hand frees; guard->witness_lock is held as long as there are some */
    struct kept *pieces; /* that somebody else held, when it was last looked */
    uint64_t bytes[SHARE_MAX_GPUS]; /* their sum */
    uint64_t look_at, look_delay;   /* CLOCK_MONOTONIC ns; 0: nothing to look at */
    uint64_t dice;
    bool is_heap;    /* the call in hand is VID_HEAP_CONTROL */
    bool was_caught; /* it kept something once: everything that it frees is looked at from then on */
};

/* Around the driver's part of a call: what it frees is duplicated before it, and asked about after it. */
void keep_before (struct tenant *tenant, const struct rm_call *call);
void keep_after (struct tenant *tenant, bool is_made);
/* Looks whether what was held by others still is. now: at what is due; 0: at everything. */
void keep_look (struct tenant *tenant, uint64_t now);
/* The next look is soon: a process ended, and its descriptors with it. */
void keep_soon (struct tenant *tenant);
void keep_release (struct tenant *tenant);

#endif
