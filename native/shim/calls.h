/*
 * The slow paths of the interposed functions, for calls that may concern the driver (calls.c; call_mmap, call_munmap
 * and call_next_managed: mappings.c; the tables of requests: requests.c). Each returns what its namesake returns, errno
 * included.
 */
#ifndef NVC_SHIM_CALLS_H
#define NVC_SHIM_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "next.h"

/* Whether rm handles a request with this low byte, on any node, with any driver: one bit each. */
extern const uint32_t call_low_bytes[8];
static inline bool call_may_matter (unsigned long request) { return call_low_bytes[(request & 0xff) / 32] >> (request & 31) & 1; }
/* Whether the request is one of UVM's, which have no size and type fields. */
bool call_is_of_uvm (uint32_t request);
/* The second filter: TCGETS2 and similar requests share low bytes with the driver's escapes, but encode a size that no
 * struct of the driver has (44 bytes, or none). */
static inline bool call_size_may_matter (unsigned long request)
{
    uint32_t number = (uint32_t) request, size = number >> 16 & 0x3fff;

    return size ? size != 44 : call_is_of_uvm (number);
}

int call_ioctl (int descriptor, unsigned long request, void *argument);
/* which: NEXT_MMAP or NEXT_MMAP64, the function that the program called. */
void *call_mmap (enum next which, void *address, size_t length, int protection, int flags, int descriptor, off_t offset);
int call_munmap (void *address, size_t length);
int call_close (int descriptor);
/* Applies a changed share, as a call on the driver does. */
void call_apply_changes (void);
int call_dup (int descriptor);
/* Of two different descriptors. */
int call_dup2 (int from, int to);
int call_dup3 (int from, int to, int flags);

/* The next managed mapping of the calling thread is charged to this GPU alone. */
void call_next_managed (const uint8_t uuid[16]);
/* Exported: weak symbols in the libraries of native/shim/api. managed_refused: refused_take (refused.h). */
void nvc_shim_next_managed (const uint8_t uuid[16]);
int nvc_shim_managed_refused (void);

#endif
