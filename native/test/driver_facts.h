/*
 * What the driver reads of a call, by its own structs: rm_driver.h, which tools/driver_pointers.py writes. A number leads
 * elsewhere when its struct holds pointers or a descriptor.
 */
#ifndef NVC_TEST_DRIVER_FACTS_H
#define NVC_TEST_DRIVER_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NONE (-1) /* no descriptor */
#define ANY (-1)  /* nothing tells how much is moved */
#define ELSEWHERE (-1) /* as size: it leads elsewhere, and rm has no row for it */

struct driver_pointer {
    uint16_t at;
    int16_t count_at;  /* where its count of elements lies, or ANY */
    uint16_t element;  /* bytes */
    uint16_t is_square; /* count times count of them */
};

struct driver_params {
    uint32_t number;
    uint16_t since, until; /* branches */
    int32_t size;          /* bytes, or ELSEWHERE */
    bool is_unsized;       /* the driver reads all of it, whatever size is named */
    int16_t descriptor_at; /* or NONE */
    uint8_t pointer_count;
    struct driver_pointer pointers[4];
};

#define LEADS(number, since, until)                                                                                                \
    {                                                                                                                              \
        number, since, until, ELSEWHERE, 0, NONE, 0,                                                                               \
        {                                                                                                                          \
            {                                                                                                                      \
                0                                                                                                                  \
            }                                                                                                                      \
        }                                                                                                                          \
    }
#define PLAIN(number, since, until, size)                                                                                          \
    {                                                                                                                              \
        number, since, until, size, 0, NONE, 0,                                                                                    \
        {                                                                                                                          \
            {                                                                                                                      \
                0                                                                                                                  \
            }                                                                                                                      \
        }                                                                                                                          \
    }
#define FULL(number, since, until, size, is_unsized, descriptor_at, pointer_count, ...)                                            \
    {                                                                                                                              \
        number, since, until, size, is_unsized, descriptor_at, pointer_count, { __VA_ARGS__ }                                      \
    }

#ifdef DRIVER_FACTS
#include DRIVER_FACTS
#else
#include "rm_driver.h"
#endif

#undef LEADS
#undef PLAIN
#undef FULL

#define FACTS_OF(table) table, sizeof (table) / sizeof ((table)[0])

static inline bool facts_lead (const struct driver_params *facts)
{
    return facts->size == ELSEWHERE || facts->pointer_count != 0 || facts->descriptor_at != NONE;
}

/* NULL: the driver of this branch has no such number, or nothing is to be said about it. */
static inline const struct driver_params *facts_find (const struct driver_params *table, size_t count, unsigned branch,
                                                      uint32_t number)
{
    for (size_t i = 0; i < count; i++)
        if (table[i].number == number && table[i].since <= branch && branch <= table[i].until)
            return &table[i];
    return NULL;
}

/* Bytes that the driver moves through the pointer; params: its struct. */
static inline uint64_t facts_bytes (const struct driver_pointer *pointer, const void *params)
{
    uint32_t count = 1;

    if (pointer->count_at != ANY)
        __builtin_memcpy (&count, (const uint8_t *) params + pointer->count_at, sizeof (count));
    /* As in embedded_param_copy.c, which squares 32 bits. */
    return (uint64_t) (pointer->is_square ? count * count : count) * pointer->element;
}

#endif
