/* Small helpers on system calls (raw.h). Runs in every process of a container, on any thread. */
#include "raw.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_PAGE (2u << 20)

long raw_read_file (const char *path, char *text, size_t size)
{
    long descriptor = RAW4 (SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY, 0);
    size_t length = 0;
    long got = descriptor;

    text[0] = '\0';
    if (descriptor < 0)
        return descriptor;
    while (length + 1 < size && (got = RAW3 (SYS_read, descriptor, text + length, size - 1 - length)) > 0)
        length += (size_t) got;
    text[length] = '\0';
    RAW1 (SYS_close, descriptor);
    return got < 0 ? got : (long) length;
}

void *raw_pages (size_t size)
{
    long address = RAW (SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (raw_failed (address))
        return NULL;
    /* Of a table of megabytes few entries are used. Huge pages for them would be zeroed by the kernel, and backed by a
     * virtual machine's host: milliseconds of a program's start. */
    if (size >= HUGE_PAGE)
        RAW3 (SYS_madvise, address, size, MADV_NOHUGEPAGE);
    return (void *) address;
}

uint64_t raw_now (void)
{
    struct timespec now = { 0, 0 };

    RAW2 (SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

void raw_sleep (uint64_t nanoseconds)
{
    struct timespec rest = { (time_t) (nanoseconds / 1000000000u), (long) (nanoseconds % 1000000000u) };

    RAW2 (SYS_nanosleep, &rest, NULL);
}
