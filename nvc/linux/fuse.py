"""FUSE connections, and the end of one whose server does not answer (kernel: Documentation/filesystems/fuse.rst).

A thread that waits for a FUSE server cannot be ended once the server has read the request, not even by SIGKILL
(request_wait_answer of fs/fuse/dev.c): as long as it waits, its process keeps everything that it has open. The kernel's
way out is to abort the connection: the file "abort" in its directory of fusectl. The directory's name is the device
number of the file system, as the kernel counts it.

Everything here may itself wait for what a process makes last: it is for a child (``nvc.share.bounded``).
"""

from __future__ import annotations

import os

from nvc.linux import syscalls
from nvc.linux.fd import Fd

#: Kernel: MINORBITS (include/linux/kdev_t.h).
_MINOR_BITS = 20
#: Kernel: PROC_PID_INIT_INO (include/linux/proc_ns.h).
_INIT_PID_NAMESPACE = 0xEFFFFFFC
#: Bytes of a line of /proc/PID/maps that are read: its device is the fourth field.
_HEAD = 128


def release(pid: int, group: str = "", proc: str = "/proc") -> list[int]:
    """Abort the FUSE connections by which process ``pid`` can keep us waiting; their numbers.

    Those that it maps or has open, and those with requests outstanding that are mounted nowhere, or only in ``group``
    ("": none; a cgroup, with what is below it). Never one that is mounted where we are: its server is the host's.
    Raises OSError: there is no fusectl to be had.
    """
    own = _mounted(f"{proc}/self")
    with _control() as control:
        known = {int(name) for name in os.listdir(control.fileno()) if name.isdigit()} - own
        found = known & _used(f"{proc}/{pid}")
        # Only where every process can be seen that may have mounted one.
        if os.stat(f"{proc}/self/ns/pid").st_ino == _INIT_PID_NAMESPACE:
            hidden = {one for one in known - found if _waiting(control, one)}
            found |= hidden - _of_others(pid, group, proc) if hidden else set()
        return sorted(one for one in found if _abort(control, one))


def waits(pid: int, proc: str = "/proc") -> bool:
    """Whether a thread of process ``pid`` waits where no signal reaches it."""
    try:
        return any(_state(f"{proc}/{pid}/task/{name}") == b"D" for name in os.listdir(f"{proc}/{pid}/task"))
    except OSError:
        return False


def is_undead(pid: int, proc: str = "/proc") -> bool:
    """Whether process ``pid`` was ended and is still there, because of such threads."""
    return _state(f"{proc}/{pid}") == b"Z" and waits(pid, proc)


def _control() -> Fd:
    with syscalls.fsopen("fusectl") as context:
        syscalls.fsconfig_create(context)
        with syscalls.fsmount(context, 0) as mount:  # which names a place, and lists nothing
            return Fd(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount.fileno()), "fusectl")


def _abort(control: Fd, number: int) -> bool:
    try:
        file = os.open(f"{number}/abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=control.fileno())
    except OSError:
        return False  # it has ended
    try:
        os.write(file, b"1")
    finally:
        os.close(file)
    return True


def _waiting(control: Fd, number: int) -> bool:
    try:
        file = os.open(f"{number}/waiting", os.O_RDONLY | os.O_CLOEXEC, dir_fd=control.fileno())
    except OSError:
        return False
    try:
        return int(os.read(file, 32)) > 0
    finally:
        os.close(file)


def _number(major: int, minor: int) -> int:
    return major << _MINOR_BITS | minor


def _used(process: str) -> set[int]:
    """Devices of what a process maps or has open."""
    found = set()
    try:
        with open(f"{process}/maps", "rb") as file:
            # A line can be of any length, for a path can: only its beginning counts.
            while line := file.readline(_HEAD):
                major, _, minor = line.split(b" ", 4)[3].partition(b":")
                found.add(_number(int(major, 16), int(minor, 16)))
                while line and not line.endswith(b"\n"):
                    line = file.readline(65536)
    except (OSError, ValueError, IndexError):
        pass  # it ended
    try:
        for name in os.listdir(f"{process}/fd"):
            _, (device, _), _ = syscalls.statx_cached(f"{process}/fd/{name}")
            found.add(_number(os.major(device), os.minor(device)))
    except OSError:
        pass
    return found


def _mounted(process: str) -> set[int]:
    """Devices of what is mounted where a process is."""
    found = set()
    try:
        with open(f"{process}/mountinfo", "rb") as file:
            for line in file.read().split(b"\n"):
                if line:
                    major, _, minor = line.split(b" ", 3)[2].partition(b":")
                    found.add(_number(int(major), int(minor)))
    except (OSError, ValueError, IndexError):
        pass  # it ended, or has no mount namespace any more
    return found


def _of_others(pid: int, group: str, proc: str) -> set[int]:
    """Devices of what is mounted where processes are that are neither ``pid`` nor in ``group``."""
    found: set[int] = set()
    seen = set()
    for name in os.listdir(proc):
        if not name.isdigit() or int(name) == pid or (group and _is_in(f"{proc}/{name}", group)):
            continue
        try:
            namespace = os.stat(f"{proc}/{name}/ns/mnt").st_ino
        except OSError:
            continue
        if namespace not in seen:
            seen.add(namespace)
            found |= _mounted(f"{proc}/{name}")
    return found


def _is_in(process: str, group: str) -> bool:
    wanted = os.fsencode(group)
    try:
        with open(f"{process}/cgroup", "rb") as file:
            paths = [line.split(b":", 2)[-1] for line in file.read().split(b"\n")]
    except OSError:
        return False
    return any(path == wanted or path.startswith(wanted + b"/") for path in paths)


def _state(task: str) -> bytes:
    """State of /proc/PID/stat, b"" when it is gone. The name before it may be anything, brackets too."""
    try:
        with open(f"{task}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1]
    except OSError:
        return b""
