/* A child that shares its parent's memory makes a call of the driver, executes this program again, and makes another one.
   The guard has the parent's memory open for it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
struct alloc {
    uint32_t root, parent, object, class_number;
    uint64_t params, rights;
    uint32_t size, flags, status, pad;
};
#define PLACE ((void *) 0x20000000)
#define CALL _IOWR ('F', 0x2b, struct alloc)
static int file;
static char *self;
static struct alloc *page (void)
{
    return mmap (PLACE, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
/* A device below a client that is not there: performed by the guard, and refused by the driver. */
static int call (uint32_t root)
{
    struct alloc *one = page ();
    *one = (struct alloc) { .root = root, .parent = root, .object = 5, .class_number = 0x80, .status = 0xffff };
    return ioctl (file, CALL, one) < 0 ? -errno : (int) one->status;
}
static int child (void *unused)
{
    (void) unused;
    printf ("child %x\n", call (0x11));
    fflush (stdout);
    execl (self, self, "after", NULL);
    _exit (1);
}
int main (int argc, char **argv)
{
    static char stack[65536];
    struct alloc *one;
    int pid;
    self = argv[0];
    file = open ("/dev/nvidiactl", O_RDWR);
    if (argc > 1) {
        usleep (300000); /* the parent puts its own there */
        printf ("executed %x\n", call (0x22));
        fflush (stdout);
        return 0;
    }
    pid = clone (child, stack + sizeof (stack), CLONE_VM | SIGCHLD, NULL);
    usleep (100000);
    one = page ();
    *one = (struct alloc) { .root = 0x33, .parent = 0x33, .object = 5, .class_number = 0x80, .status = 0xaaaa };
    waitpid (pid, NULL, 0);
    printf ("parent's status %x\n", one->status);
    return 0;
}
