#include "next.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "raw.h"
#include "versions.h"

extern void *dlsym (void *, const char *) __attribute__ ((weak));
OLDEST_VERSION (dlsym);

unsigned long next_close_function, next_ioctl_function, next_poll_function;

static unsigned long find (unsigned long *function, const char *name)
{
    unsigned long found = __atomic_load_n (function, __ATOMIC_RELAXED);

    if (found == 0) {
        int before = errno;

        found = dlsym ? (unsigned long) dlsym (RTLD_NEXT, name) : 1;
        found = found ? found : 1;
        __atomic_store_n (function, found, __ATOMIC_RELAXED);
        errno = before;
    }
    return found;
}

long next_answer (long result)
{
    if (!raw_failed (result))
        return result;
    errno = (int) -result;
    return -1;
}

int next_close (int descriptor)
{
    unsigned long found = find (&next_close_function, "close");

    if (found == 1)
        return (int) next_answer (RAW1 (SYS_close, descriptor));
    return ((int (*) (int)) found) (descriptor);
}

int next_ioctl (int descriptor, unsigned long request, void *argument)
{
    unsigned long found = find (&next_ioctl_function, "ioctl");

    if (found == 1)
        return (int) next_answer (RAW3 (SYS_ioctl, descriptor, request, argument));
    return ((int (*) (int, unsigned long, ...)) found) (descriptor, request, argument);
}

int next_poll (struct pollfd *descriptors, unsigned long count, int milliseconds)
{
    unsigned long found = find (&next_poll_function, "poll");
    struct timespec rest = { milliseconds / 1000, milliseconds % 1000 * 1000000l };

    if (found == 1) /* aarch64 has no poll */
        return (int) next_answer (RAW5 (SYS_ppoll, descriptors, count, milliseconds < 0 ? NULL : &rest, NULL, 0));
    return ((int (*) (struct pollfd *, unsigned long, int)) found) (descriptors, count, milliseconds);
}

void *next_symbol (const char *name)
{
    return dlsym ? dlsym (RTLD_DEFAULT, name) : NULL;
}
