/* rawalloc QUOTA_PIECES MIB SECONDS: a tenant without any library, by the driver's own calls. Static.

   Round for round until SECONDS are over: QUOTA_PIECES pieces of MIB must be given, two more must be refused, and all are
   given back. SECONDS "once": one round. 0: one round, in which it says "held" with its pieces and waits for the end of its
   stdin. SECONDS "eof": a round five times a second until stdin ends; "started" after the first. Prints rounds=, failed= (refused, but should have been given), passed= (given beyond the quota), again= (asked to
   try again), longest= (milliseconds of the call that took longest).
   A call that answers EAGAIN or EINTR is made again, as NVIDIA's libraries do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define PIECES 64

struct alloc {
    uint32_t root, parent, object, class_number;
    uint64_t params, rights;
    uint32_t size, flags, status, pad;
};

struct freed {
    uint32_t root, parent, object, status;
};

static int file;
static unsigned long again;
static double longest;

static double now (void)
{
    struct timespec time;

    clock_gettime (CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec + (double) time.tv_nsec / 1e9;
}

static int call (unsigned long request, void *argument)
{
    double begin = now (), took;
    int result;

    while ((result = ioctl (file, request, argument)) < 0 && (errno == EAGAIN || errno == EINTR))
        again++;
    took = now () - begin;
    longest = took > longest ? took : longest;
    return result;
}

static uint32_t allocate (uint32_t client, uint32_t parent, uint32_t *object, uint32_t class_number, void *params)
{
    struct alloc told = { client, parent, *object, class_number, (uintptr_t) params, 0, 0, 0, 0xffff, 0 };

    if (call (_IOWR ('F', 0x2b, struct alloc), &told) < 0)
        return 0x10000u + (uint32_t) errno;
    *object = told.object;
    return told.status;
}

static uint32_t release (uint32_t client, uint32_t parent, uint32_t object)
{
    struct freed told = { client, parent, object, 0xffff };

    if (call (_IOWR ('F', 0x29, struct freed), &told) < 0)
        return 0x10000u + (uint32_t) errno;
    return told.status;
}

static uint32_t piece (uint32_t client, uint32_t device, uint32_t handle, uint64_t bytes)
{
    uint8_t params[128] = { 0 };
    uint32_t attributes = 0x18000000;

    params[0] = 1; /* owner: any but 0 */
    memcpy (params + 24, &attributes, 4);
    memcpy (params + 64, &bytes, 8);
    return allocate (client, device, &handle, 0x40, params);
}

int main (int argc, char **argv)
{
    uint32_t client = 0, device = 1, subdevice = 2, zeros[14] = { 0 };
    int quota = argc > 1 ? atoi (argv[1]) : 1;
    uint64_t bytes = (argc > 2 ? strtoull (argv[2], NULL, 0) : 1) << 20;
    bool is_once = argc > 3 && strcmp (argv[3], "once") == 0, is_eof = argc > 3 && strcmp (argv[3], "eof") == 0;
    double seconds = argc > 3 && !is_once && !is_eof ? atof (argv[3]) : 0, end = now () + seconds;
    unsigned long rounds = 0, failed = 0, passed = 0;
    uint32_t odd = 0;
    char byte;

    file = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    if (file < 0 || allocate (0, 0, &client, 0, NULL) != 0 || allocate (client, client, &device, 0x80, zeros) != 0 ||
        allocate (client, device, &subdevice, 0x2080, zeros) != 0) {
        printf ("errno=%d\n", errno);
        return 1;
    }
    do {
        uint8_t held[PIECES] = { 0 };

        for (int i = 0; i < quota + 2 && i < PIECES; i++) {
            uint32_t status = piece (client, device, 100 + (uint32_t) i, bytes);

            held[i] = status == 0;
            failed += i < quota && status != 0;
            passed += i >= quota && status == 0;
            odd = i < quota ? (status ? status : odd) : (status != 0 && status != 0x51 ? status : odd);
        }
        rounds++;
        if (is_eof && rounds == 1) {
            printf ("started\n");
            fflush (stdout);
        }
        if (seconds == 0 && !is_once && !is_eof) {
            printf ("held\n");
            fflush (stdout);
            while (read (0, &byte, 1) > 0)
                continue;
        }
        for (int i = 0; i < PIECES; i++)
            if (held[i] && (odd = release (client, device, 100 + (uint32_t) i)) != 0)
                failed++;
    } while (is_eof ? poll (&(struct pollfd) { .fd = 0, .events = POLLIN }, 1, 200) == 0 : now () < end);
    printf ("rounds=%lu failed=%lu passed=%lu again=%lu odd=%#x longest=%.0f\n", rounds, failed, passed, again, odd, longest * 1e3);
    return failed != 0 || passed != 0;
}
