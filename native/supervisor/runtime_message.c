/* See runtime_message.h. Runs in the acceptor, which has one thread. */
#include "runtime_message.h"
#include "channel.h"
#include "drain.h"

#include "guard/clock.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What /proc says of a seccomp listener's descriptor. */
#define LISTENER "anon_inode:seccomp notify"

void runtime_message_close (struct runtime_message *message)
{
    for (unsigned i = 0; i < message->count; i++)
        close (message->files[i]);
    if (message->pidfd >= 0)
        close (message->pidfd);
    message->count = 0;
    message->listener = message->pidfd = -1;
}

bool runtime_message_is_listener (int file)
{
    char path[32], found[64];
    ssize_t size;

    snprintf (path, sizeof (path), "/proc/self/fd/%d", file);
    size = readlink (path, found, sizeof (found) - 1);
    found[size > 0 ? size : 0] = '\0';
    return strcmp (found, LISTENER) == 0;
}

const char runtime_message_late[] = "no whole message came within 5 s";

const char *runtime_message_receive (int connection, struct runtime_message *message, uint64_t until)
{
    for (;;) {
        struct pollfd waited = { .fd = connection, .events = POLLIN };
        uint64_t now = guard_now_ms ();
        unsigned room = CHANNEL_DESCRIPTORS - message->count;
        enum container_state_result result;
        ssize_t size;

        if (now >= until || poll (&waited, 1, (int) (until - now)) == 0)
            return runtime_message_late;
        size = channel_receive (connection, message->text + message->size, CONTAINER_STATE_MOST - message->size,
                                message->files + message->count, &room);
        if (size < 0)
            return "its message has too many descriptors";
        message->count += room;
        message->size += (size_t) size;
        if (size == 0)
            return message->size == 0 ? "" : "its message ends and is not JSON";
        result = container_state_parse (message->text, message->size, &message->state);
        if (result == STATE_COMPLETE)
            break;
        if (result == STATE_INVALID || message->size == CONTAINER_STATE_MOST)
            return "its message is not JSON, or longer than 1 MiB";
    }
    for (unsigned i = 0; i < message->count; i++)
        if (runtime_message_is_listener (message->files[i])) {
            if (message->listener >= 0)
                return "its message has several listeners";
            message->listener = message->files[i];
        }
    return message->listener < 0 ? "its message has no seccomp listener" : NULL;
}

void runtime_message_drain (const struct runtime_message *message)
{
    for (unsigned i = 0; i < message->count; i++)
        if (runtime_message_is_listener (message->files[i]))
            drain_apart (message->files[i]);
}
