"""System calls that the standard library does not have, a few lines each, in alphabetical order.

Everything goes through syscall(2) by number, so a libc without the wrapper (glibc 2.36 has no openat2) makes no
difference. All descriptors are made CLOEXEC. Failures raise ``SyscallError``; look at its ``errno`` rather than
catching FileNotFoundError and its like, which Python makes for plain OSError only.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys

from nvc.linux import const
from nvc.linux.fd import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.linux.raw_ctypes import Argument
    from nvc.linux.raw_ctypes import address as address
    from nvc.linux.raw_ctypes import call as call
    from nvc.linux.raw_ctypes import invoke as invoke
    from nvc.linux.raw_ctypes import load as load
    from nvc.linux.raw_ctypes import standby as standby
    from nvc.linux.raw_ctypes import symbol as symbol
    from nvc.linux.raw_ctypes import text as text
else:
    try:
        from nvc.linux._raw import address, call
        from nvc.linux._raw import invoke as invoke
        from nvc.linux._raw import load as load
        from nvc.linux._raw import standby as standby
        from nvc.linux._raw import symbol as symbol
        from nvc.linux._raw import text as text
    except ImportError:  # not built: no compiler or no Python headers
        from nvc.linux.raw_ctypes import address, call
        from nvc.linux.raw_ctypes import invoke as invoke
        from nvc.linux.raw_ctypes import load as load
        from nvc.linux.raw_ctypes import standby as standby
        from nvc.linux.raw_ctypes import symbol as symbol
        from nvc.linux.raw_ctypes import text as text

#: Calls that this kernel (or a seccomp filter) does not have. A call that failed with ENOSYS is added and not tried
#: again; tests add names to take the path of an old kernel.
unavailable: set[str] = set()

_LARGEST_FSTATFS = 256


class SyscallError(OSError):
    """A call that failed: which, with what arguments, errno."""

    def __init__(self, number: int, call: str, *arguments: object) -> None:
        super().__init__(number, os.strerror(number))
        self.call = call
        # As text at once: a descriptor may be closed before the message is used.
        self.shown = ", ".join(_show(argument) for argument in arguments)

    def __str__(self) -> str:
        return f"{self.call}({self.shown}): {(self.strerror or '').lower()}"


def _show(argument: object) -> str:
    if isinstance(argument, str):
        return repr(argument)
    return f"{argument:#x}" if isinstance(argument, int) and not isinstance(argument, bool) else str(argument)


def _call(name: str, arguments: tuple[Argument, ...], shown: tuple[object, ...]) -> int:
    """Call ``name``; ``shown`` are the arguments as a message shows them. EINTR is retried, as PEP 475 does."""
    number = const.NR.get(name)
    if number is None or name in unavailable:
        raise SyscallError(errno.ENOSYS, name, *shown)
    while True:
        result = call(number, *arguments)
        if result >= 0:
            return result
        if result == -errno.EINTR:
            continue
        if result == -errno.ENOSYS:
            unavailable.add(name)
        raise SyscallError(-result, name, *shown)


def _path(path: str | None) -> bytes | None:
    # Terminated here: a bytes object passed as a buffer is its address, and Python ends each with a null byte.
    return None if path is None else os.fsencode(path)


def bpf(command: int, attributes: bytes, called: str) -> tuple[int, bytes]:
    """bpf(2). Returns its result and the attributes as the kernel left them. ``called`` names it in errors.

    The buffer is larger than the size passed: kernels from 6.17 on write past the members a caller knows of when
    they answer BPF_PROG_QUERY.
    """
    buffer = bytearray(attributes).ljust(256, b"\0")
    result = _call("bpf", (command, buffer, len(attributes)), (called,))
    return result, bytes(buffer[: len(attributes)])


def capget() -> tuple[int, int, int]:
    """The calling process's effective, permitted and inheritable sets, as bit masks (bit n = capability n)."""
    # Writable: the kernel puts its own version there when it does not know ours.
    header = bytearray(struct.pack(const.CAP_HEADER, const.LINUX_CAPABILITY_VERSION_3, 0))
    data = bytearray(struct.calcsize(const.CAP_DATA))
    _call("capget", (header, data), ())
    low = struct.unpack_from(const.CAP_DATA, data)
    return low[0] | low[3] << 32, low[1] | low[4] << 32, low[2] | low[5] << 32


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """Set the three sets (bit masks). Raises SyscallError EPERM for a capability that may not be gained."""
    header = bytearray(struct.pack(const.CAP_HEADER, const.LINUX_CAPABILITY_VERSION_3, 0))
    sets = (effective, permitted, inheritable)
    words = [value & 0xFFFFFFFF for value in sets] + [value >> 32 for value in sets]
    _call("capset", (header, struct.pack(const.CAP_DATA, *words)), sets)


