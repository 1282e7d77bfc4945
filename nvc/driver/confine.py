"""The rights that the driver service drops before NVML is loaded (libnvidia-container.md 4.3).

NVML is a megabyte of foreign code, and with a driver root it is not even this host's. It gets a process that is
chrooted to the driver root, has the uid of ``--user``, no capabilities, no new privileges, no network, and cannot
execute, mount, trace or reach other processes. The reference does the first four.
"""

from __future__ import annotations

import os

from nvc.base.budgets import DRIVER
from nvc.base.errors import InitializationError, reason
from nvc.bindings import library
from nvc.driver.locate import read_text
from nvc.linux import const, memory, rights, seccomp, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.model import Host

#: The driver root's NVML must use the libraries that this interpreter runs on, not the driver root's own: two
#: versions of glibc's parts in one process crash. libgcc_s is what glibc loads when a thread is cancelled.
HOST_LIBRARIES = ("libm.so.6", "librt.so.1", "libpthread.so.0", "libdl.so.2", "libgcc_s.so.1")

#: (limit, soft and hard value, why)
LIMITS: tuple[tuple[int, int, str], ...] = (
    (const.RLIMIT_CORE, 0, "a crash of NVML must not write the caller's memory into the driver root"),
    (const.RLIMIT_FSIZE, DRIVER.file, "no file system is filled by a library that only reads"),
    (const.RLIMIT_DATA, DRIVER.memory, "no memory of the host is taken outside of the container's limits"),
    (const.RLIMIT_CPU, DRIVER.cpu, "a helper whose caller was killed ends as well"),
)

#: Denied with EPERM: a deny list. NVML's calls differ between driver versions (threads, nvidia-persistenced, the fabric
#: manager, mappings), and a call that is missing in an allow list would break GPUs after a driver update. Without
#: capabilities, without execve and in a chroot, the remaining calls are those of any ordinary user's process.
DENIED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "change what is mounted where, or leave the chroot",
        (
            *("mount", "umount2", "pivot_root", "chroot", "setns", "unshare"),
            *("open_tree", "move_mount", "mount_setattr", "fsopen", "fsconfig", "fsmount", "fspick"),
            *("open_by_handle_at", "name_to_handle_at"),
        ),
    ),
    (
        "reach into other processes",
        ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise"),
    ),
    (
        "execute programs: NVML would start the setuid nvidia-modprobe, which no_new_privs makes useless",
        ("execve", "execveat", "uselib"),
    ),
    (
        "change or read the kernel",
        (
            *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "bpf", "syslog"),
            *("perf_event_open", "userfaultfd", "reboot", "swapon", "swapoff", "iopl", "ioperm", "lookup_dcookie"),
        ),
    ),
    ("make calls that this filter cannot see", ("io_uring_setup", "io_uring_enter", "io_uring_register")),
    ("use or leave keys", ("keyctl", "add_key", "request_key")),
    (
        "change the machine",
        (
            *("acct", "quotactl", "sethostname", "setdomainname", "settimeofday", "clock_settime", "clock_adjtime"),
            *("adjtimex", "vhangup", "fanotify_init", "personality", "mknod", "mknodat"),
        ),
    ),
)

# linux/socket.h
_AF_INET, _AF_INET6, _AF_PACKET = 2, 10, 17
# asm-generic/ioctls.h: both type into the terminal that stderr may be.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# linux/sched.h: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)


def confine(host: Host, *, uid: int | None, gid: int | None, parent: int, log: Log) -> None:
    """Drop all rights, in the one order that works. Runs in the driver service; cannot be reverted.

    uid, gid: None is the overflow id (65534) for root, and the own id for others. Root of a user namespace
    without that id (``runc spec --rootless`` maps one) keeps its own: an ordinary user's outside of the namespace.
    parent: pid of the process whose end ends this one.
    Raises InitializationError. Imports nothing afterwards: the interpreter's files are outside the new root.
    """
    program = _filter(log)
    inherited = memory.private_bytes()  # while /proc is there
    uid, gid = _identity(uid, gid)
    # Read first: in a user namespace without a map every id reads as the overflow id.
    changes = os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid)
    # With nodes elsewhere, NVML would find none below the driver root.
    if host.root != "/" and not host.dev_root:
        _preload(log)
        _change_root(host.root)
    if changes:
        _become(uid, gid)
    rights.no_new_privs()
    # Changing ids cleared it.
    rights.parent_death_signal(parent)
    try:
        rights.drop_all()
    except OSError as error:
        raise InitializationError(f"capability change failed: {reason(error)}") from error
    limit_resources(inherited)
    if program:
        try:
            syscalls.seccomp_filter(program)
        except OSError as error:
            raise InitializationError(f"syscall limiting failed: {reason(error)}") from error


