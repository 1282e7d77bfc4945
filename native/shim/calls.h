/* What the wrappers do when a call may be one on the driver. Each returns what its namesake returns, errno included. */
#ifndef NVC_SHIM_CALLS_H
#define NVC_SHIM_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "next.h"

/* Can rm have a use for this request, on any node, with any driver? A bit for each low byte. */
extern const uint32_t call_low_bytes[8];
static inline bool call_may_matter (unsigned long request)
{
    return call_low_bytes[(request & 0xff) / 32] >> (request & 31) & 1;
}
/* One of UVM's whole numbers? */
bool call_is_of_uvm (uint32_t request);
/* The second look: TCGETS2 and its kind have escapes' low bytes and the size of no struct of the driver (44 bytes, or
 * none said). */
static inline bool call_size_may_matter (unsigned long request)
{
    uint32_t number = (uint32_t) request, size = number >> 16 & 0x3fff;

    return size ? size != 44 : call_is_of_uvm (number);
}

int call_ioctl (int descriptor, unsigned long request, void *argument);
/* which: the function of these that the program called. */
void *call_mmap (enum next which, void *address, size_t length, int protection, int flags, int descriptor,
                 off_t offset);
int call_munmap (void *address, size_t length);
int call_close (int descriptor);
/* The share changed: takes it up, as a call on the driver would. */
void call_follow (void);
int call_dup (int descriptor);
/* Of two different descriptors. */
int call_dup2 (int from, int to);
int call_dup3 (int from, int to, int flags);

/* The next managed mapping of the calling thread is charged to this GPU alone. */
void call_next_managed (const uint8_t uuid[16]);
/* The same, exported: libnvc-shim-api.so finds them by their names (weak symbols). */
void nvc_shim_next_managed (const uint8_t uuid[16]);
int nvc_shim_managed_refused (void);

#endif
