/* What the struct of a call points at: copied from the caller, replaced for the driver, written back. Under the tenant's lock, in its
 * thread. */
#ifndef NVC_GUARD_ARGUMENTS_H
#define NVC_GUARD_ARGUMENTS_H

#include "rm/rm.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct tenant;

/* To find out whether longer params were changed costs more than to write them. */
#define COMPARED_MOST 4096u

/* Where the container's own pointers lead. Every one of them is replaced before the driver sees the call, also one that leads
 * nowhere: the driver would follow it in this process. */
struct call_pointers {
    uint64_t params, rights;
    uint32_t params_size;
    struct rm_embedded embedded;
    uint8_t *pieces[RM_EMBEDDED_MAX];
    int descriptor; /* the container's, that a copy in this process stands for */
    int descriptor_copy;
};

/* Copies what head points at: what the driver reads of it, or, where that cannot be told, nothing. 0 or errno. */
int arguments_gather (struct tenant *tenant, struct rm_call *call, pid_t thread, struct call_pointers *pointers);
/* Makes the call on the tenant's copy of the descriptor, with every pointer leading into this process, and puts the container's own
 * pointers back. 0 or -errno. */
long arguments_perform (struct tenant *tenant, const struct rm_call *call, const struct call_pointers *pointers);
/* false: the caller's memory cannot be written. */
bool arguments_write_back (struct tenant *tenant, const struct rm_call *call, const struct call_pointers *pointers, pid_t thread,
                           uint64_t address);

#endif
