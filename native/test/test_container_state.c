/* A runtime's message (supervisor/container_state.c): pids and id are the runtime's, annotations the container author's. */
#include "supervisor/container_state.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

/* As runc 1.1 writes it: runtime-spec, config-linux.md, "The container process state". */
#define STATE                                                                                                                      \
    "\"state\": {\"ociVersion\": \"1.0.2\", \"id\": \"c-1_x.y+z\", \"status\": \"running\", \"pid\": 4422,\n"                      \
    "\t\"bundle\": \"/b\", \"annotations\": {\"id\": \"other\", \"pid\": 3, \"status\": \"stopped\", \"a\\\"}\": \"\\\\\", "       \
    "\"b\": [{\"pid\": 5, \"state\": {\"pid\": 6, \"id\": \"other\"}}, [], {}, -1.5e+3, true, null]}}"
#define MESSAGE "{\"ociVersion\": \"0.2.0\", \"fds\": [\"seccompFd\"], \"pid\": 4433, \"metadata\": \"m\", " STATE "}"

static struct container_state state;

/* In memory that is exactly as long: the address sanitizer sees a read behind the end. */
static enum container_state_result parse (const char *text, size_t size)
{
    char *copy = malloc (size > 0 ? size : 1);
    enum container_state_result result = STATE_INVALID;

    if (copy != NULL) {
        memcpy (copy, text, size);
        result = container_state_parse (copy, size, &state);
    }
    free (copy);
    return result;
}

static bool is_complete (const char *text) { return parse (text, strlen (text)) == STATE_COMPLETE; }

static bool is_invalid (const char *text) { return parse (text, strlen (text)) == STATE_INVALID; }

static bool is_of (const char *text, int32_t pid, int32_t first, const char *id)
{
    return is_complete (text) && state.pid == pid && state.first == first && strcmp (state.id, id) == 0;
}

static bool is_partial_before_its_end (const char *text)
{
    for (size_t size = 0; size < strlen (text); size++)
        if (parse (text, size) != STATE_PARTIAL) {
            printf ("# after %zu bytes\n", size);
            return false;
        }
    return is_complete (text);
}

/* An array of arrays below the outermost object, so many levels in all. */
static enum container_state_result nested (unsigned levels)
{
    char text[512] = "{\"a\":";

    memset (text + strlen (text), '[', levels - 1);
    memset (text + strlen (text), ']', levels - 1);
    strcat (text, "}");
    return parse (text, strlen (text));
}

/* An id with so many bytes. */
static bool is_id (size_t length)
{
    char text[1024] = "{\"state\":{\"id\":\"";

    memset (text + strlen (text), 'i', length);
    strcat (text, "\"}}");
    return is_complete (text) && strlen (state.id) == length;
}

static void members (void)
{
    tap_ok (is_of (MESSAGE, 4433, 4422, "c-1_x.y+z") && state.is_running, "a whole message: both pids, the id and the status");
    tap_ok (is_of ("{\"state\":{\"status\":\"creating\"}}", 0, 0, "") && !state.is_running,
            "another status, and nothing else said");
    tap_ok (is_of ("{\"state\":{\"pid\":1,\"id\":\"a\"},\"pid\":2}\r\n garbage", 2, 1, "a"), "in any order, until the object ends");
    tap_ok (is_of ("{\"id\":\"a\",\"status\":\"running\",\"state\":{}}", 0, 0, "") && !state.is_running,
            "id and status of state only");
    tap_ok (is_of ("{\"a\":{\"pid\":1,\"id\":\"a\"}}", 0, 0, ""), "not those of another object");
    tap_ok (is_of ("{\"\":{\"pid\":1}}", 0, 0, ""), "not those of an object without a name");
    tap_ok (is_of ("{\"\\u0061\":{\"pid\":1}}", 0, 0, ""), "not those of an object whose name has an escape");
    tap_ok (is_of ("{\"a name of many letters\":{\"pid\":1}}", 0, 0, ""), "not those of an object with a long name");
    tap_ok (is_of ("{\"state\":[\"pid\",7,{\"pid\":1,\"id\":\"a\"}],\"fds\":[{\"pid\":1}]}", 0, 0, "") &&
                is_of ("{\"state\":{\"pid\":1},\"state\":[7]}", 0, 1, ""),
            "not those in arrays");
    tap_ok (is_of ("{\"state\":{\"state\":{\"pid\":1,\"id\":\"a\"},\"x\":{\"pid\":1}}}", 0, 0, ""), "not those that lie deeper");
    tap_ok (is_of ("{\"state\":{\"annotations\":{\"x\":{}},\"pid\":1,\"id\":\"a\"}}", 0, 1, "a"), "those behind annotations");
    tap_ok (is_of ("{\"p\\u0069d\":1,\"state\":{\"i\\u0064\":\"a\"}}", 0, 0, ""), "not those whose name has an escape");
    tap_ok (is_of ("{\"pid\":1,\"pid\":2,\"state\":{\"id\":\"a\",\"id\":\"b\",\"pid\":3,\"pid\":4}}", 2, 4, "b"),
            "the last of the same");
    tap_ok (is_complete ("{\"state\":{\"status\":\"running\",\"status\":\"stopped\"}}") && !state.is_running, "also of the status");
}

