/* The process's charged allocations by kind and key, so that a free refunds the charge of its allocation. ledger.c. */
#ifndef NVC_API_LEDGER_H
#define NVC_API_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum ledger_kind {
    LEDGER_FREE = 0, /* an empty place */
    LEDGER_GONE,     /* a removed entry: lookups continue after it */
    LEDGER_POINTER,  /* key: device address */
    LEDGER_ARRAY,    /* key: handle */
    LEDGER_MIPMAP,   /* key: handle */
    LEDGER_PHYSICAL, /* key: a serial number; memory of cuMemCreate */
    LEDGER_HANDLE,   /* key: handle of cuMemCreate; link: the physical memory */
    LEDGER_MAPPING   /* key: device address; link: the physical memory */
};

struct ledger_entry {
    uint64_t key;
    uint64_t bytes; /* charged; of a mapping: its length */
    uint64_t link;
    uint32_t kind;
    int32_t gpu;         /* in the limits; RM_NO_GPU: not charged */
    uint32_t references; /* handles and mappings of a piece of physical memory; times a handle was retained */
    bool converted;      /* managed memory in place of device memory */
};

struct ledger {
    struct ledger_entry *entries;
    uint64_t places, used, last;
};

/* All under the lock of the state. false: no memory; the entry is missing then, and its charge is never refunded. */
bool ledger_add (struct ledger *ledger, const struct ledger_entry *entry);
/* NULL when there is none. Valid until the next ledger_add. */
struct ledger_entry *ledger_find (struct ledger *ledger, enum ledger_kind kind, uint64_t key);
void ledger_remove (struct ledger *ledger, struct ledger_entry *entry);
/* An entry of the kind with a key in [from, from + length); NULL: none. */
struct ledger_entry *ledger_within (struct ledger *ledger, enum ledger_kind kind, uint64_t from, uint64_t length);

#endif
