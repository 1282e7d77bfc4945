/* Admission among real processes: exact at the limit, and consistent after a kill at any point. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/region.h"
#include "tap.h"

#define PROCESSES 8
#define PIECE 100u

static char path[] = "/tmp/nvc-shim-region-XXXXXX";
static int *shared; /* counters of the children */

static void make (void)
{
    struct region_header header = { .magic = REGION_MAGIC, .version = REGION_VERSION, .page = REGION_PAGE, .slots = REGION_SLOTS };
    int descriptor = open (path, O_RDWR | O_TRUNC);

    if (descriptor < 0 || ftruncate (descriptor, (off_t) REGION_SIZE) != 0 ||
        pwrite (descriptor, &header, sizeof header, 0) != (ssize_t) sizeof header)
        abort ();
    close (descriptor);
}

static double seconds (void)
{
    struct timespec now;

    clock_gettime (CLOCK_MONOTONIC, &now);
    return (double) now.tv_sec + (double) now.tv_nsec * 1e-9;
}

static void wait_all (void)
{
    while (waitpid (-1, NULL, 0) > 0 || errno == EINTR)
        ;
}

static uint64_t used (void)
{
    struct region region;
    uint64_t sum;

    region_attach (&region, path);
    region_sweep (&region);
    sum = region_sum (&region, 0, true);
    region_detach (&region);
    return sum;
}

/* Whether this process has a descriptor of the file. */
static bool has_open (const char *name)
{
    struct stat wanted, found;

    if (stat (name, &wanted) != 0)
        abort ();
    for (int descriptor = 0; descriptor < 1024; descriptor++)
        if (fstat (descriptor, &found) == 0 && found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino)
            return true;
    return false;
}

static void test_one (void)
{
    struct region region, other;

    make ();
    tap_ok (region_attach (&region, path) && !region.private && region.index == 0, "the first process gets the first slot");
    tap_ok (region_attach (&other, path) && other.index == 1, "the second one the second");
    tap_ok (region.slot->pid == (uint32_t) getpid () && !region.slot->start_time && region.descriptor < 0 && !has_open (path),
            "a process without memory has no file open, and reads none of /proc");
    tap_ok (region_reserve (&region, 0, 600, 1000) && region_reserve (&other, 0, 400, 1000), "together they reach the limit");
    tap_ok (!region_reserve (&region, 0, 1, 1000) && !region_reserve (&other, 0, 1, 1000), "and not a byte more");
    tap_ok (region_reserve (&region, 1, 1000, 1000), "another GPU has a limit of its own");
    region_refund (&other, 0, 400);
    tap_ok (region_sum (&region, 0, true) == 600, "a refund is available at once");
    region_refund (&other, 0, 400);
    tap_ok (region_sum (&region, 0, true) == 600, "a second refund has no effect");
    tap_ok (!region_reserve (&region, 0, UINT64_MAX, 1000) && !region_reserve (&region, 0, UINT64_MAX - 5, UINT64_MAX - 1),
            "sizes that wrap around are refused");
    tap_ok (!region_reserve (&region, 0, 1, 500), "usage above a limit that was lowered only refuses more");
    tap_ok (region.slot->pid == (uint32_t) getpid () && region.slot->start_time && region.slot->pid_namespace &&
                !strncmp (region.slot->name, "test_shim", 9),
            "a slot has the identity of its process");
    tap_ok (has_open (path), "and has the file open, by which the host recognises it");
    tap_ok (region_has_process (&other, (uint32_t) getpid ()) && !region_has_process (&other, 1u << 30),
            "and a pid of the container is recognised");
    region_detach (&other);
    region_detach (&region);
    tap_ok (used () == 0, "nothing is left");
}

/* The number of slots for processes that start and end, `together` at a time. */
static uint32_t slots_of (int processes, int together)
{
    struct region_header *header;
    int descriptor, running = 0;
    uint32_t count;

    make ();
    descriptor = open (path, O_RDWR);
    header = mmap (NULL, REGION_PAGE, PROT_READ, MAP_SHARED, descriptor, 0);
    close (descriptor);
    for (int i = 0; i < processes; i++) {
        if (running == together && waitpid (-1, NULL, 0) > 0)
            running--;
        running++;
        if (fork () == 0) {
            struct region own;

            if (!region_attach (&own, path) || own.private)
                abort ();
            usleep (2000);
            if (i % 2)
                kill (getpid (), SIGKILL);
            _exit (0);
        }
    }
    wait_all ();
    count = header->high;
    munmap (header, REGION_PAGE);
    return count;
}