def close_range(first: int, last: int = 0x7FFFFFFF) -> None:
    """Close the descriptors ``first`` to ``last``, both included. Raises SyscallError ENOSYS before Linux 5.9."""
    _call("close_range", (first, last, 0), (first, last))


def fsconfig_create(context: Fd) -> None:
    """fsconfig(FSCONFIG_CMD_CREATE): make the superblock that the options so far describe."""
    _call("fsconfig", (context.fileno(), const.FSCONFIG_CMD_CREATE, 0, 0, 0), (context, "create"))


def fsconfig_flag(context: Fd, key: str) -> None:
    """fsconfig(FSCONFIG_SET_FLAG)."""
    _call("fsconfig", (context.fileno(), const.FSCONFIG_SET_FLAG, _path(key), 0, 0), (context, key))


def fsconfig_string(context: Fd, key: str, value: str) -> None:
    """fsconfig(FSCONFIG_SET_STRING)."""
    arguments = (context.fileno(), const.FSCONFIG_SET_STRING, _path(key), _path(value), 0)
    _call("fsconfig", arguments, (context, key, value))


def fsmount(context: Fd, attributes: int) -> Fd:
    """fsmount(2): a detached mount of the created superblock, with ``attributes`` (MOUNT_ATTR_*)."""
    number = _call("fsmount", (context.fileno(), const.FSMOUNT_CLOEXEC, attributes), (context, attributes))
    return Fd(number, context.name)


def fsopen(filesystem: str) -> Fd:
    """fsopen(2). Needs CAP_SYS_ADMIN in the user namespace of the mount namespace."""
    return Fd(_call("fsopen", (_path(filesystem), const.FSOPEN_CLOEXEC), (filesystem,)), filesystem)


def filesystem_type(file: Fd) -> int:
    """fstatfs(2): the magic number of linux/magic.h of the file system that ``file`` is on. Raises SyscallError."""
    buffer = bytearray(_LARGEST_FSTATFS)
    _call("fstatfs", (file.fileno(), buffer), (file,))
    kind: int = struct.unpack_from("@l", buffer)[0]
    return kind


def inotify_add_watch(instance: Fd, path: str, mask: int) -> int:
    """inotify_add_watch(2): the watch's number. Raises SyscallError: ENOSPC at the user's limit of watches."""
    return _call("inotify_add_watch", (instance.fileno(), _path(path), mask), (instance, path, mask))


def inotify_init1(flags: int) -> Fd:
    """inotify_init1(2), CLOEXEC. Raises SyscallError: EMFILE at the user's limit of instances."""
    return Fd(_call("inotify_init1", (flags | os.O_CLOEXEC,), (flags,)), "inotify")


def inotify_rm_watch(instance: Fd, watch: int) -> None:
    """inotify_rm_watch(2)."""
    _call("inotify_rm_watch", (instance.fileno(), watch), (instance, watch))


def madvise(start: int, length: int, advice: int) -> None:
    """madvise(2) on a range of our own addresses. Raises SyscallError: EINVAL for an advice that the kernel lacks."""
    _call("madvise", (start, length, advice), (start, length, advice))


