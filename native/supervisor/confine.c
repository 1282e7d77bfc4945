/*
 * Confinement of nvc-supervisor. It handles what hostile containers say, so code execution in it must give no more than its container has:
 *
 * - a user of its own, no group, no capability: nothing of another tenant's, the agent's or the host's belongs to it;
 * - a root directory without files (of /proc, its own), and no system call that takes a path. (An empty mount namespace adds nothing to
 *   a list without open, and takes a copy of all of the host's mounts until it is emptied.)
 * - a seccomp list. Whatever is not on it fails with EPERM: no open, no socket, no exec, no signal, no ptrace, no memory of other processes,
 *   no new namespace, no executable memory. ioctl: NVIDIA's, two of UVM's and those of a seccomp listener.
 *
 * What takes rights is asked of the monitor (guard/privsep.h), which checks that it is about a process of the container.
 */
#include "confine.h"
#include "guard/guard.h"
#include "guard/notify.h"

#include "rm/nv_numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* include/uapi/linux/seccomp.h since 6.6; older headers do not have it. */
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS _IOW ('!', 4, uint64_t)
#endif
/* Pages of counters that tell of an execve, one a process (guard/space.c): more than a user may lock by default. */
#define LOCKED_MOST ((rlim_t) 64 << 20)
/* Private memory that can be written: a full ledger (RECORDS_MAX), stacks, and lists of all records while they are looked through. */
#define DATA_MOST ((rlim_t) 192 << 20)
/* Addresses: what malloc keeps for the heaps of threads, without memory. */
#define SPACE_MOST ((rlim_t) 1 << 30)
#define NAMESPACES (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

#define LOW(argument) ((uint32_t) (offsetof (struct seccomp_data, args) + (argument) * sizeof (uint64_t)))
#define LOAD(at) BPF_STMT (BPF_LD | BPF_W | BPF_ABS, (uint32_t) (at))
#define ALLOW BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define FAIL(number) BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (number))
/* Goes on unless the number is this one; `count` instructions about its arguments follow, the last of which returns. */
#define ON(number, count) BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, count)
#define ALWAYS(number) ON (number, 1), ALLOW
/* The argument, of 32 bits, is one of these, or the call fails. */
#define ONE_OF_2(number, argument, first, second)                                                                                  \
    ON (number, 5), LOAD (LOW (argument)), BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, first, 1, 0),                                      \
        BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, second, 0, 1), ALLOW, FAIL (EPERM)
#define NONE_OF(number, argument, bits)                                                                                            \
    ON (number, 4), LOAD (LOW (argument)), BPF_JUMP (BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0), ALLOW, FAIL (EPERM)

static const struct sock_filter list[] = {
    LOAD (offsetof (struct seccomp_data, arch)),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, SECCOMP_ARCH_NATIVE, 1, 0),
    BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    LOAD (offsetof (struct seccomp_data, nr)),
    /* The driver's (whose high bits are size and direction), two questions of UVM's (guard/uvm_file.c), and a listener's. */
    ON (ioctl, 11),
    LOAD (LOW (1)),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, (uint32_t) SECCOMP_IOCTL_NOTIF_RECV, 7, 0),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, (uint32_t) SECCOMP_IOCTL_NOTIF_SEND, 6, 0),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, (uint32_t) SECCOMP_IOCTL_NOTIF_ID_VALID, 5, 0),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, UVM_INITIALIZE, 4, 0),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, UVM_PAGEABLE_MEM_ACCESS, 3, 0),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, (uint32_t) SECCOMP_IOCTL_NOTIF_SET_FLAGS, 2, 0),
    BPF_STMT (BPF_ALU | BPF_AND | BPF_K, 0xff00),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, 'F' << 8, 0, 1),
    ALLOW,
    FAIL (EPERM),
    /* No executable memory; and none that is shared and of no file, which RLIMIT_DATA does not count. */
    ON (mmap, 7),
    LOAD (LOW (2)),
    BPF_JUMP (BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 4, 0),
    LOAD (LOW (3)),
    BPF_STMT (BPF_ALU | BPF_AND | BPF_K, MAP_SHARED | MAP_ANONYMOUS),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, MAP_SHARED | MAP_ANONYMOUS, 1, 0),
    ALLOW,
    FAIL (EPERM),
    NONE_OF (mprotect, 2, PROT_EXEC),
    NONE_OF (clone, 0, NAMESPACES),
    ON (clone3, 1),
    FAIL (ENOSYS), /* its flags lie in memory; libraries go on with clone */
    /* Signal 0: whether the process is there. */
    ONE_OF_2 (tgkill, 2, 0, 0),
    ONE_OF_2 (pidfd_send_signal, 1, 0, 0),
    ONE_OF_2 (fcntl, 1, F_DUPFD_CLOEXEC, F_GETFL),
    ONE_OF_2 (prctl, 0, PR_SET_NAME, PR_SET_TIMERSLACK),
    ALWAYS (pread64),
    ALWAYS (pwrite64),
    ALWAYS (read),
    ALWAYS (write),
    ALWAYS (futex),
