/*
 * What a runtime sends to DIRECTORY/listen on one connection: a container's state as JSON (container_state.h), and with it
 * descriptors, of which one is the seccomp listener. Runs in the acceptor.
 */
#ifndef NVC_SUPERVISOR_RUNTIME_MESSAGE_H
#define NVC_SUPERVISOR_RUNTIME_MESSAGE_H

#include "channel.h"
#include "container_state.h"

#include <stddef.h>
#include <stdint.h>

struct runtime_message {
    struct container_state state;
    char *text; /* CONTAINER_STATE_MOST bytes of room */
    size_t size;
    int files[CHANNEL_DESCRIPTORS];
    unsigned count;
    int listener; /* one of files; -1: none */
    int pidfd;    /* of state.pid; -1: none */
};

/* Milliseconds for a runtime's whole message. */
#define MESSAGE_MS 5000

/* NULL: the whole message is there, with one listener; otherwise what is wrong with it, "" for a connection without any. until: ms of guard_now_ms.
 * runtime_message_late: it was not whole by then; a later call goes on. */
const char *runtime_message_receive (int connection, struct runtime_message *message, uint64_t until);
extern const char runtime_message_late[];
/* Whether a descriptor is a seccomp listener. */
bool runtime_message_is_listener (int file);
/* Each listener of one that is refused: also a message that is none can have had some. */
void runtime_message_drain (const struct runtime_message *message);
/* Closes its descriptors; the text's room stays. */
void runtime_message_close (struct runtime_message *message);

#endif
