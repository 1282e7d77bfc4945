/*
 * The duplicate probe: whether a piece of memory has holders beside the guard. The driver says of a process how much of its clients'
 * memory is private (held once) and how much is not (GET_PID_INFO; DupCount in _gpuCollectMemInfo), never of a single piece. So a
 * duplicate of the piece is put, alone, into a client of this process (PROBE_CLIENT), and the process asks about itself. Pieces that
 * are retained elsewhere wait in a second client (QUARANTINE_CLIENT), which belongs to another process.
 *
 * Called by the tenant's threads; the caller serialises (guard->probe_lock).
 */
#ifndef NVC_GUARD_DUP_PROBE_H
#define NVC_GUARD_DUP_PROBE_H

#include <stdbool.h>
#include <stdint.h>

struct dup_probe;
struct privsep;
struct rm_source;

enum probe_client { PROBE_CLIENT, QUARANTINE_CLIENT };
struct probe_piece {
    uint64_t bytes;
    uint32_t handle; /* the same in both clients */
    int32_t gpu;     /* probe_gpu */
    bool is_below_subdevice;
};

/* NULL: no node can be opened, or no process started. */
struct dup_probe *probe_open (struct privsep *privsep);
void probe_close (struct dup_probe *probe);
/* -1: not one of the driver's. */
int probe_gpu (const struct dup_probe *probe, const uint8_t uuid[16]);
/* Makes a duplicate of a piece and gives it a handle. file: a descriptor of the open file of its client. From now on
 * no other client can duplicate it. NONE: nothing can. LOST: others may have a duplicate, and this client has none: the driver has no such
 * object any more, or no room for one more handle. */
enum probe_result { PROBE_MADE, PROBE_NONE, PROBE_LOST };
enum probe_result probe_duplicate (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, enum probe_client to,
                                   struct probe_piece *piece);
bool probe_move (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client to);
/* One without a handle: nothing. */
void probe_free (struct dup_probe *probe, const struct probe_piece *piece, enum probe_client from);
/* Imports what a descriptor stands for into QUARANTINE_CLIENT. false: the driver does not. */
bool probe_import (struct dup_probe *probe, const struct rm_source *source, int gpu, struct probe_piece *piece);
/* Makes a duplicate of an object in QUARANTINE_CLIENT; which others may duplicate it stays as it is. file: of its client's open file, by which this client is
 * allowed to; -1: its owner did. false: the driver does not. */
bool probe_take (struct dup_probe *probe, int file, uint32_t client, uint32_t handle, int gpu, struct probe_piece *piece);
/* Bytes of a piece of video memory; 0: it is none, or the driver does not say. */
uint64_t probe_bytes (const struct dup_probe *probe, const struct probe_piece *piece, enum probe_client which);
/* Whether two pieces of QUARANTINE_CLIENT are the same memory (memIsDuplicate). What the driver does not say is not. */
bool probe_is_same (const struct dup_probe *probe, const struct probe_piece *piece, const struct probe_piece *other);
/* Bytes that only this client holds, and bytes that others hold too. false: the driver does not say. */
bool probe_query (struct dup_probe *probe, int gpu, enum probe_client which, uint64_t *private_bytes, uint64_t *shared_bytes);

#endif
