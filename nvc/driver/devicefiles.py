"""Creates a device node as nvidia-modprobe does: number, owner and mode of the driver's parameters.

Source: libnvidia-container.md 2.3.1.
"""

from __future__ import annotations

import os
import stat

from nvc.base import directories
from nvc.driver.locate import read_text
from nvc.formats.procfs import FileAttributes, file_attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import DeviceNode


def attributes(path: str) -> FileAttributes:
    """The attributes in a params or capability file; the defaults when there is no such file. Raises OSError."""
    try:
        return file_attributes(read_text(path))
    except FileNotFoundError:
        return FileAttributes()


def make_node(dev: str, node: DeviceNode, wanted: FileAttributes) -> None:
    """Make or correct a node, and its link in /dev/char. Raises OSError.

    dev: where /dev is. With ``modify`` off (the administrator creates the nodes), the node is left as it is, and
    only the link is made.
    """
    path = dev + node.path.removeprefix("/dev")
    if wanted.modify:
        _make(path, os.makedev(node.major, node.minor), wanted)
    _link(dev, node)


def _make(path: str, number: int, wanted: FileAttributes) -> None:
    found = _status(path)
    if found is not None and (not stat.S_ISCHR(found.st_mode) or found.st_rdev != number):
        os.unlink(path)
        found = None
    mode = wanted.mode & 0o777
    if found is not None and (stat.S_IMODE(found.st_mode) & 0o777, found.st_uid, found.st_gid) == (
        mode,
        wanted.uid,
        wanted.gid,
    ):
        return
    created = found is None
    if created:
        directories.make(os.path.dirname(path))
        # Without any permission until owner and mode are set.
        os.mknod(path, stat.S_IFCHR, number)
    try:
        os.chown(path, wanted.uid, wanted.gid)
        os.chmod(path, mode)
    except OSError:
        if created:
            os.unlink(path)
        raise


def _link(dev: str, node: DeviceNode) -> None:
    """/dev/char/<major>:<minor>, where runc and systemd look up device nodes."""
    path, text = f"{dev}/char/{node.major}:{node.minor}", ".." + node.path.removeprefix("/dev")
    try:
        if os.readlink(path) == text:
            return
    except OSError:
        pass
    if _status(path) is not None:
        os.unlink(path)
    directories.make(f"{dev}/char")
    os.symlink(text, path)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
