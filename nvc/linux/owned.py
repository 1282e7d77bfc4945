"""Host paths that only root can have made: resolved step by step, with a look at the owner of each.

A path that is mounted into containers must lead to what root put there. Local users can make names in sticky
directories (/tmp), and make, replace and redirect whatever lies below a directory of theirs or one that they may write.
``fs.protected_symlinks`` covers a part of this, where it is set, and only for paths that the kernel resolves alone.

Root is uid 0, and the caller itself. In a user namespace the host's root is the overflow uid, as every other user who
is not mapped: it counts as root only where nobody else can make names.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.linux import const, mounts, rights, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError
from nvc.linux.walk import Walk, open_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

#: Where services keep their sockets. Nothing else of a host is mounted writable, whatever a variable names.
PREFIXES = ("/run/", "/var/run/", "/tmp/", "/var/tmp/", "/srv/", "/opt/")
#: kernel/include/linux/highuid.h: DEFAULT_OVERFLOWUID.
_OVERFLOW_UID = 65534
_SHARED = stat.S_IWGRP | stat.S_IWOTH
_NO_LINKS = const.RESOLVE_IN_ROOT | const.RESOLVE_NO_MAGICLINKS | const.RESOLVE_NO_SYMLINKS


class Untrusted(OSError):
    """A step of a path is not root's alone. text: which, and why."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, text)
        self.text = text


class OwnedWalk(Walk):
    """A walk that follows only links of root's, in directories that nobody else may write.

    owners: uids that may own a directory, socket or file on the way beside root; None: whoever owns those, links
    alone are looked at. Raises Untrusted beside what ``Walk`` raises.
    """

    def __init__(self, root: Fd, owners: Collection[int] | None) -> None:
        super().__init__(root)
        self._owners = owners
        self._is_mapped: bool | None = None
        #: Whether somebody else than root could put another thing in the place of what was passed.
        self.is_replaceable = False
        if owners is not None and not self.may_own(root.stat(), is_shared=False):
            raise Untrusted(f"the driver root belongs to user {root.stat().st_uid}")

    def look(self, name: str) -> Fd | None:
        found = open_name(self.directory, name)
        if found is not None:
            self._check(self.directory.stat(), found, "/" + "/".join([*self.names, name]))
        return found

    def _check(self, above: os.stat_result, found: Fd, path: str) -> None:
        is_shared = bool(above.st_mode & _SHARED)
        # Before anything is asked of a file system that a user may have mounted there (FUSE).
        if is_shared and self._owners is not None and mounts.mount_id(found) != mounts.mount_id(self.directory):
            raise Untrusted(f"{path} is a mount point in a directory that others may write")
        status = found.stat()
        if stat.S_ISLNK(status.st_mode):
            if is_shared or not self._is_root(above.st_uid) or not self._is_root(status.st_uid):
                raise Untrusted(f"{path} is a link that others than root can make or replace")
        elif self._owners is not None:
            if is_shared and not above.st_mode & stat.S_ISVTX:
                raise Untrusted(f"the directory of {path} may be written by others")
            if not self.may_own(status, is_shared=is_shared):
                raise Untrusted(f"{path} belongs to user {status.st_uid}")
            if status.st_dev != above.st_dev and syscalls.filesystem_type(found) == const.FUSE_SUPER_MAGIC:
                raise Untrusted(f"{path} is a file system of a program's, which may name any owner")
        self.is_replaceable |= is_shared or not self._is_root(above.st_uid)

    def may_own(self, status: os.stat_result, *, is_shared: bool) -> bool:
        """Whether the owner is one of those allowed. is_shared: others may make names in its directory."""
        uid = status.st_uid
        return uid in (0, os.geteuid(), *(self._owners or ())) or (not is_shared and self._is_root(uid))

    def _is_root(self, uid: int) -> bool:
        if uid in (0, os.geteuid()):
            return True
        if uid != _OVERFLOW_UID:
            return False
        if self._is_mapped is None:
            self._is_mapped = rights.in_user_namespace()
        return self._is_mapped


class Endpoint:
    """A pinned socket, or directory with a server's socket.

    path: where it is, below the root and without links. is_replaceable: as of ``OwnedWalk``.
    """

    __slots__ = ("file", "is_replaceable", "path")

    def __init__(self, file: Fd, path: str, is_replaceable: bool) -> None:
        self.file = file
        self.path = path
        self.is_replaceable = is_replaceable


def endpoint(root: Fd, path: str, owners: Collection[int], server: str = "") -> Endpoint:
    """Pin the socket at ``path`` below ``root``, or the directory there in which ``server`` is a socket.

    Every step belongs to root or one of ``owners`` (uids), and so does the server's socket; where it leads is below
    PREFIXES. Raises Untrusted, and SyscallError for what is not there.
    """
    if ".." in path.split("/"):
        raise Untrusted(f"{path} has '..'")
    _check_prefix(path)
    walk = OwnedWalk(root, owners)
    found, name = walk.final(path)
    if found is None:
        raise SyscallError(errno.ENOENT, "openat", root, path)
    real = "/" + "/".join([*walk.names, name] if name else walk.names)
    _check_prefix(real)
    status = found.stat()
    if not server and not stat.S_ISSOCK(status.st_mode):
        raise Untrusted(f"{real} is not a socket")
    if server:
        _check_server(walk, found, f"{real}/{server}", server)
    return Endpoint(found, real, walk.is_replaceable)


def _check_prefix(path: str) -> None:
    if not path.startswith(PREFIXES):
        raise Untrusted(f"{path} is not below any of {', '.join(prefix[:-1] for prefix in PREFIXES)}")


def _check_server(walk: OwnedWalk, directory: Fd, path: str, server: str) -> None:
    above = directory.stat()
    socket = open_name(directory, server) if stat.S_ISDIR(above.st_mode) else None
    if socket is None or not stat.S_ISSOCK(socket.stat().st_mode):
        raise Untrusted(f"{path} is no socket of a server")
    if not walk.may_own(socket.stat(), is_shared=bool(above.st_mode & _SHARED)):
        raise Untrusted(f"{path} belongs to user {socket.stat().st_uid}")


def source(root: Fd, path: str) -> Fd:
    """What ``path`` below ``root`` leads to, as O_PATH; links are followed as ``OwnedWalk`` does with owners=None.

    Raises Untrusted, and SyscallError: ENOENT, ENOTDIR, ELOOP.
    """
    try:
        # A driver's files are named without links: one call, and nothing that could be redirected.
        return syscalls.openat2(root, path.lstrip("/") or ".", os.O_PATH, _NO_LINKS)
    except SyscallError as error:
        if error.errno not in (errno.ELOOP, errno.ENOSYS, errno.EPERM, errno.EAGAIN):
            raise
    found, _ = OwnedWalk(root, None).final(path)
    if found is None:
        raise SyscallError(errno.ENOENT, "openat", root, path)
    return found


def real_path(root: Fd, path: str) -> str:
    """Where ``source`` would find it: the path without links. Raises as ``source``."""
    walk = OwnedWalk(root, None)
    found, name = walk.final(path)
    if found is None:
        raise SyscallError(errno.ENOENT, "openat", root, path)
    return "/" + "/".join([*walk.names, name] if name else walk.names)
