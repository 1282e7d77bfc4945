/*
 * Functions of <string.h>, the four that a compiler calls implicitly among them. libc's memcpy has a newer symbol
 * version (GLIBC_2.14) than this library may import, and fewer imports let it load with more libcs. Hidden symbols.
 * Runs in every process of a container, on any thread.
 */
#include <stddef.h>
#include <stdint.h>

#include "plain.h"

#define NO_LOOP_TO_CALL __attribute__ ((optimize ("no-tree-loop-distribute-patterns")))

/* Eight bytes of any type at any alignment: slots and limits are pages, too large for byte-wise loops. */
struct word {
    uint64_t value;
} __attribute__ ((packed, may_alias));

NO_LOOP_TO_CALL void *memcpy (void *restrict to, const void *restrict from, size_t size)
{
    unsigned char *target = to;
    const unsigned char *source = from;

    for (; size >= sizeof (struct word); size -= sizeof (struct word)) {
        ((struct word *) target)->value = ((const struct word *) source)->value;
        target += sizeof (struct word);
        source += sizeof (struct word);
    }
    while (size--)
        *target++ = *source++;
    return to;
}

NO_LOOP_TO_CALL void *memmove (void *to, const void *from, size_t size)
{
    unsigned char *target = to;
    const unsigned char *source = from;

    if (target <= source)
        while (size--)
            *target++ = *source++;
    else
        while (size--)
            target[size] = source[size];
    return to;
}

NO_LOOP_TO_CALL void *memset (void *to, int byte, size_t size)
{
    unsigned char *target = to;
    uint64_t word = (unsigned char) byte * 0x0101010101010101u;

    /* Unrolled: rm's record of an object is twenty words, for which the loop itself would cost as much again. */
    for (; size >= 4 * sizeof (struct word); size -= 4 * sizeof (struct word)) {
        for (int i = 0; i < 4; i++)
            ((struct word *) target)[i].value = word;
        target += 4 * sizeof (struct word);
    }
    for (; size >= sizeof (struct word); size -= sizeof (struct word)) {
        ((struct word *) target)->value = word;
        target += sizeof (struct word);
    }
    while (size--)
        *target++ = (unsigned char) byte;
    return to;
}

NO_LOOP_TO_CALL int memcmp (const void *one, const void *other, size_t size)
{
    const unsigned char *left = one, *right = other;

    for (; size--; left++, right++)
        if (*left != *right)
            return *left - *right;
    return 0;
}

NO_LOOP_TO_CALL size_t strlen (const char *text)
{
    size_t length = 0;

    while (text[length])
        length++;
    return length;
}

NO_LOOP_TO_CALL int strcmp (const char *one, const char *other)
{
    while (*one && *one == *other)
        one++, other++;
    return (unsigned char) *one - (unsigned char) *other;
}

int strncmp (const char *one, const char *other, size_t size)
{
    while (size && *one && *one == *other)
        one++, other++, size--;
    return size ? (unsigned char) *one - (unsigned char) *other : 0;
}
