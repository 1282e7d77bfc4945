/*
 * Mapping, reading and checking of the limits file (limits.h). Runs in every process of a container that uses a GPU, on
 * the calling thread, under the lock of the process (libnvc-shim.so) or of the state (libnvc-shim-api.so).
 */
#include "limits.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "plain.h"
#include "raw.h"

#define CHECKED_FROM 64u

const struct limits *limits_map (const char *path, bool *there)
{
    long descriptor = RAW4 (SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    struct stat file;
    long address;

    *there = descriptor >= 0 || (descriptor != -2 && descriptor != -20); /* ENOENT, ENOTDIR */
    if (descriptor < 0)
        return NULL;
    if (RAW2 (SYS_fstat, descriptor, &file) != 0 || !S_ISREG (file.st_mode) || file.st_size != LIMITS_SIZE) {
        RAW1 (SYS_close, descriptor);
        return NULL;
    }
    address = RAW (SYS_mmap, 0, LIMITS_SIZE, PROT_READ, MAP_SHARED, descriptor, 0);
    RAW1 (SYS_close, descriptor);
    return raw_failed (address) ? NULL : (const struct limits *) address;
}

/* Polynomials over GF(2) modulo CRC-32's; the highest bit is the coefficient of x^0. */
#define POLYNOMIAL 0xedb88320u
#define X_TO_THE_8 (1u << 23)

static uint32_t product (uint32_t one, uint32_t other)
{
    uint32_t result = 0;

    for (; one; one <<= 1) {
        result ^= one >> 31 ? other : 0;
        other = other >> 1 ^ (other & 1 ? POLYNOMIAL : 0);
    }
    return result;
}

/* The checksum after `count` more zero bytes: each is a multiplication by x^8. */
static uint32_t after_zeros (uint32_t sum, uint64_t count)
{
    for (uint32_t power = X_TO_THE_8; count; count >>= 1, power = product (power, power))
        if (count & 1)
            sum = product (power, sum);
    return sum;
}

static uint64_t zeros (const uint8_t *bytes, uint64_t size)
{
    uint64_t count = 0, word;

    for (; count + sizeof word <= size; count += sizeof word) {
        __builtin_memcpy (&word, bytes + count, sizeof word);
        if (word)
            break;
    }
    return count;
}

/* From this length on a run of zeros is faster by multiplication than byte by byte. */
#define LONG_RUN 128u

uint32_t limits_checksum (const void *bytes, uint64_t size)
{
    static const uint32_t nibbles[16] = { 0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
                                          0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                          0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c };
    const uint8_t *byte = bytes;
    uint32_t sum = ~0u;

    while (size) {
        uint64_t run = zeros (byte, size), length = run ? run : size < 8 ? size : 8;

        if (run >= LONG_RUN)
            sum = after_zeros (sum, run);
        else
            for (uint64_t i = 0; i < length; i++) {
                sum = nibbles[(sum ^ byte[i]) & 15] ^ (sum >> 4);
                sum = nibbles[(sum ^ (byte[i] >> 4)) & 15] ^ (sum >> 4);
            }
        byte += length;
        size -= length;
    }
    return ~sum;
}

bool limits_valid (const struct limits *copy)
{
    bool ended = false;

    if (copy->magic != LIMITS_MAGIC || copy->version != LIMITS_VERSION || copy->size != LIMITS_SIZE)
        return false;
    if (copy->checksum != limits_checksum ((const char *) copy + CHECKED_FROM, LIMITS_SIZE - CHECKED_FROM))
        return false;
    if (copy->gpu_count > SHARE_MAX_GPUS || copy->node_count > SHARE_MAX_NODES || copy->period > 10000000u)
        return false;
    for (unsigned i = 0; i < sizeof copy->driver; i++)
        ended |= copy->driver[i] == '\0';
    for (unsigned i = 0; ended && i < copy->gpu_count; i++)
        ended = copy->gpus[i].cap <= 1000 && copy->gpus[i].weight <= 1000 && copy->gpus[i].priority <= PRIORITY_HIGH;
    for (unsigned i = 0; ended && i < copy->node_count; i++)
        ended = copy->nodes[i].kind <= RM_NODE_UVM;
    return ended;
}

/* Writes only words that differ: most of a first copy is zero, and its pages need not be allocated. */
static void copy_over (struct limits *copy, const struct limits *shared)
{
    typedef uint64_t __attribute__ ((may_alias)) word;
    word *to = (word *) (void *) copy;
    const word *from = (const word *) (const void *) shared;

    for (size_t i = 0; i < sizeof *copy / sizeof *to; i++) {
        uint64_t value = LOAD_RELAXED (from[i]);

        if (to[i] != value)
            to[i] = value;
    }
}

bool limits_read (const struct limits *shared, struct limits *copy)
{
    /* A writer needs microseconds, or a tenth of a second on a busy machine. A killed writer leaves an odd generation,
     * a foreign one may leave anything: the number of attempts is limited. */
    for (int attempt = 0, bad = 0; attempt < 200 && bad < 5; attempt++) {
        uint32_t before = __atomic_load_n (&shared->generation, __ATOMIC_ACQUIRE);

        if (!(before & 1)) {
            copy_over (copy, shared);
            __atomic_thread_fence (__ATOMIC_ACQUIRE);
            if (LOAD_RELAXED (shared->generation) == before) {
                if (limits_valid (copy))
                    return true;
                bad++;
            }
        }
        raw_sleep (attempt < 20 ? 1000 : attempt < 100 ? 50000 : 1000000);
    }
    return false;
}

enum rm_node limits_node_kind (const struct limits *limits, const struct stat *file)
{
    for (unsigned i = 0; i < limits->node_count && i < SHARE_MAX_NODES; i++) {
        const struct limits_node *node = &limits->nodes[i];

        if (node->inode == 0 ? S_ISCHR (file->st_mode) && file->st_rdev == node->device
                             : file->st_dev == node->device && file->st_ino == node->inode)
            return (enum rm_node) node->kind;
    }
    return RM_NODE_OTHER;
}

int limits_find_gpu (const struct limits *limits, const uint8_t uuid[16])
{
    for (unsigned i = 0; i < limits->gpu_count; i++)
        if (memcmp (limits->gpus[i].uuid, uuid, 16) == 0)
            return (int) i;
    return RM_NO_GPU;
}
