/* The limits file: only a complete and valid one is accepted; a reader never sees half of an update. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/limits.h"
#include "tap.h"

static void seal (struct limits *limits) { limits->checksum = limits_checksum ((char *) limits + 64, LIMITS_SIZE - 64); }

static void fill (struct limits *limits)
{
    memset (limits, 0, sizeof *limits);
    limits->magic = LIMITS_MAGIC;
    limits->version = LIMITS_VERSION;
    limits->size = LIMITS_SIZE;
    limits->gpu_count = 1;
    limits->gpus[0].memory = 1 << 30;
    strcpy (limits->driver, "580.105.08");
    seal (limits);
}

static void test_checks (void)
{
    static struct limits good, bad, copy;
    bool all = true;

    fill (&good);
    tap_ok (limits_checksum ("123456789", 9) == 0xcbf43926u, "the checksum is the one of IEEE 802.3");
    tap_ok (limits_read (&good, &copy) && memcmp (&good, &copy, sizeof good) == 0, "a good file is read whole");
    for (unsigned byte = 0; byte < LIMITS_SIZE; byte += byte < 64 ? 1 : 13)
        if (byte < 12 || (byte >= 16 && byte < 20) || byte >= 64) {
            bad = good;
            ((unsigned char *) &bad)[byte] ^= 0x10;
            all &= !limits_valid (&bad);
        }
    tap_ok (all, "a file with a changed byte is refused");
#define REFUSED(change, claim)                                                                                                     \
    do {                                                                                                                           \
        bad = good;                                                                                                                \
        change;                                                                                                                    \
        seal (&bad);                                                                                                               \
        tap_ok (!limits_valid (&bad), claim);                                                                                      \
    } while (0)
    REFUSED (bad.gpu_count = 33, "more GPUs than there is room for are refused, good checksum or not");
    REFUSED (bad.node_count = 65, "and more nodes");
    REFUSED (memset (bad.driver, '5', 32), "and an unterminated version");
    REFUSED (bad.gpus[0].cap = 1001, "and a cap above the whole");
    REFUSED (bad.gpus[0].priority = 3, "and an undefined priority");
    REFUSED (bad.version = 2, "and another version of the file");
    bad = good;
    bad.generation = 1;
    tap_ok (!limits_read (&bad, &copy), "a writer killed in the middle leaves no limits, and a read ends soon");
}

/* Bit by bit, as CRC-32 is defined. */
static uint32_t plain_checksum (const unsigned char *bytes, size_t size)
{
    uint32_t sum = ~0u;

    for (size_t i = 0; i < size; i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    return ~sum;
}

static void test_runs (void)
{
    static unsigned char bytes[9000];
    bool same = true;

    srand (1);
    for (int turn = 0; turn < 400; turn++) {
        size_t size = (size_t) rand () % sizeof bytes, from = (size_t) rand () % 16, at = 0;

        while (at < sizeof bytes) {
            size_t piece = 1 + (size_t) rand () % (rand () % 2 ? 2000 : 20), end = at + piece;
            int zero = rand () % 2;

            for (; at < end && at < sizeof bytes; at++)
                bytes[at] = zero ? 0 : (unsigned char) rand ();
        }
        if (from + size > sizeof bytes)
            size = sizeof bytes - from;
        same &= limits_checksum (bytes + from, size) == plain_checksum (bytes + from, size);
    }
    memset (bytes, 0, sizeof bytes);
    for (size_t size = 0; size < sizeof bytes; size += 61)
        same &= limits_checksum (bytes, size) == plain_checksum (bytes, size);
    tap_ok (same, "runs of zeros of any length at any place have the right checksum");
}

static void test_files (void)
{
    char path[] = "/tmp/nvc-shim-limits-XXXXXX";
    static struct limits good;
    int descriptor = mkstemp (path);
    bool there = true;

    fill (&good);
    tap_ok (write (descriptor, &good, 100) == 100 && !limits_map (path, &there) && there, "a short file is not mapped");
    tap_ok (pwrite (descriptor, &good, sizeof good, 0) == (ssize_t) sizeof good && limits_map (path, &there) && there,
            "a whole one is");
    tap_ok (ftruncate (descriptor, LIMITS_SIZE + 1) == 0 && !limits_map (path, &there) && there, "a longer one is not");
    unlink (path);
    close (descriptor);
    tap_ok (!limits_map (path, &there) && !there, "a missing file is reported as missing");
    tap_ok (mkfifo (path, 0600) == 0 && !limits_map (path, &there) && there, "a FIFO does not block");
    unlink (path);
}

static struct limits live;
static int stop;

static void *writer (void *argument)
{
    uint32_t generation = 0;

    (void) argument;
    while (!__atomic_load_n (&stop, __ATOMIC_RELAXED)) {
        struct limits next = live;
        volatile uint64_t *to = (volatile uint64_t *) (void *) live.gpus;
        volatile uint64_t *from = (volatile uint64_t *) (void *) next.gpus;

        next.gpus[0].memory++;
        for (int i = 1; i < SHARE_MAX_GPUS; i++)
            next.gpus[i].memory = next.gpus[0].memory;
        seal (&next);
        __atomic_store_n (&live.generation, ++generation, __ATOMIC_SEQ_CST);
        for (unsigned i = 0; i < sizeof live.gpus / 8; i++)
            to[i] = from[i];
        __atomic_store_n (&live.checksum, next.checksum, __ATOMIC_SEQ_CST);
        __atomic_store_n (&live.generation, ++generation, __ATOMIC_SEQ_CST);
        usleep (20);
    }
    return NULL;
}

static void test_race (void)
{
    static struct limits copy;
    pthread_t thread;
    bool same = true;
    int good = 0;

    fill (&live);
    pthread_create (&thread, NULL, writer, NULL);
    while (live.generation < 10)
        usleep (10);
    for (int i = 0; i < 3000; i++)
        if (limits_read (&live, &copy)) {
            good++;
            for (int gpu = 1; gpu < SHARE_MAX_GPUS; gpu++)
                same &= copy.gpus[gpu].memory == copy.gpus[0].memory;
        }
    __atomic_store_n (&stop, 1, __ATOMIC_RELAXED);
    pthread_join (thread, NULL);
    tap_ok (same && good > 2900, "a reader concurrent with a busy writer gets complete limits only, and nearly always some");
}

int main (void)
{
    test_checks ();
    test_runs ();
    test_files ();
    test_race ();
    return tap_done ();
}
