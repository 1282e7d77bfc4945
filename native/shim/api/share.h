/* The container's share of a GPU as the wrappers use it, and the process's charges. Implemented in share.c
 * (share_of_device, share_of_current, share_of_stream: device.c). */
#ifndef NVC_API_SHARE_H
#define NVC_API_SHARE_H

#include "ledger.h"
#include "wrap.h"

#include "shim/lock.h"
#include "shim/region.h"
#include "shim/share.h"

/* The index in region_header.notes that counts calls of cuGetExportTable (lower ones are enum rm_reason). */
#define REGION_NOTE_EXPORT_TABLE 31u

struct api {
    struct lock lock;
    bool looked, attached;
    bool good;            /* `limits` is valid; otherwise every allocation is refused */
    bool counting;        /* rm does not support this driver: this library enforces the quota */
    bool oversubscribing; /* on one GPU at least */
    const struct limits *shared;
    struct limits limits; /* a copy, of `generation` */
    uint32_t generation;
    struct region region;
    char region_path[256]; /* a copy, as the environment may change */
    struct ledger ledger;
    uint64_t answer; /* of share_is_active: generation << 32, bit 1: active, bit 0: valid; read without the lock */
};

/* The share of one GPU for a call. Zeroed: the call goes to the driver unchanged. */
struct share {
    bool blocked; /* no valid limits: every allocation is refused */
    bool counted, oversubscribed;
    int gpu; /* in the limits; RM_NO_GPU: not in there */
    CUdevice device;
    CUuuid uuid;
};

/* Whether wrappers must do anything in this process; the functions below are only called if so. */
bool share_is_active (void);
struct share share_of_current (void);
struct share share_of_device (CUdevice device);
/* Of the stream's device, which may not be the current one. */
struct share share_of_stream (CUstream stream);
struct share share_of_uuid (const uint8_t uuid[16]);

/* Reserves bytes of the quota; false: they do not fit. Always true where this library does not count. */
bool share_take (const struct share *share, uint64_t bytes);
void share_give (const struct share *share, uint64_t bytes);
/* After the driver's allocation: records the charge, or (made: false) refunds it. */
void share_keep (const struct share *share, bool made, enum ledger_kind kind, uint64_t key, uint64_t bytes, bool converted);

/* Removes an entry, before the driver's free: another thread may get the same key right after that. */
bool share_forget (enum ledger_kind kind, uint64_t key, struct ledger_entry *entry);
/* After the driver's free: refunds the charge, or (freed: false) restores the entry. */
void share_freed (const struct ledger_entry *entry, bool freed);
bool share_is_converted (uint64_t pointer);

/* Results of memory queries, in bytes; false: the driver's result stays. */
struct share_numbers {
    uint64_t total, free, used;
};
bool share_numbers (const struct share *share, uint64_t real_total, uint64_t real_free, struct share_numbers *numbers);

/* Bytes that an allocation of this size is charged with. */
uint64_t share_charge (uint64_t bytes);
/* The state, locked; NULL when there is none. */
struct api *share_lock (uint64_t *signals);
void share_unlock (struct api *api, uint64_t signals);

#endif
