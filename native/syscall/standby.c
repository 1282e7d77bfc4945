/* The standby process of ldconfig (standby.h). Runs in the sandboxed child that executes ldconfig, started in
 * advance, on its only thread, in place of the rest of nvc/container/ldcache/sandbox.py. */
#include "syscall/standby.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "shim/raw.h"

/* asm/unistd.h of Linux 5.2 and 5.9; older headers build this too. */
#ifndef SYS_move_mount
#define SYS_move_mount 429
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum {
    MAX_INSTRUCTIONS = 1024,
    MAX_RANGES = 1024,
    MAX_ARGUMENTS = 1024,
    /* INLINE of rpc.channel, the most that a packet holds. */
    MAX_TEXT = 64 << 10,
    /* The container's tree, and a program. */
    MAX_DESCRIPTORS = 2,
    /* The numbers of the descriptors that stay until the program is executed. */
    PROGRAM = 3,
    REPORT = 4,
    MAX_OPEN = 1024,
    /* aarch64 may have pages of 64 KiB. */
    LARGEST_PAGE = 64 << 10,
    /* linux/mount.h, which libc's sys/mount.h does not go with: MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH */
    BY_DESCRIPTORS = 0x44,
    /* linux/prctl.h of Linux 6.13 */
    GET_SHADOW_STACK_STATUS = 74,
};
/* Names of calls and steps are arrays, not pointers, so that nothing of this is relocated. */
static const char COVERED[STANDBY_COVERS][8] = { "/proc", "/sys", "/dev" };

/* The request after rpc.channel's byte for the kind of packet: `go` of nvc/container/ldcache/process.py. */
struct request {
    uint32_t uid, gid;
};

/* struct user_msghdr of the kernel. */
struct packet {
    void *name;
    int32_t namelen;
    struct iovec *parts;
    size_t count;
    void *control;
    size_t controllen;
    uint32_t flags;
};

static struct standby_orders orders;
static struct sock_filter filter[MAX_INSTRUCTIONS];
static struct standby_range ranges[MAX_RANGES];
static struct request request;
static char text[MAX_TEXT];
static char *arguments[MAX_ARGUMENTS + 1];
static int32_t tree;

/* Begin and end of this library, symbols of the linker. */
extern const char __ehdr_start[] __attribute__ ((visibility ("hidden")));
extern const char _end[] __attribute__ ((visibility ("hidden")));

static void copy (void *to, const void *from, size_t size)
{
    for (size_t index = 0; index < size; index++)
        ((volatile char *) to)[index] = ((const char *) from)[index];
}

/* The thread control block: the kernel writes to the rseq area in it whenever this process is interrupted. */
static uint64_t thread_block (void)
{
    uint64_t place;
#if defined(__x86_64__)
    __asm__ volatile ("mov %%fs:0, %0" : "=r"(place));
#else
    __asm__ volatile ("mrs %0, tpidr_el0" : "=r"(place));
#endif
    return place;
}

/* A shadow stack, which cannot be distinguished from other mappings. */
static bool has_shadow_stack (void)
{
    uint64_t status = 0;
#if defined(__x86_64__)
    __asm__ volatile ("rdsspq %0" : "+r"(status));
    return status != 0;
#else
    return RAW5 (SYS_prctl, GET_SHADOW_STACK_STATUS, &status, 0, 0, 0) == 0 && status != 0;
#endif
}

/* Addresses in use, and the pages around them that stay mapped. */
struct keep {
    uint64_t first, last;
    struct standby_range pages;
};

static struct keep keep_around (uint64_t first, uint64_t last, uint64_t room)
{
    struct keep kept;
    kept.first = first;
    kept.last = last;
    kept.pages.start = (first - room) & ~(uint64_t) (LARGEST_PAGE - 1);
    kept.pages.end = ((last + room) | (LARGEST_PAGE - 1)) + 1;
    return kept;
}

static void unmap (uint64_t start, uint64_t end)
{
    if (start < end)
        RAW2 (SYS_munmap, start, end - start);
}

/* Unmaps the ranges except the pages in use. A range may be larger than those, as the kernel merges adjacent
 * mappings. */
