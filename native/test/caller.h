/* A process that makes an announced call. */
#ifndef NVC_TEST_CALLER_H
#define NVC_TEST_CALLER_H

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALLER_PAGE 4096u
#define CALLER_REQUEST 0xc0104629u /* FREE; the only call that is announced */
#define CALLER_SKIP "1..0 # SKIP no listener"

static inline void *caller_page (void)
{
    return mmap (NULL, CALLER_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* In the child: its calls are announced, and the pipe is told by which descriptor. */
static inline void caller_begin (int told)
{
    struct sock_filter steps[] = {
        BPF_STMT (BPF_LD | BPF_W | BPF_ABS, 24), /* the low half of the second argument */
        BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, CALLER_REQUEST, 0, 1),
        BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof (steps) / sizeof (steps[0]), steps };
    int listener;

    prctl (PR_SET_PDEATHSIG, SIGKILL);
    prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener = (int) syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0 || write (told, &listener, sizeof (listener)) != sizeof (listener))
        _exit (1);
}

/* In the parent: its listener; -1: CALLER_SKIP. told: both ends. */
static inline int caller_listener (pid_t pid, const int told[2])
{
    int number;

    close (told[1]);
    if (read (told[0], &number, sizeof (number)) != sizeof (number))
        return -1;
    return (int) syscall (SYS_pidfd_getfd, (int) syscall (SYS_pidfd_open, pid, 0), number, 0);
}

#endif
