/* A file of a FUSE file system of the program's own, whose server leaves one kind of request unanswered (linux/fuse.h). */
#include "attack.h"

#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define PAGE 4096u

static const struct {
    const char *name;
    uint32_t silent;
} modes[] = { { "stat", FUSE_GETATTR }, { "close", FUSE_FLUSH }, { "memory", FUSE_READ } };

static void answer (int device, uint64_t unique, int error, const void *data, size_t size)
{
    static uint8_t text[2 * PAGE];
    struct fuse_out_header head = { (uint32_t) (sizeof (head) + size), error, unique };

    memcpy (text, &head, sizeof (head));
    memcpy (text + sizeof (head), data, size);
    if (write (device, text, head.len) < 0 && errno != ENOENT)
        _exit (4);
}

static struct fuse_attr attributes (uint64_t node)
{
    return (struct fuse_attr) { .ino = node, .size = PAGE, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0600, .nlink = 1 };
}

static void one (int device, const struct fuse_in_header *in)
{
    static const uint8_t page[PAGE];
    struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = PAGE };
    struct fuse_entry_out entry = { .nodeid = 2, .attr = attributes (2), .entry_valid = 1000 };
    struct fuse_attr_out attr = { .attr = attributes (in->nodeid) };
    struct fuse_open_out opened = { .fh = 1 };

    switch (in->opcode) {
    case FUSE_INIT:
        answer (device, in->unique, 0, &init, sizeof (init));
        break;
    case FUSE_LOOKUP:
        answer (device, in->unique, 0, &entry, sizeof (entry));
        break;
    case FUSE_GETATTR:
        answer (device, in->unique, 0, &attr, sizeof (attr));
        break;
    case FUSE_OPEN:
        answer (device, in->unique, 0, &opened, sizeof (opened));
        break;
    case FUSE_READ:
        answer (device, in->unique, 0, page, PAGE);
        break;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        answer (device, in->unique, 0, page, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    default:
        answer (device, in->unique, -ENOSYS, page, 0);
    }
}

static void serve (int device, uint32_t silent)
{
    static uint8_t text[FUSE_MIN_READ_BUFFER + PAGE] __attribute__ ((aligned (8)));

    prctl (PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        const struct fuse_in_header *in = (const struct fuse_in_header *) text;
        ssize_t size = read (device, text, sizeof (text));

        if (size < 0 && errno == ENODEV)
            _exit (0); /* not mounted any more */
        if (size < 0)
            usleep (1000); /* not mounted yet */
        else if (in->opcode != silent)
            one (device, in);
    }
}

/* The device, wherever a node of it can be made. */
static int open_device (void)
{
    int device = open ("/dev/fuse", O_RDWR | O_CLOEXEC);

    if (device < 0 && mknod ("fuse-device", S_IFCHR | 0600, makedev (10, 229)) == 0) {
        device = open ("fuse-device", O_RDWR | O_CLOEXEC);
        unlink ("fuse-device");
    }
    return device;
}

/* The file, open; -1: such file systems cannot be mounted here. */
static int mounted (uint32_t silent, pid_t *server)
{
    char directory[] = "/tmp/attack.XXXXXX", options[80];
    int device, file = -1;

    if (mkdtemp (directory) == NULL || chdir (directory) != 0 || (device = open_device ()) < 0)
        return -1;
    *server = fork ();
    if (*server == 0)
        serve (device, silent);
    snprintf (options, sizeof (options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (mkdir ("files", 0700) == 0 && unshare (CLONE_NEWNS) == 0 && mount (NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount ("attack", "files", "fuse", 0, options) == 0)
        file = open ("files/file", O_RDWR | O_CLOEXEC);
    close (device);
    umount2 ("files", MNT_DETACH);
    rmdir ("files");
    rmdir (directory);
    return file;
}

struct given {
    int file;
    void *call;
};

static volatile bool is_announced;

static void *make (void *argument)
{
    const struct given *given = argument;

    ioctl (given->file, REQUEST (0x29, sizeof (struct release)), given->call);
    while (!is_announced) /* a call that is refused returns at once */
        usleep (1000);
    say ("returned", 1);
    return NULL;
}

/* fuse stat|close|memory [exchanged]: a call on the file, or one whose struct lies in a mapping of it, goes on until the server is killed,
 * whose pid is printed. Without it the program cannot end either. */
void attack_fuse (int argc, char **argv)
{
    static struct release release;
    struct bed bed;
    struct given given = { -1, &release };
    uint32_t silent = 0;
    pthread_t thread;
    pid_t server = 0;

    for (unsigned i = 0; argc > 0 && i < sizeof (modes) / sizeof (modes[0]); i++)
        if (strcmp (argv[0], modes[i].name) == 0)
            silent = modes[i].silent;
    given.file = mounted (silent, &server);
    say ("mounted", given.file >= 0);
    if (given.file < 0)
        return;
    bed = bed_open (); /* in the mount namespace that it is in from now on */
    if (argc > 1) { /* what was the driver's node is something else from now on */
        say ("descriptor", (uint64_t) bed.file);
        hold ();
        dup2 (given.file, bed.file);
        say ("exchanged", (uint64_t) server);
        hold ();
    }
    if (silent == FUSE_READ) {
        given.call = mmap (NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, given.file, 0);
        given.file = bed.file;
    }
    if (pthread_create (&thread, NULL, make, &given) != 0)
        exit (4);
    usleep (300000);
    say ("calling", (uint64_t) server);
    is_announced = true;
    hold ();
}