static void unmap_unused (size_t count)
{
    uint64_t block = thread_block (), stack = (uint64_t) (uintptr_t) __builtin_frame_address (0);
    const struct keep kept[] = {
        keep_around ((uint64_t) (uintptr_t) __ehdr_start, (uint64_t) (uintptr_t) _end, 0),
        keep_around (block, block, LARGEST_PAGE),
        keep_around (stack, stack, LARGEST_PAGE),
    };
    enum { KEPT = sizeof kept / sizeof kept[0] };
    for (size_t index = 0; index < count; index++) {
        const struct standby_range *range = &ranges[index];
        uint64_t start = range->start, end = range->end;
        while (start < end) {
            /* Up to the next pages in use, then after them. */
            uint64_t next = end, behind = end;
            for (size_t one = 0; one < KEPT; one++)
                if (kept[one].first < range->end && kept[one].last >= range->start && kept[one].pages.end > start &&
                    kept[one].pages.start < next) {
                    next = kept[one].pages.start > start ? kept[one].pages.start : start;
                    behind = kept[one].pages.end;
                }
            unmap (start, next);
            start = behind;
        }
    }
    if (stack >= orders.stack.start && stack < orders.stack.end)
        unmap (orders.stack.start, kept[KEPT - 1].pages.start);
}

/* Resets handlers, whose code will be unmapped. Ignored signals stay ignored. */
static void reset_handlers (void)
{
    /* struct kernel_sigaction: function, flags, then restorer (not everywhere) and mask; all of it is long. */
    unsigned long action[4];
    for (int number = 1; number < 65; number++) {
        if (RAW4 (SYS_rt_sigaction, number, NULL, action, sizeof (uint64_t)) != 0 || action[0] == (unsigned long) SIG_IGN ||
            action[0] == (unsigned long) SIG_DFL)
            continue;
        action[0] = (unsigned long) SIG_DFL;
        RAW4 (SYS_rt_sigaction, number, action, NULL, sizeof (uint64_t));
    }
}

static __attribute__ ((noreturn)) void leave (void)
{
    for (;;)
        RAW1 (SYS_exit_group, 1);
}

/* what: step and system call. errno follows after a NUL; nvc/container/ldcache/process.py makes a message of it. */
static __attribute__ ((noreturn)) void fail (const char *what, long error)
{
    char line[128];
    size_t length = 0;
    for (; what[length] != '\0' && length < sizeof line - 2; length++)
        ((volatile char *) line)[length] = what[length];
    line[length++] = '\0';
    line[length++] = (char) -error;
    RAW3 (SYS_write, orders.report, line, length);
    leave ();
}

static long must (long result, const char *what)
{
    if (raw_failed (result))
        fail (what, result);
    return result;
}

/* Receives the request; false: the socket was closed. */
static bool receive (void)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE (MAX_DESCRIPTORS * sizeof (int32_t))];
    } control;
    char kind = 0;
    struct iovec parts[] = { { &kind, 1 }, { &request, sizeof request }, { text, sizeof text - 1 } };
    struct packet message = { NULL, 0, parts, 3, &control, sizeof control, 0 };
    long got = RAW3 (SYS_recvmsg, orders.end, &message, MSG_CMSG_CLOEXEC);
    if (got == 0)
        return false;
    must (got, "process set-up failed: recvmsg");
    size_t before = 1 + sizeof request, size = (size_t) got;
    const struct cmsghdr *header = &control.header;
    if (kind != 'J' || size <= before || (message.flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
        message.controllen < CMSG_LEN (sizeof (int32_t)) || header->cmsg_type != SCM_RIGHTS)
        fail ("process set-up failed: recvmsg", -EPROTO);
    const char *sent = (const char *) &control + CMSG_LEN (0);
    copy (&tree, sent, sizeof tree);
    if (header->cmsg_len >= CMSG_LEN (2 * sizeof (int32_t)))
        copy (&orders.program, sent + sizeof tree, sizeof tree);
    /* The arguments, each terminated by a NUL. */
    size_t count = 0;
    bool is_first = true;
    for (size_t index = 0; index < size - before; index++) {
        if (is_first && count == MAX_ARGUMENTS)
            fail ("process set-up failed: recvmsg", -E2BIG);
        if (is_first)
            arguments[count++] = text + index;
        is_first = text[index] == '\0';
    }
    return true;
}