def mount(source: str | None, target: str, filesystem: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    arguments = (_path(source), _path(target), _path(filesystem), flags, _path(data))
    _call("mount", arguments, (source, target, filesystem, flags, data))


def mount_setattr(mount: Fd, attributes: int, *, propagation: int = 0, recursive: bool = True) -> None:
    """mount_setattr(2) on the mount with root ``mount``: set MOUNT_ATTR_* bits (none is cleared) and propagation."""
    flags = const.AT_EMPTY_PATH | (const.AT_RECURSIVE if recursive else 0)
    attr = struct.pack(const.MOUNT_ATTR, attributes, 0, propagation, 0)
    shown = (mount, flags, attributes, propagation)
    _call("mount_setattr", (mount.fileno(), b"", flags, attr, len(attr)), shown)


def move_mount(tree: Fd, target: Fd) -> None:
    """move_mount(2) by descriptors only: attach the detached ``tree`` on top of ``target``.

    Answers EINVAL when ``target`` was opened before the process entered its mount namespace.
    """
    flags = const.MOVE_MOUNT_F_EMPTY_PATH | const.MOVE_MOUNT_T_EMPTY_PATH
    _call("move_mount", (tree.fileno(), b"", target.fileno(), b"", flags), (tree, target))


def open_tree(source: Fd, *, recursive: bool = False) -> Fd:
    """open_tree(OPEN_TREE_CLONE) of ``source``: a detached bind mount of it."""
    flags = const.OPEN_TREE_CLONE | const.OPEN_TREE_CLOEXEC | const.AT_EMPTY_PATH
    flags |= const.AT_RECURSIVE if recursive else 0
    return Fd(_call("open_tree", (source.fileno(), b"", flags), (source, flags)), source.name)


def open_path(path: str, flags: int) -> Fd:
    """open(2) of an existing file, CLOEXEC. Raises SyscallError."""
    try:
        return Fd(os.open(path, flags | os.O_CLOEXEC), path)
    except OSError as error:
        raise SyscallError(error.errno or errno.EIO, "open", path) from None


def openat(directory: Fd, name: str, flags: int, mode: int = 0) -> Fd:
    """openat(2), CLOEXEC; ``name`` is one component. Raises SyscallError."""
    try:
        return Fd(os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=directory.fileno()), name)
    except OSError as error:
        raise SyscallError(error.errno or errno.EIO, "openat", directory, name) from None


def openat2(directory: Fd, path: str, flags: int, resolve: int, mode: int = 0) -> Fd:
    """openat2(2); ``resolve`` is RESOLVE_*. O_CLOEXEC is added. Raises SyscallError, EAGAIN when a race was seen."""
    how = struct.pack(const.OPEN_HOW, flags | os.O_CLOEXEC, mode, resolve)
    arguments = (directory.fileno(), os.fsencode(path), how, len(how))
    number = _call("openat2", arguments, (directory, path, flags, resolve))
    return Fd(number, path)


def pidfd_getfd(process: Fd, number: int) -> Fd:
    """pidfd_getfd(2): a copy (CLOEXEC) of the other process's descriptor ``number``; it shares its open file.

    Needs the rights of ptrace over the process. Raises SyscallError: EBADF, EPERM, ESRCH, ENOSYS before Linux 5.6.
    """
    copy = _call("pidfd_getfd", (process.fileno(), number, 0), (process, number))
    return Fd(copy, f"descriptor {number} of {process.name}")


