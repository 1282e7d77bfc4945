/* Hash tables of links, and pools of equal cells, with memory from the host. Both grow, both give back at the end. */
#include "state.h"

#define FIRST_CAPACITY 64u
/* A process that only asks something has a file, a client, an object: together a page. */
#define FIRST_CHUNK 512u
#define LAST_CHUNK 262144u

/* Handles count up from a base; a multiplication spreads them over the upper bits (Fibonacci hashing). */
static size_t bucket_of (uint64_t key, size_t capacity) { return (size_t) ((key * 0x9e3779b97f4a7c15u) >> 20) & (capacity - 1); }

struct link *table_find (const struct table *table, uint64_t key)
{
    struct link *link;

    if (table->capacity == 0)
        return NULL;
    for (link = table->buckets[bucket_of (key, table->capacity)]; link != NULL; link = link->next)
        if (link->key == key)
            return link;
    return NULL;
}

/* Twice as many buckets. Without memory for them a table that has some goes on, with longer chains. */
static bool grow (struct rm *rm, struct table *table)
{
    size_t capacity = table->capacity == 0 ? FIRST_CAPACITY : table->capacity * 2;
    struct link **buckets = rm->host->allocate (rm->context, capacity * sizeof (struct link *));

    if (buckets == NULL)
        return table->capacity != 0;
    for (size_t i = 0; i < table->capacity; i++) {
        struct link *link = table->buckets[i];

        while (link != NULL) {
            struct link *next = link->next;
            size_t bucket = bucket_of (link->key, capacity);

            link->next = buckets[bucket];
            buckets[bucket] = link;
            link = next;
        }
    }
    table_release (rm, table);
    table->buckets = buckets;
    table->capacity = capacity;
    return true;
}

bool table_add (struct rm *rm, struct table *table, struct link *link)
{
    size_t bucket;

    if (table->count >= table->capacity && !grow (rm, table))
        return false;
    bucket = bucket_of (link->key, table->capacity);
    link->next = table->buckets[bucket];
    table->buckets[bucket] = link;
    table->count++;
    return true;
}

void table_remove (struct table *table, struct link *link)
{
    struct link **at;

    for (at = &table->buckets[bucket_of (link->key, table->capacity)]; *at != NULL; at = &(*at)->next)
        if (*at == link) {
            *at = link->next;
            table->count--;
            return;
        }
}

void table_release (struct rm *rm, struct table *table)
{
    if (table->buckets != NULL)
        rm->host->release (rm->context, table->buckets, table->capacity * sizeof (struct link *));
    table->buckets = NULL;
    table->capacity = 0;
}

void pool_prepare (struct pool *pool, enum pool_kind kind, size_t size)
{
    pool->kind = kind;
    pool->cell = size + sizeof (uint64_t);
}

static uint64_t *mark_of (const struct pool *pool, void *cell) { return (uint64_t *) (void *) ((uint8_t *) cell + pool->cell) - 1; }

static void put_back (struct pool *pool, void *cell)
{
    *mark_of (pool, cell) = 0;
    IN_ORDER ();
    __builtin_memcpy (cell, &pool->free, sizeof (pool->free));
    pool->free = cell;
}

void *pool_take (struct rm *rm, struct pool *pool)
{
    uint8_t *cell;

    if (pool->free == NULL) {
        size_t size = pool->chunk < FIRST_CHUNK ? FIRST_CHUNK : pool->chunk;
        struct chunk *chunk = rm->host->allocate (rm->context, size);

        if (chunk == NULL)
            return NULL;
        chunk->next = pool->chunks;
        chunk->kind = pool->kind;
        IN_ORDER ();
        chunk->size = size;
        pool->chunks = chunk;
        pool->chunk = size < LAST_CHUNK ? size * 2 : LAST_CHUNK;
        cell = (uint8_t *) chunk + CHUNK_HEAD;
        for (; cell + pool->cell <= (uint8_t *) chunk + size; cell += pool->cell)
            put_back (pool, cell);
    }
    cell = pool->free;
    __builtin_memcpy (&pool->free, cell, sizeof (pool->free));
    __builtin_memset (cell, 0, pool->cell);
    IN_ORDER ();
    *mark_of (pool, cell) = MARK + pool->kind;
    pool->count++;
    return cell;
}

void pool_give (struct pool *pool, void *cell)
{
    put_back (pool, cell);
    pool->count--;
}

void pool_release (struct rm *rm, struct pool *pool)
{
    while (pool->chunks != NULL) {
        struct chunk *chunk = pool->chunks;

        pool->chunks = chunk->next;
        rm->host->release (rm->context, chunk, chunk->size);
    }
    pool->free = NULL;
}
