/*
 * Who else holds a piece of memory? The driver says of a process how much of its clients' memory is private (held once)
 * and how much is not (GET_PID_INFO; DupCount in _gpuCollectMemInfo), never of a single piece. So a duplicate of the
 * piece is put, alone, into a client of this process, and the process asks about itself. What is to be held on to waits
 * meanwhile in a second client that belongs to another process.
 *
 * Calls are the caller's to serialise (guard->witness_lock).
 */
#ifndef NVC_GUARD_WITNESS_H
#define NVC_GUARD_WITNESS_H

#include <stdbool.h>
#include <stdint.h>

struct witness;

enum witness_place { WITNESS_STAND, WITNESS_STORE };
struct witness_piece {
    uint64_t bytes;
    uint32_t handle; /* the same in both places */
    int32_t gpu;     /* witness_gpu */
    bool is_below_subdevice;
};

/* device_directory: where the driver's nodes are. NULL: no node can be opened, or no process started. */
struct witness *witness_open (const char *device_directory);
void witness_close (struct witness *witness);
/* -1: not one of the driver's. */
int witness_gpu (const struct witness *witness, const uint8_t uuid[16]);
/* Makes a duplicate of a piece and gives it a handle. file: a descriptor of the open file of its client. From now on
 * nobody else can duplicate it. false: it cannot be duplicated. */
bool witness_call (struct witness *witness, int file, uint32_t client, uint32_t handle, enum witness_place to,
                   struct witness_piece *piece);
bool witness_move (struct witness *witness, const struct witness_piece *piece, enum witness_place to);
void witness_free (struct witness *witness, const struct witness_piece *piece, enum witness_place from);
/* Bytes that lie there and nowhere else, and bytes that others hold too. false: the driver does not say. */
bool witness_ask (struct witness *witness, int gpu, enum witness_place place, uint64_t *private_bytes, uint64_t *shared_bytes);

#endif
