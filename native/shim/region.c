/*
 * Slots of the region (region.h). Runs in every process of a container that uses a GPU, under the lock of the process
 * (libnvc-shim.so) or of the state (libnvc-shim-api.so); concurrent with all other processes of the container.
 */
#include "region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "identity.h"
#include "plain.h"
#include "raw.h"

/* Used slots that a process tries before it takes a new one. */
#define TRIES 8u
/* Above the numbers that programs get by counting from 3, and below BITS_PER_LONG, the size of every process's first
 * descriptor table: to enlarge that in a process with threads the kernel waits for a grace period of RCU, which took 10
 * to 15 ms of every program's first context (fs/file.c, expand_fdtable). */
#define HIGH_DESCRIPTOR 48

static long open_high (const char *path)
{
    long low = RAW4 (SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    long high;

    if (low < 0)
        return low;
    high = RAW3 (SYS_fcntl, low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0) /* a small RLIMIT_NOFILE */
        return low;
    RAW1 (SYS_close, low);
    return high;
}

static bool slot_lock (int descriptor, uint32_t index, short type)
{
    struct flock lock = { .l_type = type, .l_whence = 0, .l_start = (off_t) (REGION_LOCKS + index), .l_len = 1 };

    return RAW3 (SYS_fcntl, descriptor, F_OFD_SETLK, &lock) == 0;
}

static bool header_good (const struct region_header *header)
{
    return header->magic == REGION_MAGIC && header->version == REGION_VERSION && header->page == REGION_PAGE &&
           header->slots == REGION_SLOTS;
}

void region_groups_changed (struct region *region) { __atomic_add_fetch (&region->header->grouped, 1, __ATOMIC_SEQ_CST); }

/* Bounded by the number of slots, as other processes of the container may write anything into the header. */
static uint32_t high (const struct region *region)
{
    uint32_t count = LOAD (region->header->high);

    return count > REGION_SLOTS ? REGION_SLOTS : count;
}

static void clear_slot (struct region *region, struct region_slot *slot)
{
    for (unsigned gpu = 0; gpu < SHARE_MAX_GPUS; gpu++)
        if (LOAD_RELAXED (slot->groups[gpu]))
            region_groups_changed (region);
    memset ((char *) slot + 8, 0, sizeof *slot - 8);
    __atomic_add_fetch (&slot->generation, 1, __ATOMIC_SEQ_CST);
    STORE (slot->state, 0u);
}

/* The first use of a slot: allocates its page and raises `high`. Nothing else happens before that, since hundreds of
 * starting processes may find the slot locked meanwhile and try the next one. */
static bool make_slot (struct region *region, int descriptor, uint32_t index)
{
    uint32_t count = LOAD (region->header->high);
    char zero = 0;

    /* A full file system fails here with ENOSPC, not with a SIGBUS at the first store. Byte 4095 is spare. */
    if (RAW4 (SYS_pwrite64, descriptor, &zero, 1, REGION_PAGE * ((uint64_t) index + 2) - 1) != 1)
        return false;
    while (count < index + 1 &&
           !__atomic_compare_exchange_n (&region->header->high, &count, index + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return true;
}

/* Takes over a slot whose lock this process holds: its previous owner has ended. */
static bool own_slot (struct region *region, uint32_t index)
{
    struct region_slot *slot = &region->slots[index];

    if (LOAD (slot->state) != 0)
        clear_slot (region, slot);
    slot->pid = (uint32_t) RAW0 (SYS_getpid);
    STORE (slot->state, 1u);
    region->index = index;
    region->slot = slot;
    return true;
}

static bool take_new_slot (struct region *region, int descriptor)
{
    for (uint32_t i = high (region); i < REGION_SLOTS; i++) {
        if (!slot_lock (descriptor, i, F_WRLCK))
            continue;
        if (make_slot (region, descriptor, i))
            return own_slot (region, i);
        slot_lock (descriptor, i, F_UNLCK);
        break;
    }
    return false;
}

/* Tries slots of ended processes first, so that there are never many more than live processes: all of them where there
 * are few, otherwise a sample. Only the locks are tried, since a read of a slot touches a page. Processes that start
 * together have consecutive pids and begin at different slots. Slots from `high` on are not read: on a full file system
 * that raises SIGBUS. */
static bool find_slot (struct region *region, int descriptor)
{
    uint32_t count = high (region), pid = (uint32_t) RAW0 (SYS_getpid), step = count <= TRIES ? 1 : 0x9e3779b9u;

    for (uint32_t i = 0; i < TRIES && i < count; i++)
        if (slot_lock (descriptor, (pid + i * step) % count, F_WRLCK))
            return own_slot (region, (pid + i * step) % count);
    if (take_new_slot (region, descriptor))
        return true;
    for (uint32_t i = 0; i < count; i++)
        if (slot_lock (descriptor, i, F_WRLCK))
            return own_slot (region, i);
    return false;
}

static bool attach_file (struct region *region, const char *path)
{
    long address, descriptor = RAW4 (SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    bool found = false;
    struct stat file;

    if (descriptor < 0)
        return false;
    if (RAW2 (SYS_fstat, descriptor, &file) != 0 || !S_ISREG (file.st_mode) || file.st_size != (off_t) REGION_SIZE)
        goto close;
    address = RAW (SYS_mmap, 0, REGION_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (raw_failed (address))
        goto close;
    region->header = (struct region_header *) address;
    region->slots = (struct region_slot *) (address + REGION_PAGE);
    region->device = file.st_dev;
    region->inode = file.st_ino;
    region->path = path;
    found = header_good (region->header) && find_slot (region, (int) descriptor);
    if (!found)
        RAW2 (SYS_munmap, address, REGION_SIZE);
close:
    RAW1 (SYS_close, descriptor);
    return found;
}

bool region_attach (struct region *region, const char *path)
{
    memset (region, 0, sizeof *region);
    region->descriptor = -1;
    if (path && attach_file (region, path))
        return true;
    memset (region, 0, sizeof *region);
    region->descriptor = -1;
    region->private = true;
    region->header = raw_pages (2 * REGION_PAGE);
    if (!region->header)
        return false;
    region->slots = (struct region_slot *) ((char *) region->header + REGION_PAGE);
    region->slot = region->slots;
    region->header->high = 1;
    region->slot->pid = (uint32_t) RAW0 (SYS_getpid);
    region->slot->state = 1;
    return true;
}

void region_identify (struct region *region)
{
    if (region->identified)
        return;
    region->identified = true;
    identity_fill (region->slot);
    region_descriptor (region);
}

void region_detach (struct region *region)
{
    if (!region->header)
        return;
    if (!region->private)
        clear_slot (region, region->slot);
    if (region->descriptor >= 0)
        RAW1 (SYS_close, region_descriptor (region));
    RAW2 (SYS_munmap, region->header, region->private ? 2 * REGION_PAGE : REGION_SIZE);
    memset (region, 0, sizeof *region);
    region->descriptor = -1;
}

int region_descriptor (struct region *region)
{
    struct stat file;
    long descriptor = region->descriptor;

    if (region->private)
        return -1;
    if (descriptor >= 0 && RAW2 (SYS_fstat, descriptor, &file) == 0 && file.st_dev == region->device &&
        file.st_ino == region->inode)
        return (int) descriptor;
    descriptor = open_high (region->path);
    if (descriptor >= 0 &&
        (RAW2 (SYS_fstat, descriptor, &file) != 0 || file.st_dev != region->device || file.st_ino != region->inode)) {
        RAW1 (SYS_close, descriptor);
        descriptor = -1;
    }
    region->descriptor = descriptor < 0 ? -1 : (int) descriptor;
    return region->descriptor;
}

void region_sweep_throttled (struct region *region)
{
    uint64_t now = raw_now (), last = LOAD (region->header->swept_ns);

    if (high (region) <= REGION_FEW || now - last >= REGION_FRESH_NS)
        region_sweep (region);
}

unsigned region_sweep (struct region *region)
{
    uint32_t count = high (region);
    int descriptor = -1;
    unsigned swept = 0;

    STORE (region->header->swept_ns, raw_now ());
    for (uint32_t i = 0; i < count; i++) {
        if (i == region->index || LOAD (region->slots[i].state) == 0)
            continue;
        if (descriptor < 0 && (descriptor = region_descriptor (region)) < 0)
            return 0;
        if (!slot_lock (descriptor, i, F_WRLCK))
            continue;
        if (LOAD (region->slots[i].state) != 0) {
            clear_slot (region, &region->slots[i]);
            swept++;
        }
        slot_lock (descriptor, i, F_UNLCK);
    }
    return swept;
}

static uint64_t add (uint64_t one, uint64_t other) { return one > UINT64_MAX - other ? UINT64_MAX : one + other; }

uint64_t region_sum (const struct region *region, int gpu, bool pending)
{
    uint32_t count = high (region);
    uint64_t sum = 0;

    /* pending before memory: a grant adds to memory first and subtracts from pending then, so it is counted at least
     * once. */
    for (uint32_t i = 0; i < count; i++) {
        if (pending)
            sum = add (sum, LOAD (region->slots[i].pending[gpu]));
        sum = add (sum, LOAD (region->slots[i].memory[gpu]));
    }
    return sum;
}

uint32_t region_groups (const struct region *region, int gpu)
{
    uint32_t count = high (region), sum = 0;

    for (uint32_t i = 0; i < count; i++)
        if (LOAD_RELAXED (region->slots[i].state))
            sum += LOAD_RELAXED (region->slots[i].groups[gpu]) & 0xffff;
    return sum;
}

struct region_place region_place (const struct region *region, int gpu)
{
    uint32_t count = high (region);
    struct region_place place = { 0, 0 };

    for (uint32_t i = 0; i < count; i++) {
        if (!LOAD_RELAXED (region->slots[i].state) || !(LOAD_RELAXED (region->slots[i].groups[gpu]) & 0xffff))
            continue;
        place.count++;
        place.rank += i < region->index;
    }
    return place;
}

bool region_has_process (struct region *region, uint32_t pid)
{
    uint32_t count = high (region);

    region_identify (region);
    for (uint32_t i = 0; i < count; i++)
        if (LOAD_RELAXED (region->slots[i].state) && region->slots[i].pid == pid &&
            region->slots[i].pid_namespace == region->slot->pid_namespace)
            return true;
    return false;
}

void region_note (struct region *region, unsigned reason, uint32_t number)
{
    if (reason >= 32)
        return;
    __atomic_store_n (&region->header->notes[reason].last, number, __ATOMIC_RELAXED);
    __atomic_add_fetch (&region->header->notes[reason].count, 1, __ATOMIC_RELAXED);
}
