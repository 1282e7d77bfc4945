"""Finds the device cgroup of a container, and allows nodes in it.

A createContainer hook in a container with a cgroup namespace of its own sees a hierarchy that was mounted from outside:
its root is "/..", and no path below the mount point leads to the container's cgroup by name. A mount made there shows
that cgroup as its root (cgroup_do_get_tree() in kernel/cgroup/cgroup.c), so one is made, detached and without a path.
"""

from __future__ import annotations

import errno
import os

from nvc.base.undo import Undo
from nvc.formats import mountinfo
from nvc.linux import const, devices_v1, devices_v2, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT = 16 << 20
_V1, _V2 = "devices", ""


class PrivateNamespace(ValueError):
    """The hierarchy's mounts are from outside of our cgroup namespace: ``place`` can be opened by ``open_private``.

    version: of the hierarchy. place: the cgroup, below the namespace's root. controllers: as /proc/PID/cgroup has them.
    """

    def __init__(self, message: str, version: int, place: str, controllers: str) -> None:
        super().__init__(message)
        self.version = version
        self.place = place
        self.controllers = controllers


def find(*, proc_root: str, pid: int, mount_pid: int) -> tuple[int, str]:
    """(version, directory) of the cgroup that decides about the devices of process ``pid``.

    proc_root: where /proc is mounted: "/", or the rootfs of a standalone container. mount_pid: the process whose
    mounts are searched for the hierarchy, because the container's own may hide it.

    v1 where the process is in a devices hierarchy that is mounted, else v2: a hybrid host lists a v1 devices line
    also where only cgroup2 is mounted, which the reference takes for an error. Raises OSError (SyscallError), and
    ValueError with the reference's words, PrivateNamespace among them.
    """
    groups = _read(f"{proc_root.rstrip('/')}/proc/{pid}/cgroup", "cgroup", pid)
    places = _places(groups)
    if _V1 not in places and _V2 not in places:
        raise ValueError("no devices or unified cgroup entries found")
    mounts = _read(f"{proc_root.rstrip('/')}/proc/{mount_pid}/mountinfo", "mountinfo", mount_pid)
    for version, name in ((1, _V1), (2, _V2)):
        mounted = _mount(mounts, version) if name in places else None
        if mounted is not None:
            prefix, point = mounted
            place = places[name]
            if prefix.startswith("/.."):
                raise PrivateNamespace(
                    f"relative path in mount prefix: {prefix}", version, place, _controllers(groups, name)
                )
            # Whole names only: below a mount of /a, /ab/c is not b/c, which may be another container's cgroup.
            if f"{place}/".startswith(f"{prefix}/"):
                place = place.removeprefix(prefix)
            parts = [part for text in (proc_root, point, place) for part in text.split("/") if part]
            return version, "/" + "/".join(parts)
    if _V1 in places:
        raise ValueError("no cgroup filesystem mounted for the devices subsytem in mountinfo file")
    raise ValueError("no cgroup2 filesystem in mountinfo file")


def open_directory(path: str) -> Fd:
    """The cgroup's directory, for ``allow``. Raises SyscallError."""
    return syscalls.open_path(path, os.O_RDONLY | os.O_DIRECTORY)


def open_private(version: int, place: str, controllers: str) -> Fd:
    """The directory of a cgroup that ``find`` could not reach, through a mount of our own cgroup namespace's root.

    The arguments are those of PrivateNamespace. Raises SyscallError: EPERM without CAP_SYS_ADMIN in the user namespace
    that owns the cgroup namespace, ENOENT for a place outside of it, ENOSYS before Linux 5.2.
    """
    if ".." in place.split("/"):
        raise SyscallError(errno.ENOENT, "open", f"cgroup {place}")
    with syscalls.fsopen("cgroup" if version == 1 else "cgroup2") as context:
        # All controllers of a v1 hierarchy must be named, or the kernel takes it for another one (EBUSY).
        for controller in controllers.split(",") if version == 1 else ():
            syscalls.fsconfig_flag(context, controller)
        syscalls.fsconfig_create(context)
        with syscalls.fsmount(context, const.MOUNT_ATTR_NOSUID | const.MOUNT_ATTR_NODEV) as root:
            return syscalls.openat(root, place.strip("/") or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def allow(version: int, directory: Fd, rules: Sequence[tuple[int, int]], undo: Undo) -> bool:
    """Let the cgroup's processes read and write the character devices ``rules``; no mknod.

    directory: from ``open_directory``; rules: (major, minor). All or nothing, idempotent; ``undo`` gets the way
    back. False when nothing had to change. Raises MountError, ValueError for a number that no device can have.
    """
    # Imported with this module: the caller may be in the container's mount namespace, where an import would search
    # the image.
    if version == 1:
        return devices_v1.allow(directory, rules, undo)
    return devices_v2.allow(directory, rules, undo)


def _places(text: str) -> dict[str, str]:
    """Controller -> path in its hierarchy, from /proc/PID/cgroup; "" is cgroup2. The first line of a kind counts.

    A line ends at a newline alone: of all characters this is the one that no cgroup's name has, and a container may
    name those below its own as it likes.
    """
    places: dict[str, str] = {}
    for line in text.split("\n"):
        if not line:
            continue
        # At most three parts: the path may hold colons itself (systemd escapes them, cgroupfs drivers do not).
        parts = line.split(":", 2)
        if len(parts) != 3:
            raise ValueError(f"malformed cgroup entry: {line}")
        for controller in parts[1].split(","):
            places.setdefault(controller, parts[2])
    return places


def _controllers(text: str, controller: str) -> str:
    """The whole second field of the line that has ``controller``: "cpu,devices" where they are mounted together."""
    return next(fields for _, fields, _ in (line.split(":", 2) for line in text.split("\n") if line)
                if controller in fields.split(","))  # fmt: skip


def _mount(text: str, version: int) -> tuple[str, str] | None:
    """(root in the hierarchy, mount point) of the devices hierarchy or of cgroup2."""
    for line in text.split("\n"):  # as in _places: mountinfo escapes no other end of a line
        if " - cgroup" not in line:  # a host may have thousands of mounts: decode the few that count
            continue
        try:
            (mount,) = mountinfo.parse(line)
        except ValueError as error:
            raise ValueError(f"malformed mountinfo entry: {line}") from error
        if mount.kind == "cgroup2" if version == 2 else mount.kind == "cgroup" and _V1 in mount.super_options:
            return mount.root, mount.point
    return None


def _read(path: str, what: str, pid: int) -> str:
    try:
        with syscalls.open_path(path, os.O_RDONLY) as file:
            data = b""
            while chunk := os.read(file.fileno(), 1 << 16):
                data += chunk
                if len(data) > _LIMIT:
                    raise SyscallError(errno.EFBIG, "read", path)
            return os.fsdecode(data)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO).lower()
        raise OSError(error.errno, f"failed to open {what} path for pid '{pid}': {reason}") from error
