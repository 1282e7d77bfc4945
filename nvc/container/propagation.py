"""Prevents propagation of mounts from a container to the host.

A mount on a shared mount appears in all its peers: a container whose rootfs lies on a shared mount, and was itself
made shared (rootfsPropagation, "rshared" volumes), would show its driver files on the host and keep them there after
its end. So the mount that a target lies on is made a slave first, in the container's namespace only: it still receives
mounts from the host and sends none. The mount is found by descriptors, whatever its path leads to meanwhile, and what
cannot be made a slave is not mounted on.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.formats import mountinfo
from nvc.linux import const, mounts, procfd, syscalls
from nvc.linux.fd import Fd, same_file
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.formats.mountinfo import Mount


#: How often a file's directory is looked up anew.
_TRIES = 16


class Propagation:
    """The propagation of the mounts that targets lie on, each examined once.

    foreign: whether this process is in a mount namespace other than the host's. In the host's own namespace nothing is
    changed: the caller configures a root there to see the mounts. None, where /proc does not tell: nothing is mounted
    on a shared mount.
    """

    def __init__(self, *, foreign: bool | None, log: Log) -> None:
        self._foreign = foreign
        self._log = log
        self._known: dict[int, Fd] = {}

    def confine(self, target: Fd, root: Fd) -> None:
        """Make the mount that ``target`` is on a slave if it is shared. Raises OSError where that cannot be.

        root: the container's root directory, from which files of its own mount are reached.
        """
        identity = procfd.mount_id(target)
        if identity in self._known:
            return
        found = _find(identity)
        if found is None and self._foreign is not False:
            # The mount is not below our root, or went: whether it is shared cannot be known.
            raise SyscallError(errno.ESTALE, "mountinfo", target, f"no mount {identity}")
        if found is not None and any(tag.startswith("shared:") for tag in found.tags):
            if self._foreign is None:
                raise SyscallError(errno.EACCES, "mount", target, "a shared mount, of the host's namespace or not")
            if self._foreign:
                self._make_slave(target, root, identity)
                self._log.info(f"{found.point} no longer sends mounts to the host")
            else:
                self._log.warn(f"{found.point} is a shared mount: mounts below it may appear elsewhere")
        # A descriptor keeps the mount, and so its id from being another one's.
        self._known[identity] = target.duplicate()

    def _make_slave(self, target: Fd, root: Fd, identity: int) -> None:
        for _ in range(_TRIES):
            start = _directory(target, root, identity)
            if start is None:
                continue
            top = _mount_root(start, identity)
            procfd.by_path(lambda path: syscalls.mount(None, path, None, const.MS_SLAVE), top)
            return
        raise SyscallError(errno.EAGAIN, "mount", target, "its mount is moved all the time")


def _directory(target: Fd, root: Fd, identity: int) -> Fd | None:
    """A directory on the mount of ``target``; None where the file's own was replaced while it was looked up."""
    if stat.S_ISDIR(target.stat().st_mode) or mounts.is_mount_root(target):
        return target
    if procfd.mount_id(root) == identity:
        return root
    # A file in a volume. Its directory is found by name, and any directory of that mount will do.
    above = os.path.dirname(procfd.path_of(target))
    try:
        found = syscalls.open_path(above, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except SyscallError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return found if procfd.mount_id(found) == identity else None


def _mount_root(start: Fd, identity: int) -> Fd:
    """The root of the mount ``identity``, by no name: upwards from ``start`` while the mount stays the same.

    What is moved meanwhile only changes the way; the kernel refuses one that has left the mount (follow_dotdot() in
    fs/namei.c), and mount(2) what is no mount's root.
    """
    current = start
    while stat.S_ISDIR(current.stat().st_mode):
        above = syscalls.openat(current, "..", os.O_PATH | os.O_DIRECTORY)
        if procfd.mount_id(above) != identity or same_file(above, current):
            break
        current = above
    return current


def _find(identity: int) -> Mount | None:
    """The mount with this id, from the mountinfo of the current namespace."""
    number = os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=procfd.pin().fileno())
    with Fd(number, "mountinfo") as file:
        data = b"\n"
        while part := os.read(file.fileno(), 1 << 16):
            data += part
    # Of a container with hundreds of mounts this one line is looked at.
    place = data.find(b"\n%d " % identity) + 1
    if place == 0:
        return None
    return mountinfo.parse(os.fsdecode(data[place:].partition(b"\n")[0]))[0]