static void test_slots (void)
{
    uint32_t crowd;

    tap_ok (slots_of (200, 1) == 1, "one after the other they all have the same slot, also after a kill");
    crowd = slots_of (2000, 20);
    printf ("# %u slots for 2000 processes, 20 at a time\n", crowd);
    tap_ok (crowd >= 2 && crowd <= 80, "many that start and end need few more than are alive at a time");
}

/* Children reserve pieces until they are refused, and hold them; the sum is exactly the limit then. */
static void test_places (void)
{
    struct region regions[3];
    struct region_place place;

    make ();
    for (int i = 0; i < 3; i++)
        region_attach (&regions[i], path);
    place = region_place (&regions[2], 0);
    tap_ok (place.rank == 0 && place.count == 0, "without processes that have channels there are no places");
    regions[0].slot->groups[0] = 1;
    regions[2].slot->groups[0] = 5u << 16 | 2;
    place = region_place (&regions[2], 0);
    tap_ok (place.rank == 1 && place.count == 2, "second of two behind a slot with channels");
    place = region_place (&regions[0], 0);
    tap_ok (place.rank == 0 && place.count == 2, "and that one is the first");
    place = region_place (&regions[2], 1);
    tap_ok (place.rank == 0 && place.count == 0, "on another GPU there are none");
    region_detach (&regions[0]);
    place = region_place (&regions[2], 0);
    tap_ok (place.rank == 0 && place.count == 1, "a process that has ended has no place");
    region_detach (&regions[1]);
    region_detach (&regions[2]);
}

static void test_race (bool back_and_forth)
{
    uint64_t limit = 5000 * PIECE + PIECE / 2;
    struct region region;
    int running = PROCESSES;

    make ();
    memset (shared, 0, 4096);
    region_attach (&region, path);
    for (int child = 0; child < PROCESSES; child++)
        if (fork () == 0) {
            struct region own;
            unsigned seed = (unsigned) child;

            region_attach (&own, path);
            __atomic_add_fetch (&shared[0], 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n (&shared[0], __ATOMIC_SEQ_CST) < PROCESSES)
                ;
            for (int i = 0; back_and_forth && i < 4000; i++)
                if (region_reserve (&own, 0, PIECE * (1 + (unsigned) rand_r (&seed) % 900), limit))
                    region_refund (&own, 0, own.slot->memory[0]);
            while (region_reserve (&own, 0, PIECE, limit))
                __atomic_add_fetch (&shared[1], 1, __ATOMIC_SEQ_CST);
            __atomic_add_fetch (&shared[2], 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n (&shared[2], __ATOMIC_SEQ_CST) < PROCESSES)
                usleep (100);
            _exit (0);
        }
    while (running) {
        uint64_t sum = region_sum (&region, 0, false);

        shared[3] |= sum > limit;
        while (running && waitpid (-1, NULL, WNOHANG) > 0)
            running--;
    }
    tap_ok (!shared[3], back_and_forth ? "also when they reserve and refund, the sum is never above the limit"
                                       : "eight processes racing to the limit: the sum is never above it");
    tap_ok (shared[1] == 5000, back_and_forth ? "and exactly what fits is granted" : "and no request below it is refused");
    tap_ok (region_sweep (&region) == PROCESSES && region_sum (&region, 0, true) == 0, "all of it is free when they have ended");
    region_detach (&region);
}

static void test_kill (void)
{
    double begin = seconds ();
    struct region region;
    bool settled = true;
    uint64_t limit = 10 * PIECE;

    make ();
    region_attach (&region, path);
    for (int i = 0; i < 1000; i++) {
        pid_t child = fork ();

        if (child == 0) {
            struct region own;

            region_attach (&own, path);
            __atomic_store_n (&shared[0], i, __ATOMIC_SEQ_CST);
            for (;;)
                if (region_reserve (&own, 0, PIECE * 3, limit))
                    region_refund (&own, 0, i % 2 ? PIECE * 3 : PIECE);
        }
        for (int turn = 0; turn < 2000 && __atomic_load_n (&shared[0], __ATOMIC_SEQ_CST) != i; turn++)
            usleep (20);
        for (int turn = 0; turn < i % 7; turn++)
            if (region_reserve (&region, 0, PIECE * 2, limit))
                region_refund (&region, 0, PIECE * 2);
        usleep ((unsigned) (i * 37 % 300));
        kill (child, SIGKILL);
        waitpid (child, NULL, 0);
        settled &= region_reserve (&region, 0, limit, limit);
        region_refund (&region, 0, limit);
    }
    printf ("# %.2f s for 1000 kills\n", seconds () - begin);
    tap_ok (settled, "after each of 1000 kills the whole limit can be had at once");
    tap_ok (seconds () - begin < 60, "and none of them delays the next process");
    tap_ok (region_sum (&region, 0, true) == 0, "and nothing is left");
    tap_ok (region.header->high < 20, "slots are used again");
    region_detach (&region);
}

