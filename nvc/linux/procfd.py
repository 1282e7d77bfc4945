"""Calls that take a path only, on descriptors: ``/proc/self/fd``, pinned before the mount namespace changes.

umount2(2) and mount(2) have no form that takes a descriptor. The magic link of a descriptor leads to exactly what it
was opened on, whatever happened to the path since, but the ``/proc`` of a namespace that was entered may be another
pid namespace's, or missing. So the directory is opened while it is known to be ours, and used through the working
directory.
"""

from __future__ import annotations

import errno
import os

from nvc.linux import syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
#: (pid that pinned it, its /proc/self). A forked child must pin its own: the parent's lists the parent's descriptors.
_pinned: tuple[int, Fd] | None = None


def pin() -> Fd:
    """Keep this process's /proc directory open. Called again it returns the same. Raises OSError without a /proc."""
    global _pinned
    if _pinned is None or _pinned[0] != os.getpid():
        _pinned = os.getpid(), Fd(os.open("/proc/self", _FLAGS), "/proc/self")
    return _pinned[1]


def unpin() -> None:
    """Close what ``pin`` keeps open, where a process closes all and works on: its number may be another file's then."""
    global _pinned
    _pinned = None


def inherit(parents: Fd) -> Fd:
    """Pin this process's directory by that of the parent, where /proc is not ours, or another pid namespace's.

    Raises OSError.
    """
    global _pinned
    _pinned = os.getpid(), Fd(os.open("../self", _FLAGS, dir_fd=parents.fileno()), "/proc/self")
    return _pinned[1]


def by_path(function: Callable[..., T], *descriptors: Fd) -> T:
    """Call ``function`` with one path for each descriptor; a path is good during the call only. Raises what it raises.

    The working directory is changed meanwhile: for single-threaded processes.
    """
    process = pin()
    here = Fd(os.open(".", _FLAGS), ".")
    try:
        os.fchdir(process.fileno())
        return function(*(f"fd/{descriptor.fileno()}" for descriptor in descriptors))
    finally:
        os.fchdir(here.fileno())
        here.close()


def reopen(descriptor: Fd, flags: int) -> Fd:
    """The very file that ``descriptor`` was opened on, opened anew, CLOEXEC: what has its name by now is not looked at.

    Raises OSError.
    """
    number = os.open(f"fd/{descriptor.fileno()}", flags | os.O_CLOEXEC, dir_fd=pin().fileno())
    return Fd(number, descriptor.name)


def path_of(descriptor: Fd) -> str:
    """Where the kernel says the file is, seen from this process's root. For messages and for checked re-opening."""
    return os.readlink(f"fd/{descriptor.fileno()}", dir_fd=pin().fileno())


def mount_id(descriptor: Fd) -> int:
    """The id of the mount that the file is on, as in mountinfo: from statx, or fdinfo (Linux 3.15). Raises OSError."""
    try:
        return syscalls.statx_mount(descriptor)[0]
    except SyscallError as error:
        if error.errno != errno.ENOSYS:
            raise
    number = os.open(f"fdinfo/{descriptor.fileno()}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=pin().fileno())
    with Fd(number) as info:
        for line in os.read(info.fileno(), 4096).splitlines():
            if line.startswith(b"mnt_id:"):
                return int(line.split()[1])
    raise OSError(f"no mnt_id in the fdinfo of {descriptor}")
