/*
 * Which files of the driver were opened in a tenant's containers. An open file keeps the mount by which it was opened, wherever it is passed
 * to and in whichever way it is opened again, and containers have no mount in common. Runs in the monitor's thread for requests.
 */
#ifndef NVC_SUPERVISOR_MOUNTS_H
#define NVC_SUPERVISOR_MOUNTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MOUNTS_KNOWN 16u /* each node of the driver's can have one of its own */

/* Those by which files were found to be the tenant's. The first one is forgotten for the next: it is looked for again. */
struct mounts {
    struct {
        uint64_t id;
        int held; /* O_PATH: the mount stays, and its number means no other one, when it is unmounted */
    } known[MOUNTS_KNOWN];
    unsigned count;
};

/* owns: container_owns, or containers_own. file: open in this process; pid, thread: the process that it is a copy of, and a thread with its descriptors.
 * Files of the host's first mount namespace pass too: no container can open one. false also where it cannot be known. */
bool mounts_have (struct mounts *self, bool (*owns) (const void *containers, pid_t pid, pid_t thread, uint64_t mount),
                  const void *containers, int file, pid_t pid, pid_t thread);
void mounts_close (struct mounts *self);

#endif
