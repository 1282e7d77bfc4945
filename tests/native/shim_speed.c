/* What a call costs, in nanoseconds: the shortest mean of many short rounds. Prints: ioctl mmap+munmap close dup+close. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 400, CALLS = 500 };

static double now (void)
{
    struct timespec time;

    clock_gettime (CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec * 1e9 + (double) time.tv_nsec;
}

#define MEASURE(call)                                                                                                              \
    do {                                                                                                                           \
        double best = 1e9;                                                                                                         \
        for (int round = 0; round < ROUNDS; round++) {                                                                             \
            double begin = now ();                                                                                                 \
            for (int i = 0; i < CALLS; i++)                                                                                        \
                call;                                                                                                              \
            double took = (now () - begin) / CALLS;                                                                                \
            best = took < best ? took : best;                                                                                      \
        }                                                                                                                          \
        printf ("%.1f ", best);                                                                                                    \
    } while (0)

int main (void)
{
    int null = open ("/dev/null", O_RDWR);
    struct termios terminal;

    MEASURE (ioctl (-1, TCGETS, &terminal));
    MEASURE (ioctl (null, TCGETS, &terminal));
    MEASURE (munmap (mmap (NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096));
    MEASURE (close (-1));
    MEASURE (close (dup (null)));
    puts ("");
    return 0;
}
