/*
 * The interposed functions, and with the two nvc_shim_ functions the library's only exported symbols. Each checks
 * first, with one or two loads, whether the call can concern the driver; nearly none does.
 *
 * Runs in every process of a container, on any thread, in signal handlers too, and without a lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"
#include "next.h"
#include "process.h"
#include "refused.h"

#define WRAPPER __attribute__ ((visibility ("default")))

#define driver_files() __builtin_expect (LOAD_RELAXED (shim_process.files.by_descriptor) != NULL, 0)

/* Without the variable arguments of <sys/ioctl.h>: both calling conventions pass the third argument alike, and va_start
 * costs a store of every register. */
WRAPPER int wrapper_ioctl (int descriptor, unsigned long request, void *argument) __asm__ ("ioctl");

WRAPPER int wrapper_ioctl (int descriptor, unsigned long request, void *argument)
{
    if (__builtin_expect (call_may_matter (request), 0))
        return call_ioctl (descriptor, request, argument);
    return next_ioctl (descriptor, request, argument);
}

/* True for a mapping that may be one of UVM's node, or may replace one. */
static bool mapping_may_matter (int flags, int descriptor)
{
    return driver_files () && (((flags & MAP_FIXED) && LOAD_RELAXED (shim_process.has_managed)) ||
                               (descriptor >= 0 && (flags & (MAP_SHARED | MAP_ANONYMOUS)) == MAP_SHARED));
}

WRAPPER void *mmap (void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    if (mapping_may_matter (flags, descriptor))
        return call_mmap (NEXT_MMAP, address, length, protection, flags, descriptor, offset);
    return next_mmap (NEXT_MMAP, address, length, protection, flags, descriptor, offset);
}

WRAPPER void *mmap64 (void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    if (mapping_may_matter (flags, descriptor))
        return call_mmap (NEXT_MMAP64, address, length, protection, flags, descriptor, offset);
    return next_mmap (NEXT_MMAP64, address, length, protection, flags, descriptor, offset);
}

WRAPPER int munmap (void *address, size_t length)
{
    if (__builtin_expect (LOAD_RELAXED (shim_process.has_managed), 0))
        return call_munmap (address, length);
    return next_munmap (address, length);
}

WRAPPER int close (int descriptor)
{
    if (driver_files () && files_may_track (&shim_process.files, descriptor))
        return call_close (descriptor);
    return next_close (descriptor);
}

/* A training program makes no call on the driver for hours, but libcuda's thread cuda-EvtHandlr polls its descriptors
 * ten times a second: a changed share is applied then, without a thread of this library. */
WRAPPER int poll (struct pollfd *descriptors, nfds_t count, int milliseconds)
{
    if (driver_files () && process_is_stale (&shim_process))
        call_apply_changes ();
    return next_poll (descriptors, count, milliseconds);
}

WRAPPER int dup (int descriptor)
{
    if (driver_files ())
        return call_dup (descriptor);
    return next_dup (descriptor);
}

WRAPPER int dup2 (int from, int to)
{
    if (driver_files () && from != to)
        return call_dup2 (from, to);
    return next_dup2 (from, to);
}

WRAPPER int dup3 (int from, int to, int flags)
{
    if (driver_files () && from != to)
        return call_dup3 (from, to, flags);
    return next_dup3 (from, to, flags);
}

WRAPPER void nvc_shim_next_managed (const uint8_t uuid[16]) { call_next_managed (uuid); }

WRAPPER int nvc_shim_managed_refused (void) { return refused_take (); }
