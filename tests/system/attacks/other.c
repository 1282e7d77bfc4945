/* Other ways into the kernel; what a call costs. */
#include "attack.h"

#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#ifdef __x86_64__
long entry_32 (long number, long one, long two, long three)
{
    long result;

    __asm__ volatile ("int $0x80"
                      : "=a"(result)
                      : "a"(number), "b"(one), "c"(two), "d"(three)
                      : "memory", "r8", "r9", "r10", "r11");
    return result;
}

/* How a child that does it ends: its exit code, or 256 + the signal. */
static uint64_t try_entry (bool is_32)
{
    int status = 0;
    pid_t child = fork ();

    if (child == 0) {
        struct bed bed = bed_open ();
        struct both {
            struct alloc call;
            struct memory params;
        } *low = mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        long result;

        low->params = memory_of (20 * GIB);
        low->call = (struct alloc) { bed.client, bed.device, bed.next, 0x40, (uintptr_t) &low->params, 0, 0, 0, 0xffff, 0 };
        if (is_32)
            result = entry_32 (54, bed.file, (long) REQUEST (0x2b, 48), (long) low);
        else
            result = syscall (0x40000000 | 514, bed.file, REQUEST (0x2b, 48), low) < 0 ? -errno : 0;
        _exit (low->call.status == 0 ? 0 : result < 0 ? (int) -result & 0xff : 255);
    }
    waitpid (child, &status, 0);
    return WIFSIGNALED (status) ? 256u + (uint64_t) WTERMSIG (status) : (uint64_t) WEXITSTATUS (status);
}
#endif

void attack_entries (int argc, char **argv)
{
    (void) argc, (void) argv;
#ifdef __x86_64__
    say ("int80", try_entry (true));
    say ("x32", try_entry (false));
#endif
}

