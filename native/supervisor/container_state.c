/* See container_state.h. RFC 8259, without recursion: depth is counted, and only keys of depth 1 and 2 are compared. */
#include "container_state.h"

#include <string.h>

#define DEPTH_MOST 64u
#define KEY_SIZE 16u

struct reader {
    const char *at, *end;
    bool is_invalid; /* otherwise, where reading stops: partial */
    bool has_escape; /* the last string */
    unsigned ids, statuses; /* so many members of these names in state */
    bool is_doubtful;       /* another reader could take another value: the agent decides, with its own */
};

static void skip_blanks (struct reader *reader)
{
    while (reader->at < reader->end && strchr (" \t\r\n", *reader->at) != NULL && *reader->at != '\0')
        reader->at++;
}

/* The string that begins here, into text where it is short and has no escapes; "" otherwise. false: it does not end here. */
static bool take_string (struct reader *reader, char *text, size_t room)
{
    bool is_plain = true;
    size_t used = 0;

    text[0] = '\0';
    reader->has_escape = false;
    for (reader->at++; reader->at < reader->end; reader->at++) {
        unsigned char one = (unsigned char) *reader->at;

        if (one == '"') {
            reader->at++;
            text[is_plain && used < room ? used : 0] = '\0';
            return true;
        }
        if (one < 0x20)
            break;
        if (one == '\\') {
            is_plain = false;
            reader->has_escape = true;
            if (++reader->at == reader->end)
                return false;
        }
        if (used < room - 1)
            text[used++] = (char) one;
        else
            is_plain = false;
    }
    reader->is_invalid = reader->at < reader->end;
    return false;
}

/* A number, or true, false and null; -1 where it is no number from 0 to 2^31 - 1. */
static int32_t take_word (struct reader *reader)
{
    const char *begin = reader->at;
    int64_t value = 0;

    while (reader->at < reader->end && strchr ("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *reader->at) != NULL &&
           *reader->at != '\0') {
        char one = *reader->at++;

        value = value < 0 || one < '0' || one > '9' ? -1 : value * 10 + (one - '0');
        if (value > INT32_MAX)
            value = -1;
    }
    reader->is_invalid |= reader->at == begin;
    return (int32_t) value;
}

static bool is_name (const char *text)
{
    size_t length = strspn (text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-");

    return length != 0 && text[length] == '\0' && text[0] != '.';
}

/* One value that is no object and no array, of this key in `object` ("" : the outermost one). */
static void take_value (struct reader *reader, const char *object, const char *key, struct container_state *state)
{
    char text[CONTAINER_STATE_ID];
    int32_t number;

    if (*reader->at == '"') {
        if (!take_string (reader, text, sizeof (text)) || strcmp (object, "state") != 0)
            return;
        reader->ids += strcmp (key, "id") == 0;
        reader->statuses += strcmp (key, "status") == 0;
        if (strcmp (key, "id") == 0 && is_name (text))
            memcpy (state->id, text, sizeof (text));
        if (strcmp (key, "status") == 0)
            state->is_running = strcmp (text, "running") == 0;
        return;
    }
    number = take_word (reader);
    if (strcmp (key, "pid") == 0 && number > 0) {
        if (*object == '\0')
            state->pid = number;
        else if (strcmp (object, "state") == 0)
            state->first = number;
    }
}

enum container_state_result container_state_parse (const char *text, size_t size, struct container_state *state)
{
    struct reader reader = { .at = text, .end = text + size };
    char key[KEY_SIZE] = "", outer[KEY_SIZE] = "";
    bool is_object[DEPTH_MOST + 1] = { false }, needs_value = true, may_close = false;
    unsigned depth = 0, states = 0;

    *state = (struct container_state) { .id = "" };
    for (;;) {
        skip_blanks (&reader);
        if (reader.at == reader.end || reader.is_invalid)
            break;
        if (depth != 0 && may_close && *reader.at == (is_object[depth] ? '}' : ']')) {
            reader.at++;
            if (--depth == 0) {
                state->is_running &= !reader.is_doubtful && reader.ids == 1 && reader.statuses == 1;
                return STATE_COMPLETE;
            }
            needs_value = false;
            may_close = true;
            continue;
        }
        if (!needs_value) { /* between values */
            if (depth == 0 || *reader.at++ != ',')
                return STATE_INVALID;
            needs_value = true;
            may_close = false;
            continue;
        }
        if (depth != 0 && is_object[depth]) {
            char *name = depth == 1 ? outer : key, unused[KEY_SIZE];

            if (*reader.at != '"')
                return STATE_INVALID;
            if (!take_string (&reader, depth <= 2 ? name : unused, KEY_SIZE))
                break;
            if (depth <= 2 && reader.has_escape)
                reader.is_doubtful = true;
            if (depth == 1 && strcmp (outer, "state") == 0 && states++ != 0)
                reader.is_doubtful = true;
            skip_blanks (&reader);
            if (reader.at == reader.end)
                break;
            if (*reader.at++ != ':')
                return STATE_INVALID;
            skip_blanks (&reader);
            if (reader.at == reader.end)
                break;
        }
        if (*reader.at == '{' || *reader.at == '[') {
            if (depth == DEPTH_MOST || (depth == 0 && *reader.at != '{'))
                return STATE_INVALID;
            is_object[++depth] = *reader.at++ == '{';
            needs_value = may_close = true;
            continue;
        }
        if (depth == 0)
            return STATE_INVALID;
        if (depth == 1)
            take_value (&reader, "", outer, state);
        else if (depth == 2 && is_object[2])
            take_value (&reader, outer[0] != '\0' ? outer : "[]", key, state); /* a name that was not plain is none of ours */
        else
            take_value (&reader, "[]", "", state);
        needs_value = false;
        may_close = true;
    }
    return reader.is_invalid ? STATE_INVALID : STATE_PARTIAL;
}
