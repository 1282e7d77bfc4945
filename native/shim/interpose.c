/*
 * The functions that this library stands before, and nothing else that is visible. Each first asks, with one or two
 * loads, whether the call can be the driver's; nearly all are not.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"
#include "next.h"
#include "process.h"
#include "raw.h"

#define WRAPPER __attribute__ ((visibility ("default")))

#define driver_files() __builtin_expect (LOAD_RELAXED (shim_process.files.by_descriptor) != NULL, 0)

/* Not as <sys/ioctl.h> has it, with variable arguments: on these machines they are passed alike, and taking them in
 * costs a store of every register. */
WRAPPER int wrapper_ioctl (int descriptor, unsigned long request, void *argument) __asm__ ("ioctl");

WRAPPER int wrapper_ioctl (int descriptor, unsigned long request, void *argument)
{
    unsigned long next = LOAD_RELAXED (next_ioctl_function);

    if (__builtin_expect (call_may_matter (request), 0))
        return call_ioctl (descriptor, request, argument);
    if (__builtin_expect (next > 1, 1))
        return ((int (*) (int, unsigned long, void *)) next) (descriptor, request, argument);
    return next_ioctl (descriptor, request, argument);
}

/* A mapping matters when it may be UVM's, or lies over what was. */
WRAPPER void *mmap (void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    if (driver_files () && (((flags & MAP_FIXED) && LOAD_RELAXED (shim_process.has_managed)) ||
                            (descriptor >= 0 && (flags & (MAP_SHARED | MAP_ANONYMOUS)) == MAP_SHARED)))
        return call_mmap (address, length, protection, flags, descriptor, offset);
    return (void *) next_answer (RAW (SYS_mmap, address, length, protection, flags, descriptor, offset));
}

WRAPPER void *mmap64 (void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
    __attribute__ ((alias ("mmap")));

WRAPPER int munmap (void *address, size_t length)
{
    if (__builtin_expect (LOAD_RELAXED (shim_process.has_managed), 0))
        return call_munmap (address, length);
    return (int) next_answer (RAW2 (SYS_munmap, address, length));
}

WRAPPER int close (int descriptor)
{
    if (driver_files () && files_may_know (&shim_process.files, descriptor))
        return call_close (descriptor);
    if (__builtin_expect (LOAD_RELAXED (next_close_function) > 1, 1))
        return ((int (*) (int)) LOAD_RELAXED (next_close_function)) (descriptor);
    return next_close (descriptor);
}

/* A program that trains makes no call on the driver for hours, but libcuda's own thread (cuda-EvtHandlr) polls its
 * descriptors ten times a second: that is when a changed share is noticed, and needs no thread of ours. */
WRAPPER int poll (struct pollfd *descriptors, nfds_t count, int milliseconds)
{
    if (driver_files () && process_is_behind (&shim_process))
        call_follow ();
    if (__builtin_expect (LOAD_RELAXED (next_poll_function) > 1, 1))
        return ((int (*) (struct pollfd *, nfds_t, int)) LOAD_RELAXED (next_poll_function)) (descriptors, count,
                                                                                           milliseconds);
    return next_poll (descriptors, count, milliseconds);
}

WRAPPER int dup (int descriptor)
{
    int result = (int) next_answer (RAW1 (SYS_dup, descriptor));

    if (result >= 0 && driver_files () && files_may_know (&shim_process.files, descriptor))
        call_duplicated (descriptor, result);
    return result;
}

/* The kernel closes `to` silently; when that was the driver's, it is a close like any other. */
static int duplicate_to (int from, int to, int flags)
{
    uint64_t closed = 0;
    long result;

    if (driver_files () && from != to && files_may_know (&shim_process.files, to) &&
        RAW2 (SYS_fcntl, from, F_GETFD) >= 0)
        closed = call_closing (to);
    result = RAW3 (SYS_dup3, from, to, flags);
    if (!raw_failed (result) && driver_files () && files_may_know (&shim_process.files, from))
        call_duplicated (from, to);
    call_closed (closed);
    return (int) next_answer (result);
}

WRAPPER int dup2 (int from, int to)
{
    if (from == to) { /* dup3 refuses what dup2 only checks */
        long result = RAW2 (SYS_fcntl, from, F_GETFD);

        return (int) next_answer (raw_failed (result) ? result : to);
    }
    return duplicate_to (from, to, 0);
}

WRAPPER int dup3 (int from, int to, int flags)
{
    return duplicate_to (from, to, flags);
}

WRAPPER void nvc_shim_next_managed (const uint8_t uuid[16])
{
    call_next_managed (uuid);
}

WRAPPER int nvc_shim_managed_refused (void)
{
    return call_managed_refused ();
}
