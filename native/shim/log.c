/*
 * The log: with NVC_SHIM_LOG=PATH each note is appended to PATH as one line. Without it there is no output.
 *
 * Runs in every process of a container that uses a GPU, under the process's lock.
 */
#include <fcntl.h>

#include "identity.h"
#include "plain.h"
#include "process.h"
#include "raw.h"

#define LOG_VARIABLE "NVC_SHIM_LOG"

static char *put (char *at, const char *end, const char *text)
{
    while (*text && at < end)
        *at++ = *text++;
    return at;
}

static char *put_number (char *at, const char *end, uint64_t value, unsigned base)
{
    char digits[24], *digit = digits + sizeof digits - 1;

    *digit = '\0';
    do
        *--digit = "0123456789abcdef"[value % base];
    while ((value /= base) > 0);
    return put (at, end, digit);
}

void log_note (struct process *process, const char *word, uint32_t number)
{
    char line[160], *at = line;
    const char *end = line + sizeof line - 1, *path;
    long descriptor;

    if (!process->log_path_read) {
        process->log_path_read = true;
        path = identity_secure () ? NULL : identity_variable (LOG_VARIABLE);
        if (path && strlen (path) < sizeof process->pages->log)
            memcpy (process->pages->log, path, strlen (path) + 1);
    }
    if (!process->pages->log[0])
        return;
    descriptor = RAW4 (SYS_openat, AT_FDCWD, process->pages->log,
                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (descriptor < 0)
        return;
    at = put (at, end, "nvc-shim: pid ");
    at = put_number (at, end, process->pages->token.pid, 10);
    at = put (at, end, ": ");
    at = put (at, end, word);
    at = put (at, end, " 0x");
    at = put_number (at, end, number, 16);
    *at++ = '\n';
    RAW3 (SYS_write, descriptor, line, at - line);
    RAW1 (SYS_close, descriptor);
}
