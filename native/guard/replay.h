/* Calls whose answer did not reach their thread. */
#ifndef NVC_GUARD_REPLAY_H
#define NVC_GUARD_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

struct answer;
struct seccomp_notif;
struct tenant;

#define REPLAY_HEAD 192u /* the longest announced struct (NVOS32) is 184 bytes */
/* The last call that was made for a thread. */
struct replay {
    uint64_t arguments[3]; /* of the ioctl */
    int32_t error;
    uint32_t head_size; /* 0: nothing here */
    bool undelivered;   /* no thread took the answer; otherwise it is only likely that one did */
    uint8_t head[REPLAY_HEAD];
};

/* A call that was made, and whose answer a signal kept from its thread: the thread makes the same call again, and gets
 * that answer. Recording it: tenant->head still holds what was answered. */
void replay_keep (struct tenant *tenant, const struct seccomp_notif *notification, const struct answer *answer, bool undelivered);
/* tenant->head: of the call that the thread makes now. */
bool replay_find (struct tenant *tenant, const struct seccomp_notif *notification, struct answer *answer);

#endif