def limit_resources(inherited: int) -> None:
    """Set ``LIMITS``, soft and hard; a hard one that is lower stays.

    inherited: bytes of private memory that this process has of the one that forked it, which come on top.
    """
    for limit, value, _ in LIMITS:
        value = min(value + (inherited if limit == const.RLIMIT_DATA else 0), syscalls.prlimit(limit)[1])
        syscalls.prlimit(limit, (value, value))


def _identity(uid: int | None, gid: int | None) -> tuple[int, int]:
    if os.geteuid() != 0:
        return os.geteuid() if uid is None else uid, os.getegid() if gid is None else gid
    if uid is None:
        overflow = _overflow_id("uid")
        uid = overflow if _can_become("uid", overflow) else os.geteuid()
    if gid is None:
        overflow = _overflow_id("gid")
        gid = overflow if _can_become("gid", overflow) and not _groups_are_fixed() else os.getegid()
    return uid, gid


def _can_become(kind: str, number: int) -> bool:
    """Whether this user namespace has the id (user_namespaces(7): first id inside, outside, how many)."""
    try:
        rows = [[int(word) for word in line.split()] for line in read_text(f"/proc/self/{kind}_map").splitlines()]
    except OSError:
        return True  # a kernel without user namespaces
    return any(first <= number < first + count for first, _, count in rows)


def _groups_are_fixed() -> bool:
    """Whether supplementary groups cannot be dropped, as a change of the group demands."""
    try:
        return read_text("/proc/self/setgroups").strip() == "deny"
    except OSError:
        return False


def _overflow_id(kind: str) -> int:
    try:
        return int(read_text(f"/proc/sys/kernel/overflow{kind}"))
    except OSError:
        return 65534  # DEFAULT_OVERFLOWUID, include/linux/highuid.h


def _preload(log: Log) -> None:
    for name in HOST_LIBRARIES:
        try:
            library.load(name)
        except OSError as error:
            # glibc 2.34 put librt, libpthread and libdl into libc; a system may do without the empty files.
            log.info(f"not loaded before chroot: {error}")


def _change_root(root: str) -> None:
    try:
        if os.geteuid() != 0:
            # An ordinary user's way to chroot (info and list --root, --sim): a user namespace. Files and devices are
            # still reached with the ids outside.
            syscalls.unshare(const.CLONE_NEWUSER)
        os.chroot(root)
        os.chdir("/")
    except OSError as error:
        raise InitializationError(
            f"change root failed: {root}: {reason(error)}",
            hint="--root takes the directory where the driver is installed",
        ) from error


def _become(uid: int, gid: int) -> None:
    try:
        # As the reference: supplementary groups are dropped when the group changes.
        rights.become(uid, gid, groups=os.getegid() != gid)
    except OSError as error:
        raise InitializationError(
            f"privilege change failed: {reason(error)}",
            hint="in a user namespace that does not map this user, keep the ids with --user=root:root",
        ) from error


def _filter(log: Log) -> bytes:
    """The filter program, b"" on a machine whose numbers of calls are not known here."""
    conditions = (
        *(seccomp.Condition("socket", 0, family) for family in (_AF_INET, _AF_INET6, _AF_PACKET)),
        # The kernel uses only 32 bits of it (CVE-2019-7303).
        *(seccomp.Condition("ioctl", 1, request) for request in (_TIOCSTI, _TIOCLINUX)),
        *(seccomp.Condition("clone", 0, flag, flag) for flag in _NAMESPACES),
    )
    names = (name for _, row in DENIED for name in row)
    try:
        # Of clone3, the flags are in memory, where no filter sees them; glibc falls back to clone.
        return seccomp.assemble_denials(names, ("clone3",), conditions)
    except ValueError as error:
        log.warn(f"running the driver service without a seccomp filter: {error}")
        return b""
