/*
 * Allocations retained after their FREE, because UVM (or another client) still has a duplicate. A piece is given back to the quota
 * only when the guard's own duplicate is the last one. Under the tenant's lock, in the tenant's thread (what says otherwise apart).
 */
#ifndef NVC_GUARD_RETAINED_H
#define NVC_GUARD_RETAINED_H

#include "dup_probe.h"
#include "held_files.h"

#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>

struct tenant;
struct rm_call;
struct rm_piece;

struct retained_piece {
    struct retained_piece *next;
    struct probe_piece piece;
    uint32_t gpu; /* of the tenant's limits */
    uint32_t client, handle; /* its owner's */
    uint64_t serial;         /* dormant: the process that had it and ended */
    uint64_t since;          /* charged; CLOCK_MONOTONIC ns */
    bool is_foreign;         /* another tenant's, whose guard may have it in its quarantine */
};

struct retained {
    /* Duplicates of what the call frees: one in PROBE_CLIENT, guard->probe_lock held, or any number in QUARANTINE_CLIENT. */
    struct retained_piece *freeing;
    struct probe_piece held;        /* foreign.c: in QUARANTINE_CLIENT, while a call is decided */
    bool is_quarantined;            /* the latter */
    struct retained_piece *pieces;  /* that had another holder when they were last probed */
    uint64_t bytes[SHARE_MAX_GPUS]; /* their sum */
    struct retained_piece *dormant; /* of processes that ended; rm charges them until their file is closed everywhere */
    struct held_file files[HELD_FILES];
    unsigned file_count;
    uint64_t look_at, look_delay;   /* CLOCK_MONOTONIC ns; 0: nothing to look at */
    uint64_t look_not_before;       /* by what the last look took */
    uint64_t prng_state;
    bool is_client;  /* the call frees a client */
    bool is_heap;    /* the call is VID_HEAP_CONTROL */
    bool sample_all; /* something was retained once: everything that the tenant frees is probed from then on */
};

/* Around the driver's part of a call: what it frees is duplicated before it, and asked about after it. */
void retained_before_call (struct tenant *tenant, const struct rm_call *call);
void retained_after_call (struct tenant *tenant, bool is_made);
/* For held_files.c: the pieces of this list are in the quarantine; those without another holder are freed, the rest is
 * charged. */
void retained_examine_all (struct tenant *tenant, struct retained_piece *quarantined);
/* The sampling decision: whether pieces of this weight are probed when they are freed at once. */
bool retained_is_sampled (struct retained *retained, uint64_t bytes);
/* Bytes of all of them; UINT64_MAX if one was exported, so that another holder is likely. */
uint64_t retained_weight (const struct rm_piece *pieces, size_t count);
/* A piece that is in PROBE_CLIENT alone, or gone, and was freed: without another holder it goes, otherwise it is charged. With guard->probe_lock. */
void retained_settle (struct tenant *tenant, struct retained_piece *entry);
/* Its process ended, others use its file, and now they free it, or end too: it is probed like everything else, and a duplicate of before, under whichever
 * handle, would be another holder for good. made: a new one, in QUARANTINE_CLIENT, of the process `serial` (0: that lives); those of one process are
 * told apart by their handles. questions: what may be asked of the driver for all of them together: of thousands of pieces each would be compared with
 * each. Beyond it a piece stays charged for longer. With guard->probe_lock. */
void retained_forget_dormant (struct tenant *tenant, const struct retained_piece *made, uint64_t serial, unsigned *questions);
struct retained_piece *retained_duplicate (struct tenant *tenant, const struct rm_piece *piece, int file, enum probe_client to);

/* Whether pieces of a process that ended had another holder when they were last probed. */
bool retained_is_inherited (const struct retained *retained);
/* Probes retained pieces again. now: those that are due; 0: all. */
void retained_check (struct tenant *tenant, uint64_t now);
/* The next probe is soon: a process ended, and its descriptors with it. */
void retained_check_soon (struct tenant *tenant);
void retained_release (struct tenant *tenant);

#endif
