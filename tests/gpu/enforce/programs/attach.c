/*
 * The first call of the driver, and nothing else: a client made and dropped on the control node.
 *
 * usage: attach [NODE]             prints nanoseconds since START_NS (herd), and of the call alone
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* NV_ESC_RM_ALLOC (nv_escape.h) with NVOS21_PARAMETERS (nvos.h), whose 32 bytes every driver still takes. */
struct allocate {
    uint32_t root, parent, object, class;
    uint64_t parameters;
    uint32_t parameters_size, status;
};
#define ALLOCATE _IOWR ('F', 0x2B, struct allocate)
#define NV01_ROOT_CLIENT 0x41u

static uint64_t now_ns (void)
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

int main (int argc, char **argv)
{
    const char *node = argc > 1 ? argv[1] : "/dev/nvidiactl", *since = getenv ("START_NS");
    struct allocate call;
    memset (&call, 0, sizeof call);
    call.class = NV01_ROOT_CLIENT;
    int control = open (node, O_RDWR | O_CLOEXEC);
    if (control == -1) {
        perror (node);
        return 1;
    }
    uint64_t before = now_ns ();
    if (ioctl (control, ALLOCATE, &call) != 0) {
        perror ("ioctl");
        return 1;
    }
    uint64_t after = now_ns ();
    if (call.status != 0) {
        fprintf (stderr, "attach: status 0x%x\n", call.status);
        return 1;
    }
    printf ("%llu %llu\n", (unsigned long long) (after - (since != NULL ? strtoull (since, NULL, 10) : before)),
            (unsigned long long) (after - before));
    return 0;
}