static void values (void)
{
    tap_ok (is_of ("{\"pid\":2147483647}", 2147483647, 0, ""), "the greatest pid");
    tap_ok (is_of ("{\"pid\":2147483648}", 0, 0, "") && is_of ("{\"pid\":18446744073709551617}", 0, 0, ""), "no greater one");
    tap_ok (is_of ("{\"pid\":-1}", 0, 0, "") && is_of ("{\"pid\":1.0}", 0, 0, "") && is_of ("{\"pid\":1e1}", 0, 0, ""),
            "no other number");
    tap_ok (is_of ("{\"pid\":\"1\",\"state\":{\"pid\":\"1\",\"id\":1}}", 0, 0, ""), "a pid is no string, an id no number");
    tap_ok (is_of ("{\"state\":{\"id\":\"../a\"}}", 0, 0, "") && is_of ("{\"state\":{\"id\":\"a/b\"}}", 0, 0, ""),
            "an id is no path");
    tap_ok (is_of ("{\"state\":{\"id\":\".a\"}}", 0, 0, "") && is_of ("{\"state\":{\"id\":\"\"}}", 0, 0, ""),
            "nor hidden or empty");
    tap_ok (is_of ("{\"state\":{\"id\":\"a\\\"b\"}}", 0, 0, "") && is_of ("{\"state\":{\"id\":\"\\u0061\"}}", 0, 0, ""),
            "nor escaped");
    tap_ok (is_id (CONTAINER_STATE_ID - 2) && !is_id (CONTAINER_STATE_ID), "nor longer than there is room");
    tap_ok (is_of ("{\"pid\":1,\"a\":\"\\\\\",\"b\":\"\\\"\",\"c\":\"\\\\\\\"\"}", 1, 0, ""), "backslashes before a string's end");
}

int main (void)
{
    static const char *const bad[] = {
        "[]",
        "1",
        "\"a\"",
        "}",
        "null",
        "{,}",
        "{1:2}",
        "{\"a\"}",
        "{\"a\" 1}",
        "{\"a\":}",
        "{\"a\":,}",
        "{\"a\":1,}",
        "{\"a\":]}",
        "{\"a\":[}}",
        "{\"a\":[,]}",
        "{\"a\":[1,]}",
        "{\"a\":1]}",
        "{\"a\":[1 2]}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":{]}",
        "{\"a\"::1}",
        "{'a':1}",
    };

    members ();
    values ();
    tap_ok (is_partial_before_its_end (MESSAGE), "a message is partial at every length before its end");
    tap_ok (is_partial_before_its_end (" \t\r\n{ }"), "so is an empty one, behind blanks");
    tap_ok (parse ("{\0}", 3) == STATE_INVALID, "a NUL is no blank");
    tap_ok (is_invalid ("\xef\xbb\xbf{}"), "nor is a byte order mark");
    tap_ok (is_invalid ("{\"a\n\":1}") && is_invalid ("{\"a\":\"\x01\"}"), "no control character is in a string");
    for (size_t i = 0; i < sizeof (bad) / sizeof (bad[0]); i++)
        tap_ok (is_invalid (bad[i]), bad[i]);
    tap_ok (nested (64) == STATE_COMPLETE && nested (65) == STATE_INVALID, "64 levels, and not 65");
    return tap_done ();
}
