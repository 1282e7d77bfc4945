/* Fields of structs that are bytes to us: any alignment, little-endian as both platforms are. */
#ifndef NVC_RM_BYTES_H
#define NVC_RM_BYTES_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t get32 (const void *from, size_t at)
{
    uint32_t value;
    __builtin_memcpy (&value, (const uint8_t *) from + at, sizeof (value));
    return value;
}

static inline uint64_t get64 (const void *from, size_t at)
{
    uint64_t value;
    __builtin_memcpy (&value, (const uint8_t *) from + at, sizeof (value));
    return value;
}

static inline void set32 (void *to, size_t at, uint32_t value) { __builtin_memcpy ((uint8_t *) to + at, &value, sizeof (value)); }

static inline void set64 (void *to, size_t at, uint64_t value) { __builtin_memcpy ((uint8_t *) to + at, &value, sizeof (value)); }

#endif
