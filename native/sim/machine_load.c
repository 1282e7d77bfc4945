/*
 * Finds the description of the simulated machine. Runs in each process that uses one of its libraries, at the first
 * call.
 *
 * Each simulated machine's copy of a library contains its description: nvc/sim/create.py writes the text after the
 * marker below. So the library works wherever it is mapped: after a chroot, and inside a container that has no other
 * file of the machine. A section of the object was preferred to text appended after the ELF image, which would have to
 * be found again by path (gone after a chroot) and which strip removes.
 *
 * NVC_SIM_MACHINE (a path) and /etc/nvc-sim/machine come first, so that a test or a user can change a machine by
 * editing a file. One that is there and cannot be read is an error, never skipped.
 */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARKER "@(nvc-sim baked machine text)@"
#define MARKER_SIZE 32

/* volatile: the compiler must not conclude from the initialiser that there is never any text. */
static const volatile struct {
    char marker[MARKER_SIZE];
    char text[MACHINE_TEXT_LIMIT];
} baked __attribute__ ((aligned (4096))) = { .marker = MARKER };

_Static_assert (sizeof (MARKER) <= MARKER_SIZE, "the marker has its place");

static char text[MACHINE_TEXT_LIMIT + 1];

static size_t baked_text (void)
{
    size_t size = 0;

    while (size < MACHINE_TEXT_LIMIT && baked.text[size] != '\0') {
        text[size] = baked.text[size];
        size++;
    }
    return size;
}

/* Reads a whole file; -1 with errno set. O_NONBLOCK: a FIFO in its place must not block the caller. */
static ssize_t file_text (const char *path)
{
    struct stat status;
    size_t size = 0;
    int fd = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return -1;
    if (fstat (fd, &status) < 0 || !S_ISREG (status.st_mode)) {
        close (fd);
        errno = EINVAL;
        return -1;
    }
    while (size < sizeof (text)) {
        ssize_t got = read (fd, text + size, sizeof (text) - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int saved = errno;
            close (fd);
            errno = saved;
            return -1;
        }
        if (got == 0)
            break;
        size += (size_t) got;
    }
    close (fd);
    return (ssize_t) size;
}

static enum machine_source parsed (size_t size, const char *origin, struct machine *machine, char *problem, size_t problem_size)
{
    char reason[128];

    if (machine_parse (text, size, machine, reason, sizeof (reason)))
        return MACHINE_FOUND;
    snprintf (problem, problem_size, "%s: %s", origin, reason);
    return MACHINE_BAD;
}

enum machine_source machine_load (struct machine *machine, char *problem, size_t problem_size)
{
    const char *named = secure_getenv (MACHINE_ENVIRONMENT);
    const char *path = named != NULL && named[0] != '\0' ? named : MACHINE_FILE;
    ssize_t size = file_text (path);

    if (size >= 0)
        return parsed ((size_t) size, path, machine, problem, problem_size);
    if (path == named || (errno != ENOENT && errno != ENOTDIR)) {
        snprintf (problem, problem_size, "%s: %s", path, strerror (errno));
        return MACHINE_BAD;
    }
    size = (ssize_t) baked_text ();
    if (size > 0)
        return parsed ((size_t) size, "baked-in description", machine, problem, problem_size);
    snprintf (problem, problem_size, "no description of a machine in %s or in this library", MACHINE_FILE);
    return MACHINE_NONE;
}