static void test_stopped (void)
{
    struct region region;
    double begin, quickest = 60;
    bool fits = true;
    pid_t stopped;

    make ();
    region_attach (&region, path);
    __atomic_store_n (&shared[0], 0, __ATOMIC_SEQ_CST);
    stopped = fork ();
    if (stopped == 0) {
        struct region own;

        region_attach (&own, path);
        own.slot->pending[0] = 300; /* stopped between request and decision */
        __atomic_store_n (&shared[0], 1, __ATOMIC_SEQ_CST);
        for (;;)
            pause ();
    }
    while (!__atomic_load_n (&shared[0], __ATOMIC_SEQ_CST))
        usleep (100);
    /* Less than REGION_TIMEOUT_NS. A busy machine may delay the test, but not every time. */
    for (int turn = 0; turn < 10; turn++) {
        region_refund (&region, 0, turn ? 700 : 0);
        begin = seconds ();
        fits &= region_reserve (&region, 0, 700, 1000);
        quickest = seconds () - begin < quickest ? seconds () - begin : quickest;
    }
    tap_ok (fits && quickest < 0.5, "a process that stopped in its request delays no request that fits in addition");
    begin = seconds ();
    tap_ok (!region_reserve (&region, 0, 1, 1000) && seconds () - begin < 20, "its request stays reserved");
    kill (stopped, SIGKILL);
    waitpid (stopped, NULL, 0);
    tap_ok (region_reserve (&region, 0, 300, 1000), "until it has ended");
    region_detach (&region);
}

static void test_files (void)
{
    struct region region;
    int child, status;

    make ();
    tap_ok (region_attach (&region, "/nonexistent/region") && region.private && region_reserve (&region, 0, 10, 10) &&
                !region_reserve (&region, 0, 1, 10),
            "without a region the quota holds for the process alone");
    region_detach (&region);
    tap_ok (truncate (path, 8192) == 0 && region_attach (&region, path) && region.private, "a region of another size is not used");
    region_detach (&region);
    make ();
    child = open (path, O_RDWR);
    tap_ok (pwrite (child, "XXXX", 4, 0) == 4 && close (child) == 0 && region_attach (&region, path) && region.private,
            "nor one with another header");
    region_detach (&region);
    make ();
    region_attach (&region, path);
    region.header->high = UINT32_MAX;
    tap_ok (region_reserve (&region, 0, 10, 10) && !region_reserve (&region, 0, 1, 10), "a hostile count of slots is limited");
    region_detach (&region);
    make ();
    region_attach (&region, path);
    child = fork ();
    if (child == 0) {
        struct region own;

        region_attach (&own, path);
        for (int descriptor = 3; descriptor < 1024; descriptor++)
            close (descriptor);
        dup2 (1, own.descriptor); /* reuses its number */
        region_reserve (&own, 0, 500, 1000);
        _exit (region_sweep (&region) != 0 || region_reserve (&own, 0, 501, 1000));
    }
    waitpid (child, &status, 0);
    tap_ok (status == 0 && region_sum (&region, 0, false) == 500 && region_sweep (&region) == 1,
            "a process that closes every descriptor keeps its slot as long as it lives");
    __atomic_store_n (&shared[0], 0, __ATOMIC_SEQ_CST);
    child = fork ();
    if (child == 0) {
        struct region own;

        region_attach (&own, path);
        region_reserve (&own, 0, 500, 1000);
        if (fork () == 0) {
            __atomic_store_n (&shared[0], getpid (), __ATOMIC_SEQ_CST);
            for (;;)
                pause ();
        }
        _exit (0);
    }
    waitpid (child, NULL, 0);
    while (!__atomic_load_n (&shared[0], __ATOMIC_SEQ_CST))
        usleep (100);
    tap_ok (region_sweep (&region) == 0 && region_sum (&region, 0, false) == 500,
            "what a forked child still has open stays charged");
    kill (shared[0], SIGKILL);
    for (int i = 0; i < 30000 && region_sweep (&region) == 0; i++)
        usleep (1000);
    tap_ok (region_sum (&region, 0, false) == 0, "until it has ended too");
    region_detach (&region);
}

int main (void)
{
    int descriptor = mkstemp (path);

    close (descriptor);
    shared = mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_one ();
    test_slots ();
    test_places ();
    test_race (false);
    test_race (true);
    test_kill ();
    test_files ();
    test_stopped ();
    unlink (path);
    wait_all ();
    return tap_done ();
}
