/*
 * What a runtime sends with a listener: ContainerProcessState of the OCI runtime-spec (config-linux.md, seccomp), as JSON.
 * Pure. Only what has to be known without the agent is read; annotations, which are the container author's, are skipped.
 */
#ifndef NVC_SUPERVISOR_CONTAINER_STATE_H
#define NVC_SUPERVISOR_CONTAINER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTAINER_STATE_ID 256u
/* The longest message: annotations hold whole specifications. */
#define CONTAINER_STATE_MOST (1u << 20)

struct container_state {
    char id[CONTAINER_STATE_ID]; /* state.id; "" where it is no plain name */
    int32_t pid;                 /* of the process whose filter has the listener; 0: not said */
    int32_t first;               /* state.pid: of the container's first process; 0: not said */
    bool is_running; /* state.status is "running": a process that was put into a running container; not where another reader
                                  * of the message could see another status, or another id */
};

enum container_state_result { STATE_COMPLETE, STATE_PARTIAL, STATE_INVALID };

/* text: so far `size` bytes. STATE_PARTIAL: more must come. */
enum container_state_result container_state_parse (const char *text, size_t size, struct container_state *state);

#endif