def pidfd_open(pid: int) -> Fd:
    """pidfd_open(2), CLOEXEC. Raises SyscallError: ESRCH, ENOSYS before Linux 5.3."""
    return Fd(_call("pidfd_open", (pid, 0), (pid,)), f"process {pid}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _call("pivot_root", (_path(new), _path(old)), (new, old))


def prctl(option: int, *arguments: int) -> int:
    """prctl(2) with integer arguments; those left out are 0, as several options demand."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return _call("prctl", (option, *padded), (option, *arguments))


def prctl_buffer(option: int, buffer: bytes | bytearray) -> int:
    """prctl(2) whose argument is the address of ``buffer``; a bytearray where the kernel writes."""
    return _call("prctl", (option, buffer, 0, 0, 0), (option, "buffer"))


def prlimit(kind: int, limit: tuple[int, int] | None = None) -> tuple[int, int]:
    """prlimit(2) of this process: soft and hard limit as they were, of a RLIMIT_*; ``const.NO_LIMIT`` is none.

    The module resource is a library that a start would load. limit: set that. Raises SyscallError.
    """
    before = bytearray(struct.calcsize(const.RLIMIT64))
    _call("prlimit64", (0, kind, struct.pack(const.RLIMIT64, *limit) if limit else None, before), (kind, limit))
    soft, hard = struct.unpack(const.RLIMIT64, before)
    return soft, hard


def sched_setattr(nice: int) -> None:
    """sched_setattr(2): SCHED_OTHER and ``nice`` for the calling thread; what it makes is at 0. Raises SyscallError.

    setpriority(2) has no such flag, and systemd's RestrictRealtime= refuses sched_setscheduler(2) with it.
    """
    size = struct.calcsize(const.SCHED_ATTR)
    attributes = struct.pack(
        const.SCHED_ATTR, size, os.SCHED_OTHER, const.SCHED_FLAG_RESET_ON_FORK, nice, 0, 0, 0, 0, 0, 0
    )
    _call("sched_setattr", (0, attributes, 0), (nice,))


def seccomp_filter(program: bytes, flags: int = 0) -> None:
    """seccomp(SECCOMP_SET_MODE_FILTER): ``program`` is a sequence of struct sock_filter.

    Raises SyscallError EACCES without no_new_privs and CAP_SYS_ADMIN, EINVAL for a malformed program.
    """
    code = bytearray(program)
    length = len(program) // struct.calcsize(const.SOCK_FILTER)
    header = struct.pack(const.SOCK_FPROG, length, address(code))
    arguments = (const.SECCOMP_SET_MODE_FILTER, flags, header)
    _call("seccomp", arguments, ("filter", length))


def setfsgid(gid: int) -> int:
    """setfsgid(2). Returns the id before; it does not report failure, so callers check with -1."""
    return _call("setfsgid", (gid,), (gid,))


def setfsuid(uid: int) -> int:
    """setfsuid(2). Returns the id before; it does not report failure, so callers check with -1."""
    return _call("setfsuid", (uid,), (uid,))


def setns(namespace: Fd, kind: int) -> None:
    """setns(2); ``kind`` is CLONE_NEW* or 0. EINVAL for a mount namespace in a process with threads."""
    _call("setns", (namespace.fileno(), kind), (namespace, kind))


def statx_mount(file: Fd) -> tuple[int, bool]:
    """statx(2): the id of the mount that ``file`` is on, and whether it is that mount's root.

    No file system is asked: one of a user's (FUSE) need not answer. Raises SyscallError ENOSYS on kernels that do not
    tell (before 5.8).
    """
    buffer = bytearray(const.STATX_SIZE)
    flags = const.AT_EMPTY_PATH | const.AT_STATX_DONT_SYNC
    arguments = (file.fileno(), b"", flags, const.STATX_MNT_ID, buffer)
    _call("statx", arguments, (file,))
    offsets = const.STATX_OFFSETS
    mask = struct.unpack_from("=I", buffer, offsets["stx_mask"])[0]
    if not mask & const.STATX_MNT_ID:
        raise SyscallError(errno.ENOSYS, "statx", file, "STATX_MNT_ID")
    attributes = struct.unpack_from("=Q", buffer, offsets["stx_attributes"])[0]
    return struct.unpack_from("=Q", buffer, offsets["stx_mnt_id"])[0], bool(attributes & const.STATX_ATTR_MOUNT_ROOT)


def statx_cached(file: str | Fd) -> tuple[int, tuple[int, int], int]:
    """statx(2) with AT_STATX_DONT_SYNC: type, (st_dev, st_ino), st_rdev as the kernel has them cached for a file.

    The only way to examine a file without waiting for FUSE and network file systems.
    Raises SyscallError.
    """
    buffer = bytearray(const.STATX_SIZE)
    place, path, flags = const.AT_FDCWD, file if isinstance(file, str) else "", const.AT_STATX_DONT_SYNC
    if not isinstance(file, str):
        place, flags = file.fileno(), flags | const.AT_EMPTY_PATH
    _call("statx", (place, _path(path), flags, const.STATX_TYPE | const.STATX_INO, buffer), (file,))
    offsets = const.STATX_OFFSETS
    (mode,) = struct.unpack_from("=H", buffer, offsets["stx_mode"])
    (inode,) = struct.unpack_from("=Q", buffer, offsets["stx_ino"])
    rdev_major, rdev_minor, major, minor = struct.unpack_from("=4I", buffer, offsets["stx_rdev_major"])
    return stat.S_IFMT(mode), (os.makedev(major, minor), inode), os.makedev(rdev_major, rdev_minor)


def tgkill(process: int, thread: int, signal: int) -> None:
    """tgkill(2). Raises SyscallError ESRCH."""
    _call("tgkill", (process, thread, signal), (process, thread, signal))


def timer_create(clock: int, signal: int) -> int:
    """timer_create(2): the id of a timer that sends this process ``signal``; a fork does not have it."""
    number = bytearray(4)
    # struct sigevent: value, signal, SIGEV_SIGNAL.
    _call("timer_create", (clock, struct.pack("=qii48x", 0, signal, 0), number), (clock, signal))
    return int.from_bytes(number, sys.byteorder)


def timer_settime(timer: int, seconds: float) -> None:
    """timer_settime(2): expire once, that many seconds from now; 0 for not at all."""
    whole, rest = divmod(int(seconds * 1e9), 10**9)
    _call("timer_settime", (timer, 0, struct.pack("=4q", 0, 0, whole, rest), None), (timer, seconds))


def umount2(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _call("umount2", (_path(target), flags), (target, flags))


def unshare(flags: int) -> None:
    """unshare(2); ``flags`` are CLONE_NEW*."""
    _call("unshare", (flags,), (flags,))
