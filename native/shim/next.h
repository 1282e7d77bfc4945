/* The interposed functions' next definitions in the program's order of libraries: libc's, or another interposer's (a
 * sanitizer, an emulator of devices). Implemented in next.c. */
#ifndef NVC_SHIM_NEXT_H
#define NVC_SHIM_NEXT_H

#include <poll.h>
#include <stddef.h>
#include <sys/types.h>

#include "raw.h"

enum next {
    NEXT_CLOSE,
    NEXT_IOCTL,
    NEXT_POLL,
    NEXT_MMAP,
    NEXT_MMAP64,
    NEXT_MUNMAP,
    NEXT_DUP,
    NEXT_DUP2,
    NEXT_DUP3,
    NEXT_FUNCTIONS,
};
/* Function pointers as numbers. 0: not looked up yet; 1: not found, the system call is made directly. */
extern unsigned long next_functions[NEXT_FUNCTIONS];

/*
 * Looked up at the first call, in the ELF tables of the loaded libraries (elf.h). Not by dlsym, which may allocate and
 * free: the caller may be an allocator, or a sanitizer in the middle of a report.
 */
unsigned long next_find (enum next function);
static inline unsigned long next_function (enum next function)
{
    unsigned long found = LOAD_RELAXED (next_functions[function]);

    return __builtin_expect (found != 0, 1) ? found : next_find (function);
}

/* The system calls in their place, with libc's results (-1 and errno). */
int next_raw_close (int descriptor);
int next_raw_ioctl (int descriptor, unsigned long request, void *argument);
int next_raw_poll (struct pollfd *descriptors, unsigned long count, int milliseconds);
void *next_raw_mmap (void *address, size_t length, int protection, int flags, int descriptor, off_t offset);
int next_raw_munmap (void *address, size_t length);
int next_raw_dup (int descriptor);
int next_raw_dup2 (int from, int to);
int next_raw_dup3 (int from, int to, int flags);

#define NEXT_CALL(function, raw, type, ...)                                                                                        \
    ({                                                                                                                             \
        unsigned long next_ = next_function (function);                                                                            \
        __builtin_expect (next_ > 1, 1) ? ((type) next_) (__VA_ARGS__) : raw (__VA_ARGS__);                                        \
    })

static inline int next_close (int descriptor) { return NEXT_CALL (NEXT_CLOSE, next_raw_close, int (*) (int), descriptor); }

/* ioctl has variable arguments: both calling conventions pass them like named ones. */
static inline int next_ioctl (int descriptor, unsigned long request, void *argument)
{
    return NEXT_CALL (NEXT_IOCTL, next_raw_ioctl, int (*) (int, unsigned long, void *), descriptor, request, argument);
}

static inline int next_poll (struct pollfd *descriptors, unsigned long count, int milliseconds)
{
    return NEXT_CALL (NEXT_POLL, next_raw_poll, int (*) (struct pollfd *, unsigned long, int), descriptors, count, milliseconds);
}

/* which: NEXT_MMAP or NEXT_MMAP64, the function that the program called. */
static inline void *next_mmap (enum next which, void *address, size_t length, int protection, int flags, int descriptor,
                               off_t offset)
{
    return NEXT_CALL (which, next_raw_mmap, void *(*) (void *, size_t, int, int, int, off_t), address, length, protection, flags,
                      descriptor, offset);
}

static inline int next_munmap (void *address, size_t length)
{
    return NEXT_CALL (NEXT_MUNMAP, next_raw_munmap, int (*) (void *, size_t), address, length);
}

static inline int next_dup (int descriptor) { return NEXT_CALL (NEXT_DUP, next_raw_dup, int (*) (int), descriptor); }

static inline int next_dup2 (int from, int to) { return NEXT_CALL (NEXT_DUP2, next_raw_dup2, int (*) (int, int), from, to); }

static inline int next_dup3 (int from, int to, int flags)
{
    return NEXT_CALL (NEXT_DUP3, next_raw_dup3, int (*) (int, int, int), from, to, flags);
}

/* A symbol of the program, by dlsym; NULL: not found, or there is no dlsym. */
void *next_symbol (const char *name);

#endif
