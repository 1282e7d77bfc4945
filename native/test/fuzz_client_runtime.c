/* What nvc-runtime decides without Python: any bytes are read within their bounds, and a request is seen however it is written. */
#include "client/client.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

static int asks (const char *text, size_t size)
{
    char *copy = malloc (size > 0 ? size : 1);
    int answer;

    if (copy == NULL)
        exit (1);
    memcpy (copy, text, size);
    answer = runtime_may_ask (copy, size, size & 1);
    free (copy);
    return answer;
}

static int usual (const char *text, size_t size)
{
    char *copy = malloc (size + 1);
    int answer;

    if (copy == NULL)
        exit (1);
    memcpy (copy, text, size);
    answer = runtime_config_is_usual (copy, size);
    free (copy);
    return answer;
}

/* A request somewhere in the input, some of its characters as escapes: whatever surrounds it, it is seen. */
static void hide (const uint8_t *data, size_t size)
{
    static const char *const requests[] = { "NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=1", "\"share\"", "NVC_DEVICES=0" };
    static const char digits[] = "0123456789abcdef";
    size_t at = size > 0 ? data[0] % size : 0, used = at;
    const char *request = requests[size > 1 ? data[1] % 4 : 0];
    char *text = malloc (size + 6 * strlen (request) + 2);

    if (text == NULL)
        exit (1);
    if (at > 0)
        memcpy (text, data, at);
    /* The request does not continue a word of the input's. */
    text[used++] = ' ';
    for (size_t i = 0; request[i] != '\0'; i++)
        if (request[i] != '"' && size > 0 && (data[i % size] & 1)) {
            memcpy (text + used, "\\u00", 4);
            text[used + 4] = digits[request[i] >> 4];
            text[used + 5] = digits[request[i] & 15];
            used += 6;
        } else {
            text[used++] = request[i];
        }
    text[used++] = ' ';
    if (size > at)
        memcpy (text + used, data + at, size - at);
    used += size - at;
    if (!asks (text, used))
        abort ();
    free (text);
}

/* A line that changes something makes any file unusual. */
static void add_line (const uint8_t *data, size_t size)
{
    static const char line[] = "\nswarm-resource = \"X\"\n";
    char *text = malloc (size + sizeof line);

    if (text == NULL)
        exit (1);
    if (size > 0)
        memcpy (text, data, size);
    memcpy (text + size, line, sizeof line - 1);
    if (usual (text, size + sizeof line - 1))
        abort ();
    free (text);
}

static void check (const uint8_t *data, size_t size)
{
    asks ((const char *) data, size);
    usual ((const char *) data, size);
    hide (data, size);
    add_line (data, size);
}

int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
    static const char *const words[] = {
        "\n",
        "runtimes = [\"runc\", \"crun\"]",
        "[nvidia-container-runtime]",
        "#",
        " ",
        "mode = \"auto\"",
        "=",
        "[",
        "]",
        "\"",
        "\\u",
        "\\",
        "x = [1]",
        "'''",
        "share",
        "a",
        "{",
        "debug=1",
        "\\u0041",
        "\x80",
    };
    char *text = malloc (size * 32 + 1);
    size_t used = 0;

    if (text == NULL)
        return 0;
    check (data, size);
    for (size_t i = 0; i < size; i++) {
        const char *word = words[data[i] % (sizeof words / sizeof words[0])];

        memcpy (text + used, word, strlen (word));
        used += strlen (word);
    }
    check ((const uint8_t *) text, used);
    free (text);
    return 0;
}
