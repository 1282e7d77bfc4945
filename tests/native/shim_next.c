/*
 * What is reached behind libnvc-shim.so. A program that calls each function it interposes, and prints answers and errno;
 * with -DNAME=x a library that interposes the same functions, says so on stderr, and passes on; with -DNO_LOOK_UPS one
 * in which dlsym ends the program.
 */
#define _GNU_SOURCE
#ifdef NAME
#define ioctl ioctl_of_header /* which has variable arguments */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#ifdef NO_LOOK_UPS

void *dlsym (void *restrict handle, const char *restrict name)
{
    (void) handle, (void) name;
    _exit (99);
}

#elif defined(NAME)

#undef ioctl
#define STRING_(text) #text
#define STRING(text) STRING_ (text)

static int busy; /* one thread; dlsym's own calls are no part of the test */

static void *reach (const char *name)
{
    char line[64] = STRING (NAME) " ";
    void *next;

    busy++;
    strcat (strcat (line, name), "\n");
    if (busy == 1 && getenv ("SAY") && strcmp (getenv ("SAY"), "1") == 0)
        syscall (SYS_write, 2, line, strlen (line));
    next = dlsym (RTLD_NEXT, name);
    busy--;
    return next;
}

#define PASS(result, name, types, arguments)                                                                                       \
    result name types;                                                                                                             \
    result name types { return ((result (*) types) reach (#name)) arguments; }

PASS (int, close, (int a), (a))
PASS (int, ioctl, (int a, unsigned long b, void *c), (a, b, c))
PASS (int, poll, (struct pollfd * a, nfds_t b, int c), (a, b, c))
PASS (void *, mmap, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f))
#ifdef __GLIBC__
PASS (void *, mmap64, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f))
#endif
PASS (int, munmap, (void *a, size_t b), (a, b))
PASS (int, dup, (int a), (a))
PASS (int, dup2, (int a, int b), (a, b))
PASS (int, dup3, (int a, int b, int c), (a, b, c))

#else

static void say (long result) { fprintf (stderr, "= %ld, errno %d\n", result, errno); }
#define SAY(call) (fprintf (stderr, "%s\n", #call), errno = 0, say ((long) (call)))

#ifdef __GLIBC__
static void *own (const char *name) /* in a namespace of dlmopen */
{
    static void *library;

    if (!library && !(library = dlmopen (LM_ID_NEWLM, getenv ("LIBRARY"), RTLD_NOW)))
        fprintf (stderr, "%s\n", dlerror ());
    return library ? dlsym (library, name) : NULL;
}
#endif

int main (int count, char **words)
{
    struct termios terminal;

    (void) count, (void) words;
    setvbuf (stderr, NULL, _IONBF, 0);
    setenv ("SAY", "1", 1);
#ifdef __GLIBC__
    if (count > 1 && strcmp (words[1], "namespace") == 0) {
        int (*duplicate) (int) = (int (*) (int)) own ("dup");

        if (!duplicate)
            return 1;
        SAY (duplicate (-1));
        return 0;
    }
    SAY (mmap64 (NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
#endif
    SAY (close (-1));
    SAY (ioctl (-1, TCGETS, &terminal));
    SAY (poll (NULL, 0, 0));
    SAY (mmap (NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    SAY (munmap ((void *) 1, 4096));
    SAY (dup (-1));
    SAY (dup2 (-1, -1));
    SAY (dup2 (-1, 5));
    SAY (dup2 (0, 0));
    SAY (dup3 (-1, 5, 0));
    SAY (dup3 (0, 0, 0));
    setenv ("SAY", "0", 1);
    return 0;
}

#endif
