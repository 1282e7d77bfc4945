"""Mounts in a container's tree that things may be made in: its root's, and those that its configuration put on the way.

A mount point that is made in a volume stays there as a file of root's. An image must not choose the volume, by a link
where a file of the driver goes; the container's configuration may, by a volume in that very place.
"""

from __future__ import annotations

import errno
import stat

from nvc.linux import const, procfd, syscalls
from nvc.linux.syscalls import SyscallError
from nvc.linux.walk import open_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvc.linux.fd import Fd

#: Links of distributions, by which their paths lead to directories that may be volumes.
_USUAL_LINKS = {
    "bin": ("usr", "bin"),
    "sbin": ("usr", "sbin"),
    "lib": ("usr", "lib"),
    "lib32": ("usr", "lib32"),
    "lib64": ("usr", "lib64"),
    "var/run": ("run",),
    "var/lock": ("run", "lock"),
}


class Volumes:
    """Those of the tree at ``root``.

    notice: called with a path when the first thing is made in a mount other than the root's whose file system keeps
    it.
    """

    __slots__ = ("_allowed", "_root", "notice")

    def __init__(self, root: Fd) -> None:
        self._root = root
        self.notice: Callable[[str], None] | None = None
        #: Ids of mounts.
        self._allowed: set[int] = set()

    def check(self, directory: Fd, path: str) -> None:
        """Whether something may be made in ``directory``, which ``path`` led to. Raises SyscallError EXDEV."""
        identity = procfd.mount_id(directory)
        if not self._allowed:
            self._allowed.add(procfd.mount_id(self._root))
        if identity in self._allowed:
            return
        if identity not in _entered_by_name(self._root, path):
            raise SyscallError(errno.EXDEV, "openat", directory, path)
        self._allowed.add(identity)
        if self.notice is not None and syscalls.filesystem_type(directory) != const.TMPFS_MAGIC:
            self.notice(path)


def _entered_by_name(root: Fd, path: str) -> set[int]:
    """Ids of the mounts on the way of ``path`` to its first link, or to what is missing."""
    found = set()
    for parts in _spellings([part for part in path.split("/") if part not in ("", ".")]):
        current = root
        for name in parts:
            after = open_name(current, name) if name != ".." else None
            if after is None or not stat.S_ISDIR(after.stat().st_mode):
                break
            current = after
            found.add(procfd.mount_id(current))
    return found


def _spellings(parts: list[str]) -> Iterator[list[str]]:
    yield parts
    for count in (1, 2):
        instead = _USUAL_LINKS.get("/".join(parts[:count]))
        if instead is not None:
            yield [*instead, *parts[count:]]
