/* A runtime's message holds what a container's author wrote. Its result stays when more comes, and an id is a name of a file. */
#include "fuzz.h"
#include "supervisor/container_state.h"

#include <stdlib.h>
#include <string.h>

#define PREFIXES 8u

static enum container_state_result parse (const char *text, size_t size, struct container_state *state)
{
    char *copy = malloc (size > 0 ? size : 1);
    enum container_state_result result;

    if (copy == NULL)
        exit (1);
    memcpy (copy, text, size);
    result = container_state_parse (copy, size, state);
    free (copy);
    if (memchr (state->id, '\0', sizeof (state->id)) == NULL || strchr (state->id, '/') != NULL || state->id[0] == '.' ||
        state->pid < 0 || state->first < 0)
        abort ();
    return result;
}

static void check (const char *text, size_t size)
{
    struct container_state whole, part;
    enum container_state_result result = parse (text, size, &whole);

    for (size_t i = 1; i <= PREFIXES; i++)
        switch (parse (text, size - size * i / (PREFIXES + 1), &part)) {
        case STATE_COMPLETE:
            if (result != STATE_COMPLETE || strcmp (part.id, whole.id) != 0 || part.pid != whole.pid || part.first != whole.first ||
                part.is_running != whole.is_running)
                abort ();
            break;
        case STATE_INVALID:
            if (result != STATE_INVALID)
                abort ();
            break;
        case STATE_PARTIAL:
            break;
        }
}

int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
    static const char *const words[] = {
        /* A generated input has mostly the first five. */
        "\"state\":{",
        "\"pid\":7",
        ",",
        "\"id\":\"a\"",
        "}",
        "\"status\":\"running\"",
        "\"id\":\"a/b\"",
        "\"id\":\".a\"",
        "\"annotations\":{",
        "\"pid\":2147483648",
        "\"\\u0061\":",
        "{",
        "[",
        "]",
        "\"",
        "\\",
        " ",
        "null",
        ".",
        "\x01",
    };
    char *text = malloc (size * 20 + 2);
    size_t used = 1;

    if (text == NULL)
        return 0;
    check ((const char *) data, size);
    text[0] = '{';
    for (size_t i = 0; i < size; i++) {
        const char *word = words[data[i] % (sizeof (words) / sizeof (words[0]))];

        memcpy (text + used, word, strlen (word));
        used += strlen (word);
    }
    check (text, used);
    free (text);
    return 0;
}
