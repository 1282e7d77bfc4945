/*
 * What an attacker tries who executes code in a confined process (supervisor/confine.c), for programs that are linked with it. A line of JSON
 * for each attempt: its name, what it was about, and 0 or the errno.
 */
#ifndef NVC_TEST_HOSTILE_H
#define NVC_TEST_HOSTILE_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* No process reads its own standard error. Before it is confined. */
__attribute__ ((constructor)) static void open_report (void)
{
    const char *path = getenv ("NVC_TEST_REPORT");
    int file = path != NULL ? open (path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;

    if (file >= 0)
        (void) dup2 (file, STDERR_FILENO);
}

static void say (const char *name, int target, long result)
{
    char line[160];
    int size = snprintf (line, sizeof (line), "{\"attempt\": \"%s\", \"target\": %d, \"errno\": %d}\n", name, target,
                         result < 0 ? errno : 0);

    /* dprintf seeks first, which is not on the list. */
    if (write (STDERR_FILENO, line, (size_t) size) != size)
        _exit (1);
}

#define TRY(call, ...) say (#call, 0, syscall (SYS_##call, __VA_ARGS__))
#define TRY_ON(call, target, ...) say (#call, target, syscall (SYS_##call, __VA_ARGS__))

/* What the host, or any process of it, has. */
static void attack_host (void)
{
    char path[] = "/etc/passwd", byte = 0;
    struct iovec part = { &byte, 1 };

    (void) part;
    TRY (openat, AT_FDCWD, path, O_RDONLY);
    TRY (openat, AT_FDCWD, "/", O_PATH);
    TRY (openat, AT_FDCWD, "..", O_PATH);
    TRY (openat, AT_FDCWD, "/tmp/nvc-hostile", O_CREAT | O_WRONLY, 0600);
    TRY (openat2, AT_FDCWD, path, NULL, 0);
    TRY (newfstatat, AT_FDCWD, path, NULL, 0);
    TRY (unlinkat, AT_FDCWD, path, 0);
    TRY (open_by_handle_at, 0, NULL, 0);
    TRY (chroot, ".");
    TRY (fchdir, 3);
    TRY (mount, "none", "/", "tmpfs", 0, NULL);
    TRY (unshare, CLONE_NEWUSER);
    TRY (setns, 3, 0);
    TRY (socket, AF_UNIX, SOCK_STREAM, 0);
    TRY (socket, AF_INET, SOCK_STREAM, 0);
    TRY (socketpair, AF_UNIX, SOCK_STREAM, 0, NULL);
    TRY (connect, 3, NULL, 0);
    TRY (execve, "/bin/sh", NULL, NULL);
    TRY (execveat, 3, "", NULL, NULL, AT_EMPTY_PATH);
    TRY (setresuid, 0, 0, 0);
    TRY (setresgid, 0, 0, 0);
    TRY (capset, NULL, NULL);
    TRY (bpf, 0, NULL, 0);
    TRY (io_uring_setup, 1, NULL);
    TRY (memfd_create, "x", 0);
    TRY (userfaultfd, 0);
    TRY (keyctl, 0, 0, 0, 0, 0);
    TRY (seccomp, 1, 0, NULL);
    TRY (prctl, 4, 1, 0, 0, 0); /* PR_SET_DUMPABLE */
    TRY (mmap, NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TRY (mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); /* RLIMIT_DATA does not count it */
    TRY (mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1, 0);
    TRY (mprotect, (uintptr_t) &say & ~(uintptr_t) 4095, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
    TRY (clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0);
    TRY (clone3, NULL, 0);
    TRY (ioctl, STDERR_FILENO, 0x5412, &byte); /* TIOCSTI */
    TRY (ioctl, 3, 0x5421, &byte);             /* FIONBIO */
    TRY (fcntl, 3, F_SETOWN, 1);
    TRY (ftruncate, 5, 0);
}

/* The host's memory and process table: MiB that it gets, and processes. */
static void attack_amounts (void)
{
    const size_t piece = (size_t) 1 << 20;
    char *first = NULL, *next;
    int pieces = 0, processes = 0, status, gate[2];
    char byte;

    while (pieces < 4096 && (next = mmap (NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED) {
        *(char **) (void *) next = first;
        first = next;
        pieces++;
    }
    say ("memory", pieces, pieces < 4096 ? -1 : 0);
    while (first != NULL) {
        next = *(char **) (void *) first;
        munmap (first, piece);
        first = next;
    }
    if (pipe2 (gate, O_CLOEXEC) != 0)
        return;
    for (status = 1; processes < 4096 && (status = (int) syscall (SYS_clone, SIGCHLD, NULL, NULL, NULL, 0)) > 0; processes++)
        continue;
    if (status == 0) {
        close (gate[1]);
        syscall (SYS_exit_group, read (gate[0], &byte, 1) != 0);
    }
    say ("processes", processes, processes < 4096 ? -1 : 0);
    close (gate[0]);
    close (gate[1]);
    while (processes-- > 0)
        (void) syscall (SYS_wait4, -1, &status, 0, NULL);
}

static void attack_process (pid_t target)
{
    char byte = 0;
    struct iovec here = { &byte, 1 }, there = { &byte, 1 };

    TRY_ON (kill, target, target, SIGKILL);
    TRY_ON (tkill, target, target, SIGKILL);
    TRY_ON (tgkill, target, target, target, SIGKILL);
    TRY_ON (rt_sigqueueinfo, target, target, SIGKILL, NULL);
    TRY_ON (pidfd_open, target, target, 0);
    TRY_ON (ptrace, target, PTRACE_ATTACH, target, NULL, NULL);
    TRY_ON (process_vm_readv, target, target, &here, 1, &there, 1, 0);
    TRY_ON (process_vm_writev, target, target, &here, 1, &there, 1, 0);
    TRY_ON (kcmp, target, target, target, 0, 0, 0);
    TRY_ON (prlimit64, target, target, RLIMIT_NOFILE, NULL, NULL);
    TRY_ON (sched_setaffinity, target, target, 0, NULL);
    TRY_ON (setpriority, target, PRIO_PROCESS, target, 10);
    TRY_ON (perf_event_open, target, NULL, target, -1, -1, 0);
}

#endif