/* One submission, waited for. */
static int submit (int ring, const struct io_uring_params *params, uint8_t *rings, struct io_uring_sqe *entries,
                   const struct io_uring_sqe *entry)
{
    uint32_t *tail = (uint32_t *) (void *) (rings + params->sq_off.tail),
             *array = (uint32_t *) (void *) (rings + params->sq_off.array);
    uint32_t *head = (uint32_t *) (void *) (rings + params->cq_off.head), place = *tail & (params->sq_entries - 1);
    const struct io_uring_cqe *answers = (const struct io_uring_cqe *) (const void *) (rings + params->cq_off.cqes);
    int result;

    entries[place] = *entry;
    array[place] = place;
    __atomic_store_n (tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall (SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return -errno;
    result = answers[*head & (params->cq_entries - 1)].res;
    __atomic_store_n (head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

/* io_uring opens the node; but it has no ioctl, and the driver takes none of its commands. */
void attack_uring (int argc, char **argv)
{
    struct io_uring_params params = { 0 };
    int ring = (int) syscall (SYS_io_uring_setup, 4, &params), node;

    (void) argc, (void) argv;
    if (ring < 0) {
        say ("ring", (uint64_t) errno);
        return;
    }
    uint8_t *rings = mmap (NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                                         (off_t) IORING_OFF_SQES);
    if (rings == MAP_FAILED || (void *) entries == MAP_FAILED) {
        say ("ring", (uint64_t) errno);
        return;
    }
    struct io_uring_sqe entry = {
        .opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t) "/dev/nvidiactl", .open_flags = O_RDWR
    };
    node = submit (ring, &params, rings, entries, &entry);
    say ("ring", 0);
    say ("opened", node >= 0);
    if (node < 0)
        return;
    struct alloc call = { .status = 0xffff };
    entry = (struct io_uring_sqe) { .opcode = 46 /* URING_CMD */, .fd = node, .addr = (uintptr_t) &call };
    entry.off = REQUEST (0x2b, sizeof (call)); /* cmd_op */
    say ("command", (uint64_t) -submit (ring, &params, rings, entries, &entry));
    say ("status", call.status);
}

/* churn ROUNDS MEBIBYTES: nanoseconds of an allocation and its freeing: the median, the longest, and that of 99 in 100. ROUNDS 0: until a
 * line is told it. */
static int compare (const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *) one, b = *(const uint64_t *) other;

    return a < b ? -1 : a > b;
}

void attack_churn (int argc, char **argv)
{
    struct bed bed = bed_open ();
    unsigned asked = argc > 0 ? (unsigned) atoi (argv[0]) : 1000, most = asked > 0 ? asked : 1u << 23, rounds = 0, bad = 0;
    uint64_t size = (argc > 1 ? (uint64_t) atoi (argv[1]) : 4) * MIB, *times = calloc (most, sizeof (*times));
    struct pollfd told = { .fd = STDIN_FILENO, .events = POLLIN };

    for (; rounds < most && (asked > 0 || poll (&told, 1, 0) == 0); rounds++) {
        struct timespec from, to;
        uint32_t handle;

        clock_gettime (CLOCK_MONOTONIC, &from);
        bad += bed_memory (&bed, &handle, size) != 0;
        bad += bed_free (&bed, handle) != 0;
        clock_gettime (CLOCK_MONOTONIC, &to);
        times[rounds] = (uint64_t) (to.tv_sec - from.tv_sec) * 1000000000u + (uint64_t) (to.tv_nsec - from.tv_nsec);
    }
    qsort (times, rounds, sizeof (*times), compare);
    say ("bad", bad);
    say ("median", times[rounds / 2]);
    say ("slowest", times[rounds - 1]);
    say ("p99", times[(uint64_t) rounds * 99 / 100]);
}

static uint32_t bed_small_memory (struct bed *bed, uint32_t *handle)
{
    struct memory params = memory_of (4096);

    params.attributes |= 0x800000;
    *handle = bed->next++;
    return bed_alloc (bed, bed->device, *handle, 0x40, &params);
}

/* contexts COUNT [CHANNELS]: groups of channels of the graphics engine, each with so many. */
void attack_contexts (int argc, char **argv)
{
    struct bed bed = bed_open ();
    unsigned count = argc > 0 ? (unsigned) atoi (argv[0]) : 64, made = 0;

    for (unsigned i = 0; i < count; i++) {
        uint32_t group[8] = { 0, 0, 0, 1 }, handle = bed.next++;
        static uint32_t channel[92]; /* as the driver of a machine of 580 has it */

        made += bed_alloc (&bed, bed.device, handle, 0xa06c, group) == 0;
        for (int k = argc > 1 ? atoi (argv[1]) : 0; k > 0; k--)
            made += bed_alloc (&bed, handle, bed.next++, 0xc86f, channel) == 0;
    }
    say ("made", made);
    hold ();
}

/* batch PIECES: so many pieces of memory, and then one call that frees all of them, with the device above; nanoseconds that it took. */
void attack_batch (int argc, char **argv)
{
    struct bed bed = bed_open ();
    unsigned count = argc > 0 ? (unsigned) atoi (argv[0]) : 1, bad = 0;
    struct timespec from, to;

    for (unsigned i = 0; i < count; i++) {
        uint32_t handle;

        /* of pages of 4 KiB: the driver says so, and takes 64 KiB */
        bad += (argc > 1 ? bed_small_memory (&bed, &handle) : bed_memory (&bed, &handle, 65536)) != 0;
    }
    say ("bad", bad);
    hold ();
    clock_gettime (CLOCK_MONOTONIC, &from);
    say ("status", bed_free (&bed, bed.device));
    clock_gettime (CLOCK_MONOTONIC, &to);
    say ("took", (uint64_t) (to.tv_sec - from.tv_sec) * 1000000000u + (uint64_t) (to.tv_nsec - from.tv_nsec));
    hold ();
}

static uint32_t free_from_constant (struct bed *bed, uint32_t status)
{
    struct release *call = mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct memory params = memory_of (MIB);
    uint32_t handle = bed->next + 0x1000 + status;

    if (call == MAP_FAILED || bed_alloc (bed, bed->device, handle, 0x40, &params) != 0)
        exit (6);
    *call = (struct release) { bed->client, bed->device, handle, status };
    mprotect (call, 4096, PROT_READ);
    return ioctl (bed->file, REQUEST (0x29, sizeof (*call)), call) < 0 ? (uint32_t) errno : call->status;
}

/* unchanged: two calls whose struct cannot be written to. To one nothing new is to be written. */
void attack_unchanged (int argc, char **argv)
{
    struct bed bed = bed_open ();

    (void) argc, (void) argv;
    say ("unchanged", free_from_constant (&bed, 0));
    say ("changed", free_from_constant (&bed, 0xffff));
}