/* Mounts the container's tree over the empty root, and covers its /proc, /sys and /dev. */
static void enter_tree (void)
{
    must (RAW5 (SYS_move_mount, tree, "", orders.ground, "", BY_DESCRIPTORS), "process confinement failed: move_mount");
    must (RAW1 (SYS_fchdir, tree), "process confinement failed: fchdir");
    must (RAW1 (SYS_chroot, "."), "process confinement failed: chroot");
    for (size_t index = 0; index < STANDBY_COVERS; index++) {
        long target = RAW4 (SYS_openat, AT_FDCWD, COVERED[index], O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
        if (target == -ENOENT || target == -ENOTDIR)
            continue;
        must (target, "process confinement failed: openat");
        must (RAW5 (SYS_move_mount, orders.covers[index], "", target, "", BY_DESCRIPTORS),
              "process confinement failed: move_mount");
        RAW1 (SYS_close, target);
    }
}

static void set_limits (void)
{
    /* struct rlimit64 of the kernel; ~0 is no limit. */
    struct {
        uint64_t soft, hard;
    } both;
    for (size_t index = 0; index < STANDBY_LIMITS; index++) {
        uint64_t kind = orders.limits[index].kind, value = orders.limits[index].value;
        must (RAW4 (SYS_prlimit64, 0, kind, NULL, &both), "resource limiting failed: getrlimit");
        both.soft = both.hard = value < both.hard ? value : both.hard;
        must (RAW4 (SYS_prlimit64, 0, kind, &both, NULL), "resource limiting failed: setrlimit");
    }
}

static void change_ids (void)
{
    uint32_t group = 0;
    if (request.uid != 0) {
        /* Without it the change of uid 0 drops the capabilities, DAC_OVERRIDE included. */
        long result = RAW5 (SYS_prctl, PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
        if (result != -EPERM)
            must (result, "privilege change failed: prctl");
    }
    /* 0: none; 1: one, perhaps the requested one; an error: more than one. */
    long groups = RAW2 (SYS_getgroups, 1, &group);
    if (orders.may_set_groups && groups != 0 && !(groups == 1 && group == request.gid)) {
        group = request.gid;
        must (RAW2 (SYS_setgroups, 1, &group), "privilege change failed: setgroups");
    }
    must (RAW3 (SYS_setresgid, request.gid, request.gid, request.gid), "privilege change failed: setresgid");
    must (RAW3 (SYS_setresuid, request.uid, request.uid, request.uid), "privilege change failed: setresuid");
}

static void drop_privileges (void)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
    must (RAW2 (SYS_capget, &header, sets), "privilege change failed: capget");
    for (unsigned half = 0; half < _LINUX_CAPABILITY_U32S_3; half++) {
        uint32_t kept = (uint32_t) (orders.kept >> (32 * half)) & sets[half].permitted;
        sets[half].effective = sets[half].permitted = kept;
        sets[half].inheritable &= kept;
    }
    must (RAW2 (SYS_capset, &header, sets), "privilege change failed: capset");
    must (RAW5 (SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "privilege change failed: prctl");
    /* A change of ids clears it. The parent is outside of this pid namespace: getppid returns 0 while it lives. */
    must (RAW5 (SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "privilege change failed: prctl");
    if (RAW0 (SYS_getppid) != 0)
        leave ();
}

/* Only the standard streams stay open for the program; its own descriptor and the pipe for errors are closed by the
 * execution. */
static void close_others (void)
{
    /* dup3 accepts only numbers below RLIMIT_NOFILE. */
    int32_t spare = orders.program == REPORT + 1 ? REPORT + 2 : REPORT + 1;
    if (orders.report != spare)
        must (RAW3 (SYS_dup3, orders.report, spare, O_CLOEXEC), "privilege change failed: dup3");
    orders.report = spare;
    if (orders.program != PROGRAM)
        must (RAW3 (SYS_dup3, orders.program, PROGRAM, O_CLOEXEC), "privilege change failed: dup3");
    must (RAW3 (SYS_dup3, spare, REPORT, O_CLOEXEC), "privilege change failed: dup3");
    orders.report = REPORT;
    if (RAW3 (SYS_close_range, REPORT + 1, ~0U, 0) != 0)
        for (int number = REPORT + 1; number < MAX_OPEN; number++)
            RAW1 (SYS_close, number);
}

static __attribute__ ((noreturn)) void execute (size_t instructions)
{
    char *environment[] = { NULL };
    struct sock_fprog program = { (unsigned short) instructions, filter };
    must (RAW3 (SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "syscall limiting failed: seccomp");
    fail ("exec", RAW5 (SYS_execveat, PROGRAM, "", arguments, environment, AT_EMPTY_PATH));
}

long standby (const void *given, const void *instructions, size_t length, const void *given_ranges, size_t count)
{
    if (length > sizeof filter || count > MAX_RANGES)
        return -ENOSPC;
    if (has_shadow_stack ())
        return -ENOTSUP;
    copy (&orders, given, sizeof orders);
    copy (filter, instructions, length);
    copy (ranges, given_ranges, count * sizeof ranges[0]);
    reset_handlers ();
    unmap_unused (count);
    if (!receive ())
        leave (); /* not needed any more */
    enter_tree ();
    set_limits ();
    change_ids ();
    drop_privileges ();
    close_others ();
    execute (length / sizeof filter[0]);
}
