/* Lookup of the next functions (next.h). Runs in every process of a container, on any thread, without a lock. */
#include "next.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include "elf.h"
#include "versions.h"

extern void *dlsym (void *, const char *) __attribute__ ((weak));
OLDEST_VERSION (dlsym);

unsigned long next_functions[NEXT_FUNCTIONS];

/* One string in place of a table of pointers: an interposed function may be called before this library is relocated. */
static const char *name_of (enum next function)
{
    static const char names[] = "close\0  ioctl\0  poll\0   mmap\0   mmap64\0 munmap\0 dup\0    dup2\0   dup3\0";

    return &names[8 * function];
}

unsigned long next_find (enum next function)
{
    /* The objects from this library to libc are loaded at the program's start and never unloaded. */
    struct link_map *self = elf_self ();
    unsigned long found = self ? (unsigned long) elf_find (self->l_next, name_of (function), "GLIBC_") : 0;

    found = found ? found : 1;
    __atomic_store_n (&next_functions[function], found, __ATOMIC_RELAXED);
    return found;
}

static long answer (long result)
{
    if (!raw_failed (result))
        return result;
    errno = (int) -result;
    return -1;
}

int next_raw_close (int descriptor) { return (int) answer (RAW1 (SYS_close, descriptor)); }

int next_raw_ioctl (int descriptor, unsigned long request, void *argument)
{
    return (int) answer (RAW3 (SYS_ioctl, descriptor, request, argument));
}

int next_raw_poll (struct pollfd *descriptors, unsigned long count, int milliseconds)
{
    struct timespec rest = { milliseconds / 1000, milliseconds % 1000 * 1000000l };

    /* aarch64 has no poll */
    return (int) answer (RAW5 (SYS_ppoll, descriptors, count, milliseconds < 0 ? NULL : &rest, NULL, 0));
}

void *next_raw_mmap (void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    return (void *) answer (RAW (SYS_mmap, address, length, protection, flags, descriptor, offset));
}

int next_raw_munmap (void *address, size_t length) { return (int) answer (RAW2 (SYS_munmap, address, length)); }

int next_raw_dup (int descriptor) { return (int) answer (RAW1 (SYS_dup, descriptor)); }

int next_raw_dup2 (int from, int to)
{
    long result;

    if (from != to)
        return next_raw_dup3 (from, to, 0);
    result = RAW2 (SYS_fcntl, from, F_GETFD); /* dup3 refuses what dup2 only checks */
    return (int) answer (raw_failed (result) ? result : to);
}

int next_raw_dup3 (int from, int to, int flags) { return (int) answer (RAW3 (SYS_dup3, from, to, flags)); }

void *next_symbol (const char *name) { return dlsym ? dlsym (RTLD_DEFAULT, name) : NULL; }
