"""Prevents propagation of mounts from a container to the host.

A mount on a shared mount appears in all its peers: a container whose rootfs lies on a shared mount, and was itself
made shared (rootfsPropagation, "rshared" volumes), would show its driver files on the host and keep them there after
its end. So the mount that a target lies on is made a slave first, in the container's namespace only: it still receives
mounts from the host and sends none.
"""

from __future__ import annotations

import os

from nvc.formats import mountinfo
from nvc.linux import const, mounts, procfd, syscalls
from nvc.linux.fd import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.formats.mountinfo import Mount


class Propagation:
    """The propagation of the mounts that targets lie on, each examined once.

    foreign: whether this process is in a mount namespace other than the host's. In the host's own namespace nothing is
    changed: the caller configures a root there to see the mounts.
    """

    def __init__(self, *, foreign: bool, log: Log) -> None:
        self._foreign = foreign
        self._log = log
        self._known: set[int] = set()

    def confine(self, target: Fd) -> None:
        """Make the mount that ``target`` is on a slave if it is shared. Raises OSError."""
        identity = mounts.mount_id(target)
        if identity in self._known:
            return
        self._known.add(identity)
        found = _find(identity)
        if found is None or not any(tag.startswith("shared:") for tag in found.tags):
            return
        if not self._foreign:
            self._log.warn(f"{found.point} is a shared mount: mounts below it may appear elsewhere")
            return
        with Fd(os.open(found.point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC), found.point) as root:
            if mounts.mount_id(root) != identity:
                self._log.warn(f"{found.point} is a shared mount, and covered: its propagation stays as it is")
                return
            procfd.by_path(lambda path: syscalls.mount(None, path, None, const.MS_SLAVE), root)
        self._log.info(f"{found.point} no longer sends mounts to the host")


def _find(identity: int) -> Mount | None:
    """The mount with this id, from the mountinfo of the current namespace."""
    number = os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=procfd.pin().fileno())
    with Fd(number, "mountinfo") as file:
        data = b""
        while part := os.read(file.fileno(), 1 << 16):
            data += part
    start = f"{identity} "
    for line in os.fsdecode(data).split("\n"):
        if line.startswith(start):
            return mountinfo.parse(line)[0]
    return None
