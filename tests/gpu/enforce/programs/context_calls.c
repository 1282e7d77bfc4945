/*
 * Where the time of a context goes: this program times every ioctl and every shared mapping of a file, also the CUDA
 * library's, which finds these functions here before the C library's. Arguments: the low bytes of the requests that a guard
 * would announce. Lines on stdin:
 *   "first"         cuInit and the first context, given back; answered with the nanoseconds of each
 *   "context WAIT"  another context, with WAIT ns of idling before each call that a guard would announce; answered with
 *                   the nanoseconds of the whole, and KEY NS CHANGED for every call: the hexadecimal request's low byte,
 *                   and the command or class that it is made with, or 0; whether the driver wrote anything new to the
 *                   struct, or to params whose size the call says
 */
#define _GNU_SOURCE
#include "check.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALLS 8192u
#define MMAP 0x100u

static struct call {
    uint32_t number, what;
    uint64_t ns;
    bool is_changed;
} calls[CALLS];
static atomic_uint count;
static uint64_t wait_ns;

static bool announced[256];

static bool is_announced (uint32_t request) { return (request >> 8 & 0xff) == 'F' && announced[request & 0xff]; }

static void idle (void)
{
    uint64_t until = now_ns () + wait_ns;

    while (wait_ns != 0 && now_ns () < until)
        ;
}

static void note (uint32_t number, uint32_t what, uint64_t took, bool is_changed)
{
    unsigned place = atomic_fetch_add (&count, 1);

    if (place < CALLS)
        calls[place] = (struct call) { number, what, took, is_changed };
}

/* A copy of a call's struct, and of what a control's or an allocation's points at. */
struct said {
    uint8_t head[256], params[4096];
    size_t head_size, params_size;
    const void *params_at;
};

static void read_said (struct said *said, uint32_t request, const uint8_t *argument)
{
    uint32_t number = request & 0xff, size = 0;

    *said = (struct said) { .head_size = request >> 16 & 0x3fff };
    if (number == 0x2a || number == 0x2b) {
        memcpy (&said->params_at, argument + 16, 8);
        memcpy (&size, argument + (number == 0x2a ? 24 : 32), 4);
    }
    said->params_size = said->params_at == NULL ? 0 : size < sizeof said->params ? size : sizeof said->params;
    memcpy (said->head, argument, said->head_size < sizeof said->head ? said->head_size : sizeof said->head);
    memcpy (said->params, said->params_at, said->params_size);
}

static bool is_said_still (const struct said *said, const uint8_t *argument)
{
    return memcmp (said->head, argument, said->head_size < sizeof said->head ? said->head_size : sizeof said->head) == 0 &&
           memcmp (said->params, said->params_at, said->params_size) == 0;
}

int ioctl (int file, unsigned long request, ...)
{
    uint32_t number = (uint32_t) request & 0xff, what = 0;
    va_list list;
    void *argument;
    struct said said = { .head_size = 0 };
    uint64_t began, took;
    long result;

    va_start (list, request);
    argument = va_arg (list, void *);
    va_end (list);
    if (is_announced ((uint32_t) request)) {
        read_said (&said, (uint32_t) request, argument);
        idle ();
        if (number == 0x2a || number == 0x2b)
            memcpy (&what, (char *) argument + (number == 0x2a ? 8 : 12), 4);
    } else
        number |= 0x1000u;
    began = now_ns ();
    result = syscall (SYS_ioctl, file, request, argument);
    took = now_ns () - began;
    note (number, what, took, !is_said_still (&said, argument));
    return (int) result;
}

void *mmap (void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    bool is_announced_one = (flags & (MAP_SHARED | MAP_ANONYMOUS)) == MAP_SHARED && offset != 0;
    uint64_t began;
    long result;

    if (is_announced_one)
        idle ();
    began = now_ns ();
    result = syscall (SYS_mmap, address, size, protection, flags, file, offset);
    if (is_announced_one)
        note (MMAP, 0, now_ns () - began, true);
    return (void *) result;
}

static void first (void)
{
    uint64_t begun = now_ns (), initialized, ended;
    CUdevice device;
    CUcontext context;

    MUST (cuInit (0));
    initialized = now_ns ();
    MUST (cuDeviceGet (&device, 0));
    MUST (cuDevicePrimaryCtxRetain (&context, device));
    ended = now_ns ();
    MUST (cuDevicePrimaryCtxRelease (device));
    printf ("%llu %llu\n", (unsigned long long) (initialized - begun), (unsigned long long) (ended - initialized));
}

static void another (void)
{
    CUdevice device;
    CUcontext context;
    uint64_t begun, took;
    unsigned made;

    MUST (cuDeviceGet (&device, 0));
    count = 0;
    begun = now_ns ();
    MUST (cuDevicePrimaryCtxRetain (&context, device));
    took = now_ns () - begun;
    made = count;
    MUST (cuDevicePrimaryCtxRelease (device)); /* before it answers: the next measurement would include this */
    printf ("%llu", (unsigned long long) took);
    for (unsigned i = 0; i < made && i < CALLS; i++)
        printf (" %x.%x %llu %d", calls[i].number, calls[i].what, (unsigned long long) calls[i].ns, calls[i].is_changed);
    printf ("\n");
}

int main (int argc, char **argv)
{
    char line[64];
    unsigned long wish;

    for (int i = 1; i < argc; i++)
        announced[strtoul (argv[i], NULL, 0) & 0xff] = true;
    while (fgets (line, sizeof line, stdin) != NULL) {
        if (strcmp (line, "first\n") == 0)
            first ();
        else if (sscanf (line, "context %lu", &wish) == 1) {
            wait_ns = wish;
            another ();
        } else
            return 2;
        fflush (stdout);
    }
    return 0;
}
