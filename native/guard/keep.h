/*
 * Memory that lives on when its handle is freed, because UVM (or whoever else) still has a duplicate of it. A piece is
 * given back to the quota only when the guard's own duplicate is the last one. Under the tenant's lock.
 */
#ifndef NVC_GUARD_KEEP_H
#define NVC_GUARD_KEEP_H

#include "witness.h"

#include "shim/share.h"

#include <stdbool.h>
#include <stdint.h>

struct tenant;
struct rm_call;
struct rm_piece;

struct kept {
    struct kept *next;
    struct witness_piece piece;
    uint32_t gpu; /* of the tenant's limits */
    uint32_t client, handle; /* its owner's */
    uint64_t serial;         /* dormant: the process that had it and ended */
};

/* A copy of an open file of the control node, so that what its clients have does not go before it is looked at. */
#define KEEP_FILES 1024u
struct held_file {
    uint32_t client;
    int file;
    uint64_t serial; /* of the process that made the client; if that is gone, of the one that uses it */
};

struct keep {
    struct kept *called; /* duplicates of what the call in hand frees: one on the stand, guard->witness_lock held, */
    bool is_stored;      /* or any number in the store */
    struct kept *pieces; /* that somebody else held, when it was last looked */
    uint64_t bytes[SHARE_MAX_GPUS]; /* their sum */
    struct kept *dormant; /* of processes that ended; rm charges them until their file is closed everywhere */
    struct held_file files[KEEP_FILES];
    unsigned file_count;
    uint64_t look_at, look_delay;   /* CLOCK_MONOTONIC ns; 0: nothing to look at */
    uint64_t dice;
    bool is_client;  /* the call in hand frees a client */
    bool is_heap;    /* the call in hand is VID_HEAP_CONTROL */
    bool was_caught; /* it kept something once: everything that it frees is looked at from then on */
};

/* Around the driver's part of a call: what it frees is duplicated before it, and asked about after it. */
void keep_before (struct tenant *tenant, const struct rm_call *call);
void keep_after (struct tenant *tenant, bool is_made);
/* keep_files.c: the call in hand was made. If it gave its client memory, a handle to some, or a channel, the client's file is
 * held. */
void keep_hold (struct tenant *tenant, const struct rm_call *call);
/* The file of a client that is held; -1: none is. */
int keep_file_of (const struct tenant *tenant, uint32_t client);
/* Holds it, and closes it in the end; at once if it is held already. serial: of the process that uses it. */
void keep_file (struct tenant *tenant, uint32_t client, int file, uint64_t serial);
/* A client is gone: its file need not be held for it. */
void keep_let_go (struct tenant *tenant, uint32_t client);
/* The process ended. What it had is duplicated, and its files are let go. */
void keep_ended (struct tenant *tenant, uint64_t serial);
/* Its files are closed everywhere, and rm forgets it: who else holds what it had? */
void keep_finish (struct tenant *tenant, uint64_t serial);
/* A thread that closes files: the driver takes long to give a process's context back. -1: they are closed at once. */
struct guard;
bool keep_start_closing (struct guard *guard);
void keep_stop_closing (struct guard *guard);
/* By it: a file that is no tenant's. */
void keep_close_later (const struct guard *guard, int file);

/* keep.c, for keep_files.c: the pieces of this list are in the store;
 * those that nobody else holds go, the rest is charged. */
void keep_settle (struct tenant *tenant, struct kept *stored);
bool keep_is_looked_at (struct keep *keep, uint64_t bytes);
struct kept *keep_call (struct tenant *tenant, const struct rm_piece *piece, int file, enum witness_place to);

/* Whether others still held, when it was last looked, what a process had that ended. */
bool keep_is_inherited (const struct keep *keep);
/* Looks whether what was held by others still is. now: at what is due; 0: at everything. */
void keep_look (struct tenant *tenant, uint64_t now);
/* The next look is soon: a process ended, and its descriptors with it. */
void keep_soon (struct tenant *tenant);
void keep_release (struct tenant *tenant);

#endif
