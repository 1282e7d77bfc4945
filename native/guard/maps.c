/* See maps.h. Nothing is kept of a line but its first four fields: a path can be of any length, also beyond PATH_MAX. */
#include "maps.h"

#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

/* Two addresses, the rights and the offset of the longest line, and the blanks after them. */
#define FIELDS_MOST 64u

struct line {
    char text[FIELDS_MOST];
    unsigned used, blanks;
};

struct mapping {
    uint64_t from, to, offset;
    bool is_shared;
};

/* A number of 1 to 16 digits without sign or prefix, and what comes after it. */
static bool take_number (const char **at, char after, uint64_t *value)
{
    const char *begin = *at;

    for (*value = 0; (**at >= '0' && **at <= '9') || (**at >= 'a' && **at <= 'f'); ++*at)
        *value = *value << 4 | (uint64_t) (**at <= '9' ? **at - '0' : **at - 'a' + 10);
    return *at > begin && *at - begin <= 16 && *(*at)++ == after;
}

static bool take_rights (const char **at, bool *is_shared)
{
    static const char known[4][3] = { "r-", "w-", "x-", "sp" };

    for (unsigned i = 0; i < 4; i++, ++*at)
        if (**at != known[i][0] && **at != known[i][1])
            return false;
    *is_shared = (*at)[-1] == 's';
    return *(*at)++ == ' ';
}

/* text: ends with the blank after its fourth field, and a NUL. */
static bool parse (const char *text, struct mapping *mapping)
{
    return take_number (&text, '-', &mapping->from) && take_number (&text, ' ', &mapping->to) &&
           take_rights (&text, &mapping->is_shared) && take_number (&text, ' ', &mapping->offset) && *text == '\0';
}

struct sum {
    struct line line;
    uint64_t bytes, end; /* of the last mapping */
    bool is_any;
};

/* A line has come to its end. */
static bool add (struct sum *sum)
{
    struct mapping mapping;

    if (sum->line.blanks < 3 || sum->line.used == FIELDS_MOST)
        return false;
    sum->line.text[sum->line.used] = '\0';
    if (!parse (sum->line.text, &mapping) || mapping.from < sum->end || mapping.to <= mapping.from)
        return false;
    sum->line.used = sum->line.blanks = 0;
    sum->end = mapping.to;
    sum->is_any = true;
    if (mapping.is_shared && mapping.offset == mapping.from &&
        __builtin_add_overflow (sum->bytes, mapping.to - mapping.from, &sum->bytes))
        sum->bytes = UINT64_MAX;
    return true;
}

static bool add_text (struct sum *sum, const char *text, size_t size)
{
    struct line *line = &sum->line;

    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\n') {
            if (!add (sum))
                return false;
        } else if (line->blanks < 3 && line->used < FIELDS_MOST) {
            line->text[line->used++] = text[i];
            line->blanks += text[i] == ' ';
        }
    }
    return true;
}

enum maps_result maps_sum (int file, uint64_t *bytes)
{
    struct sum sum = { .bytes = *bytes };
    char text[16384];
    off_t at = 0;
    ssize_t size;

    for (; (size = pread (file, text, sizeof (text), at)) != 0; at += size > 0 ? size : 0) {
        if (size < 0 && errno == EINTR)
            continue;
        /* The thread ended, or the process, while its mappings were read: what they all were is not known. */
        if (size < 0)
            return errno == ESRCH && !sum.is_any ? MAPS_NONE : MAPS_UNKNOWN;
        if (!add_text (&sum, text, (size_t) size))
            return MAPS_UNKNOWN;
    }
    if (sum.line.used != 0)
        return MAPS_UNKNOWN;
    *bytes = sum.bytes;
    return sum.is_any ? MAPS_READ : MAPS_NONE;
}
