// The request to the agent.
#include "client.h"

#include <string.h>
#include <stdio.h>
#include <sys/stat.h>

struct writer {
    char *buffer;
    size_t used; // above REQUEST_LIMIT: it did not fit
};

static void put (struct writer *writer, const void *bytes, size_t length)
{
    if (writer->used <= REQUEST_LIMIT && length <= REQUEST_LIMIT - writer->used) {
        memcpy (writer->buffer + writer->used, bytes, length);
        writer->used += length;
    } else {
        writer->used = REQUEST_LIMIT + 1;
    }
}

static uint32_t put_all (struct writer *writer, char *const texts[])
{
    uint32_t count = 0;
    for (; texts[count] && writer->used <= REQUEST_LIMIT; count++)
        put (writer, texts[count], strlen (texts[count]) + 1);
    return count;
}

static mode_t current_mask (void)
{
    mode_t mask = umask (077);
    umask (mask);
    return mask;
}

int request_wanted (const char *name, char *const words[])
{
    int command = 0, pid = 0;
    const char *last = "";
    if (strcmp (name, CDI_HOOK) == 0)
        return *words && **words != '-';
    if (runtime_wanted ())
        return 1;
    for (; *words; words++) {
        last = *words;
        command |= strcmp (last, "configure") == 0;
        pid |= strncmp (last, "--pid", 5) == 0;
    }
    if (strcmp (name, "nvc-py") == 0 || strcmp (name, "nvidia-container-cli") == 0)
        return command && pid;
    return strcmp (last, "prestart") == 0 || strcmp (last, "createRuntime") == 0;
}

// Digits and a fraction, rounded up; what else a number may look like counts as the greatest.
static int seconds_of (const char *text)
{
    int seconds = 0;
    for (; *text >= '0' && *text <= '9' && seconds < TIMEOUT_LIMIT; text++)
        seconds = seconds * 10 + (*text - '0');
    if (*text == '.')
        text += 1 + strspn (text + 1, "0123456789");
    return *text || seconds >= TIMEOUT_LIMIT ? TIMEOUT_LIMIT : seconds + 1;
}

int request_timeout (char *const words[])
{
    int most = TIMEOUT_SECONDS;
    for (; *words; words++) {
        size_t length = strcspn (*words, "=");
        // An option may be shortened. A word that means something else makes the wait longer, never shorter.
        if (length < 3 || strncmp (*words, "--timeout", length) != 0)
            continue;
        const char *value = (*words)[length] ? *words + length + 1 : words[1];
        int seconds = value ? seconds_of (value) : 0;
        if (seconds > most)
            most = seconds;
    }
    return most;
}

size_t request_make (const struct place *place, char *const words[], char *const environment[], char *buffer)
{
    // The server's workers have their modules in memory: they must be those of this installation.
    char file[PATH_LIMIT];
    struct stat status;
    int length = snprintf (file, sizeof file, "%s/nvc/__init__.py", place->library);
    if (length < 0 || (size_t) length >= sizeof file || stat (file, &status) != 0)
        return 0;

    struct request_header header = { .magic = REQUEST_MAGIC, .mask = (uint32_t) current_mask () };
    header.stamp[0] = (uint64_t) status.st_dev;
    header.stamp[1] = (uint64_t) status.st_ino;
    header.stamp[2] = (uint64_t) status.st_ctim.tv_sec;
    header.stamp[3] = (uint64_t) status.st_ctim.tv_nsec;
    struct writer writer = { buffer, 0 };
    put (&writer, &header, sizeof header);
    put (&writer, place->name, strlen (place->name) + 1);
    header.words = put_all (&writer, words);
    header.variables = put_all (&writer, environment);
    if (writer.used > REQUEST_LIMIT)
        return 0;
    memcpy (buffer, &header, sizeof header);
    return writer.used;
}
