/* A hash table of charges (ledger.h). Runs as array.c, under the lock of the state. */
#include "ledger.h"

#include "shim/raw.h"

#include <string.h>

#define FIRST_PLACES 1024u

static uint64_t place_of (const struct ledger *ledger, enum ledger_kind kind, uint64_t key)
{
    return ((key ^ ((uint64_t) kind << 56)) * 0x9e3779b97f4a7c15u >> 20) & (ledger->places - 1);
}

static void put (struct ledger *ledger, const struct ledger_entry *entry)
{
    uint64_t place = place_of (ledger, entry->kind, entry->key);
    while (ledger->entries[place].kind > LEDGER_GONE)
        place = (place + 1) & (ledger->places - 1);
    if (ledger->entries[place].kind == LEDGER_FREE)
        ledger->used++;
    ledger->entries[place] = *entry;
}

/* Rebuilds the table from its live entries, twice as large if those fill more than a quarter. */
static bool renew (struct ledger *ledger)
{
    uint64_t living = 0;
    for (uint64_t place = 0; place < ledger->places; place++)
        living += ledger->entries[place].kind > LEDGER_GONE;
    struct ledger fresh = { .places = ledger->places == 0 ? FIRST_PLACES : ledger->places, .last = ledger->last };
    if (living > fresh.places / 4)
        fresh.places *= 2;
    fresh.entries = raw_pages (fresh.places * sizeof (*fresh.entries));
    if (fresh.entries == NULL)
        return false;
    for (uint64_t place = 0; place < ledger->places; place++)
        if (ledger->entries[place].kind > LEDGER_GONE)
            put (&fresh, &ledger->entries[place]);
    if (ledger->entries != NULL)
        RAW2 (SYS_munmap, ledger->entries, ledger->places * sizeof (*ledger->entries));
    *ledger = fresh;
    return true;
}

bool ledger_add (struct ledger *ledger, const struct ledger_entry *entry)
{
    if (ledger->used >= ledger->places / 2 && !renew (ledger) && ledger->used + 1 >= ledger->places)
        return false;
    put (ledger, entry);
    return true;
}

struct ledger_entry *ledger_find (struct ledger *ledger, enum ledger_kind kind, uint64_t key)
{
    if (ledger->places == 0)
        return NULL;
    for (uint64_t place = place_of (ledger, kind, key);; place = (place + 1) & (ledger->places - 1)) {
        struct ledger_entry *entry = &ledger->entries[place];
        if (entry->kind == LEDGER_FREE)
            return NULL;
        if (entry->kind == (uint32_t) kind && entry->key == key)
            return entry;
    }
}

void ledger_remove (struct ledger *ledger, struct ledger_entry *entry)
{
    (void) ledger;
    memset (entry, 0, sizeof (*entry));
    entry->kind = LEDGER_GONE;
}

struct ledger_entry *ledger_within (struct ledger *ledger, enum ledger_kind kind, uint64_t from, uint64_t length)
{
    for (uint64_t place = 0; place < ledger->places; place++) {
        struct ledger_entry *entry = &ledger->entries[place];
        if (entry->kind == (uint32_t) kind && entry->key >= from && entry->key - from < length)
            return entry;
    }
    return NULL;
}
