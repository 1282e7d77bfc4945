/*
 * Allocations retained after their FREE, because UVM (or another client) still has a duplicate. A piece is given back to the quota
 * only when the guard's own duplicate is the last one. Under the tenant's lock, in the tenant's thread (what says otherwise apart).
 */
#ifndef NVC_GUARD_RETAINED_H
#define NVC_GUARD_RETAINED_H

#include "dup_probe.h"

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
};

/* A copy of an open file of the control node, so that what its clients have does not go before it is probed. */
#define HELD_FILES 1024u
struct held_file {
    uint32_t client;
    int file;
    uint64_t serial; /* of the process that made the client; if that is gone, of the one that uses it */
};

struct retained {
    /* Duplicates of what the call frees: one in PROBE_CLIENT, guard->probe_lock held, or any number in QUARANTINE_CLIENT. */
    struct retained_piece *freeing;
    bool is_quarantined;            /* the latter */
    struct retained_piece *pieces;  /* that had another holder when they were last probed */
    uint64_t bytes[SHARE_MAX_GPUS]; /* their sum */
    struct retained_piece *dormant; /* of processes that ended; rm charges them until their file is closed everywhere */
    struct held_file files[HELD_FILES];
    unsigned file_count;
    uint64_t look_at, look_delay;   /* CLOCK_MONOTONIC ns; 0: nothing to look at */
    uint64_t prng_state;
    bool is_client;  /* the call frees a client */
    bool is_heap;    /* the call is VID_HEAP_CONTROL */
    bool sample_all; /* something was retained once: everything that the tenant frees is probed from then on */
};

/* Around the driver's part of a call: what it frees is duplicated before it, and asked about after it. */
void retained_before_call (struct tenant *tenant, const struct rm_call *call);
void retained_after_call (struct tenant *tenant, bool is_made);
/* held_files.c: the current call was made. If it gave its client memory, a handle to some, or a channel, the client's file is
 * held. */
void held_files_after_call (struct tenant *tenant, const struct rm_call *call);
/* The file of a client that is held; -1: none is. */
int held_file_of (const struct tenant *tenant, uint32_t client);
/* Holds it, and closes it in the end; at once if it is held already. serial: of the process that uses it. */
void held_file_add (struct tenant *tenant, uint32_t client, int file, uint64_t serial);
/* A client is gone: its file need not be held for it. */
void held_file_release (struct tenant *tenant, uint32_t client);
/* The process ended. What it had is duplicated, and its files are closed. */
void held_files_process_ended (struct tenant *tenant, uint64_t serial);
/* Its files are closed everywhere, and rm forgets it: what it had is probed for other holders. */
void held_files_process_released (struct tenant *tenant, uint64_t serial);
/* A thread that closes files: the driver takes long to give a process's context back. -1: they are closed at once. */
struct guard;
bool closer_start (struct guard *guard);
void closer_stop (struct guard *guard);
/* By it: a file that is no tenant's. */
void closer_add (const struct guard *guard, int file);

/* retained.c, for held_files.c: the pieces of this list are in the quarantine; those without another holder are freed, the rest is
 * charged. */
void retained_examine_all (struct tenant *tenant, struct retained_piece *quarantined);
/* The sampling decision: whether a piece of this size is probed when it is freed. */
bool retained_is_sampled (struct retained *retained, uint64_t bytes);
struct retained_piece *retained_duplicate (struct tenant *tenant, const struct rm_piece *piece, int file, enum probe_client to);

/* Whether pieces of a process that ended had another holder when they were last probed. */
bool retained_is_inherited (const struct retained *retained);
/* Probes retained pieces again. now: those that are due; 0: all. */
void retained_check (struct tenant *tenant, uint64_t now);
/* The next probe is soon: a process ended, and its descriptors with it. */
void retained_check_soon (struct tenant *tenant);
void retained_release (struct tenant *tenant);

#endif