#ifdef SYS_poll
    ALWAYS (poll),
#endif
    ALWAYS (ppoll),
#ifdef SYS_epoll_wait
    ALWAYS (epoll_wait),
#endif
    ALWAYS (epoll_pwait),
    ALWAYS (epoll_ctl),
    ALWAYS (epoll_create1),
    ALWAYS (eventfd2),
    ALWAYS (timerfd_create),
    ALWAYS (timerfd_settime),
    ALWAYS (pipe2),
    ALWAYS (recvmsg),
    ALWAYS (sendmsg),
    ALWAYS (shutdown),
    ALWAYS (close),
    ALWAYS (close_range),
    ALWAYS (munmap),
    ALWAYS (mremap),
    ALWAYS (madvise),
    ALWAYS (brk),
    ALWAYS (clock_gettime),
    ALWAYS (clock_nanosleep),
    ALWAYS (nanosleep),
    ALWAYS (restart_syscall),
    ALWAYS (fstat),
    ALWAYS (getpid),
    ALWAYS (gettid),
    ALWAYS (sched_yield),
    ALWAYS (setpriority),
    ALWAYS (set_robust_list),
    ALWAYS (rseq),
    ALWAYS (getrandom),
    ALWAYS (rt_sigaction),
    ALWAYS (rt_sigprocmask),
    ALWAYS (rt_sigreturn),
    ALWAYS (wait4),
    ALWAYS (exit),
    ALWAYS (exit_group),
    FAIL (EPERM),
};

static bool has_capabilities (void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    struct __user_cap_data_struct data[2] = { { 0 }, { 0 } };

    return syscall (SYS_capget, &header, data) != 0 ||
           (data[0].permitted | data[1].permitted | data[0].effective | data[1].effective) != 0;
}

int confine (uid_t user)
{
    struct sock_fprog program = { .len = sizeof (list) / sizeof (list[0]), .filter = (struct sock_filter *) (uintptr_t) list };
    struct rlimit locked = { LOCKED_MOST, LOCKED_MOST };
    struct rlimit data = { DATA_MOST, DATA_MOST }, space = { SPACE_MOST, SPACE_MOST };

    (void) setrlimit (RLIMIT_MEMLOCK, &locked);
    (void) setrlimit (RLIMIT_DATA, &data);
    (void) setrlimit (RLIMIT_AS, &space);
    if (user == 0)
        return -EINVAL;
    /* glibc's own would tell other threads, of which there are none. */
    if (chroot ("/proc/self/fdinfo") != 0 || chdir ("/") != 0 || syscall (SYS_setgroups, 0, NULL) != 0 ||
        syscall (SYS_setresgid, user, user, user) != 0 || syscall (SYS_setresuid, user, user, user) != 0)
        return -errno;
    if (has_capabilities () || prctl (PR_SET_DUMPABLE, 0) != 0 || prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -EPERM;
    /* Mitigations of speculation that come with a filter by default are of no use here, and cost (Linux before 5.16). */
    return syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) == 0 ? 0 : -errno;
}
