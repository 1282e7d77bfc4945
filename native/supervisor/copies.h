/*
 * The monitor's copies of what its supervisor has of attached processes: the driver leaves a stopped channel off for ever, so when the
 * supervisor dies the monitor starts all of them again. Attached processes are not guarded; they live on.
 */
#ifndef NVC_SUPERVISOR_COPIES_H
#define NVC_SUPERVISOR_COPIES_H

#include "channel.h"

#define COPIES_PROCESSES 64u

struct copies_process;
struct copies {
    struct copies_process *processes[COPIES_PROCESSES];
    int pidfds[COPIES_PROCESSES]; /* readable when a process has ended */
    unsigned count;
};

/* A process that was attached by this request; descriptors are duplicated. 0 or -errno. */
int copies_add (struct copies *copies, const struct channel_attach *request, const int *files, unsigned count);
/* Its memory on the GPU goes with the last copy of its descriptors. */
void copies_forget (struct copies *copies, unsigned place);
/* Starts every channel, more often than it can have been stopped. */
void copies_start (const struct copies *copies);

#endif
