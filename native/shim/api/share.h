/* What the container's share says of a GPU, seen from a wrapper; and what this process took of it. */
#ifndef NVC_API_SHARE_H
#define NVC_API_SHARE_H

#include "ledger.h"
#include "wrap.h"

#include "shim/lock.h"
#include "shim/region.h"
#include "shim/share.h"

/* The place in region_header.notes of private tables of the driver that were asked for (the first are rm_reason). */
#define REGION_NOTE_EXPORT_TABLE 31u

struct api {
    struct lock lock;
    bool looked, attached;
    bool good;            /* there are limits, and they can be believed; else no memory is given */
    bool counting;        /* rm does not know this driver: the quota is kept here */
    bool oversubscribing; /* for one GPU at least */
    const struct limits *shared;
    struct limits limits; /* a copy, of `generation` */
    uint32_t generation;
    struct region region;
    char region_path[256]; /* the environment's, which may change */
    struct ledger ledger;
    uint64_t answer; /* of share_is_active: generation << 32, bit 1 yes, bit 0 there is one; read without the lock */
};

/* What a call may do on one GPU. Zeroed: nothing to do for us, the driver's own way. */
struct share {
    bool blocked; /* there are no limits to be read: nothing is given */
    bool counted, oversubscribed;
    int gpu; /* in the limits, RM_NO_GPU when they do not name it */
    CUdevice device;
    CUuuid uuid;
};

/* Has any wrapper anything to do in this process? Everything below is only asked when it has. */
bool share_is_active (void);
struct share share_of_current (void);
struct share share_of_device (CUdevice device);
/* The device of a stream, which need not be the current one's. */
struct share share_of_stream (CUstream stream);
struct share share_of_uuid (const uint8_t uuid[16]);

/* Takes bytes of the quota; false when they do not fit. Always true where nothing is counted. */
bool share_take (const struct share *share, uint64_t bytes);
void share_give (const struct share *share, uint64_t bytes);
/* The allocation is made, or (made false) what it took goes back. */
void share_keep (const struct share *share, bool made, enum ledger_kind kind, uint64_t key, uint64_t bytes,
                 bool converted);

/* Takes an entry out before the driver frees the thing, since another thread may get the same key right after. */
bool share_forget (enum ledger_kind kind, uint64_t key, struct ledger_entry *entry);
/* The driver's answer to the free: the charge ends, or the entry comes back. */
void share_freed (const struct ledger_entry *entry, bool freed);
bool share_is_converted (uint64_t pointer);

/* What a question about memory is answered with; false: leave the driver's answer. */
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
