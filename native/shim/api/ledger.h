/* What this process has: allocations by kind and key, so that a free gives back what its allocation took. */
#ifndef NVC_API_LEDGER_H
#define NVC_API_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum ledger_kind {
    LEDGER_FREE = 0, /* an empty place */
    LEDGER_GONE,     /* a place that was used: look-ups go on behind it */
    LEDGER_POINTER,  /* key: device address */
    LEDGER_ARRAY,    /* key: handle */
    LEDGER_MIPMAP,   /* key: handle */
    LEDGER_PHYSICAL, /* key: a number of our own; memory of cuMemCreate */
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
    bool converted;      /* managed memory in place of what was asked for */
};

struct ledger {
    struct ledger_entry *entries;
    uint64_t places, used, last;
};

/* All under the lock of the state. false when there is no memory: the entry is not known then, and its charge stays. */
bool ledger_add (struct ledger *ledger, const struct ledger_entry *entry);
/* NULL when there is none. Valid until the next ledger_add. */
struct ledger_entry *ledger_find (struct ledger *ledger, enum ledger_kind kind, uint64_t key);
void ledger_remove (struct ledger *ledger, struct ledger_entry *entry);
/* The next entry of a kind with a key from `from` on for `length`, in no order; NULL when there is none left. */
struct ledger_entry *ledger_within (struct ledger *ledger, enum ledger_kind kind, uint64_t from, uint64_t length);

#endif
