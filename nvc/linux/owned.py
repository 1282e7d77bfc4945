"""Host paths that only root can have made: resolved step by step, with a look at the owner of each.

A path that is mounted into containers must lead to what root put there. Local users can make names in sticky
directories (/tmp), and make, replace and redirect whatever lies below a directory of theirs or one that they may write.
``fs.protected_symlinks`` covers a part of this, where it is set, and only for paths that the kernel resolves alone.

Root is uid 0, and the caller itself. In a user namespace the host's root is the overflow uid, as every other unmapped
user: it counts as root only where no other user can make names.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.linux import const, procfd, rights, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError
from nvc.linux.walk import MAX_LINKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

#: Where services keep their sockets. Nothing else of a host is mounted writable, whatever a variable names.
PREFIXES = ("/run/", "/var/run/", "/tmp/", "/var/tmp/", "/srv/", "/opt/")
#: kernel/include/linux/highuid.h: DEFAULT_OVERFLOWUID.
_OVERFLOW_UID = 65534
_SHARED = stat.S_IWGRP | stat.S_IWOTH
_PIN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = const.RESOLVE_IN_ROOT | const.RESOLVE_NO_MAGICLINKS | const.RESOLVE_NO_SYMLINKS


class Untrusted(OSError):
    """A step of a path is not root's alone. text: which, and why."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, text)
        self.text = text


class Found:
    """What a path leads to, pinned. path: where that is, below the root and without links.

    is_replaceable: whether another user than root could replace what was passed.
    """

    __slots__ = ("file", "is_replaceable", "path")

    def __init__(self, file: Fd, path: str, is_replaceable: bool) -> None:
        self.file = file
        self.path = path
        self.is_replaceable = is_replaceable


class _Owners:
    """Owners that what is passed may have: root, and the named uids; named=None: links alone must be root's."""

    __slots__ = ("_is_mapped", "_named", "_root")

    def __init__(self, named: Collection[int] | None) -> None:
        self._root = (0, os.geteuid())
        self._named = named
        self._is_mapped: bool | None = None

    def is_root(self, uid: int) -> bool:
        if uid in self._root:
            return True
        if uid != _OVERFLOW_UID:
            return False
        if self._is_mapped is None:
            self._is_mapped = rights.in_user_namespace()
        return self._is_mapped

    def check(self, status: os.stat_result, path: str, *, above: int, is_shared: bool) -> None:
        """Look at an entry. above: owner of its directory; is_shared: others may write that. Raises Untrusted."""
        if stat.S_ISLNK(status.st_mode):
            if is_shared or not self.is_root(above) or not self.is_root(status.st_uid):
                raise Untrusted(f"{path} is a link that others than root can make or replace")
            return
        if self._named is None or status.st_uid in self._root or status.st_uid in self._named:
            return
        if is_shared or not self.is_root(status.st_uid):
            raise Untrusted(f"{path} belongs to user {status.st_uid}")


def _walk(root: Fd, path: str, owners: _Owners, *, is_strict: bool) -> Found:
    """Resolve ``path`` below ``root`` as ``nvc.linux.walk`` does. Raises Untrusted and OSError."""
    # Directories from the root to where we stand: descriptor, status, path.
    stack = [(root, root.stat(), "")]
    todo, links, is_replaceable = path.split("/")[::-1], 0, False
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del stack[max(1, len(stack) - 1) :]
            continue
        directory, above, place = stack[-1]
        place = f"{place}/{name}"
        found = Fd(os.open(name, _PIN, dir_fd=directory.fileno()), place)
        is_shared = bool(above.st_mode & _SHARED)
        if is_strict and is_shared:
            _check_shared(directory, above, found)
        status = found.stat()
        owners.check(status, place, above=above.st_uid, is_shared=is_shared)
        if is_strict and status.st_dev != above.st_dev and syscalls.filesystem_type(found) == const.FUSE_SUPER_MAGIC:
            raise Untrusted(f"{place} is on a file system of a program's, which may name any owner")
        is_replaceable = is_replaceable or is_shared or not owners.is_root(above.st_uid)
        if not stat.S_ISLNK(status.st_mode):
            stack.append((found, status, place))
            continue
        links += 1
        if links > MAX_LINKS:
            raise SyscallError(errno.ELOOP, "resolve", path)
        text = os.readlink("", dir_fd=found.fileno())
        if text.startswith("/"):
            del stack[1:]
        todo += text.split("/")[::-1]
    last, _, place = stack[-1]
    return Found(last.duplicate() if last is root else last, place or "/", is_replaceable)


def _check_shared(directory: Fd, above: os.stat_result, found: Fd) -> None:
    if not above.st_mode & stat.S_ISVTX:
        raise Untrusted(f"the directory of {found.name} may be written by others")
    # Before anything is asked of a file system that a user may have mounted there (FUSE).
    if procfd.mount_id(directory) != procfd.mount_id(found):
        raise Untrusted(f"{found.name} is a mount point in a directory that others may write")


def endpoint(root: Fd, path: str, named: Collection[int], server: str = "") -> Found:
    """Pin the socket at ``path`` below ``root``, or the directory there in which ``server`` is a socket.

    Every step belongs to root or one of ``named`` (uids), and so does the server's socket; where it leads is below
    PREFIXES. The socket has no second name. Raises Untrusted, and OSError for what is not there.
    """
    if ".." in path.split("/"):
        raise Untrusted(f"{path} has '..'")
    _check_prefix(path)
    owners = _Owners(named)
    owners.check(root.stat(), "the driver root", above=0, is_shared=False)
    found = _walk(root, path, owners, is_strict=True)
    _check_prefix(found.path)
    status = found.file.stat()
    if server:
        _check_server(found, status, server, owners)
    else:
        _check_socket(status, found.path)
    return found


def _check_prefix(path: str) -> None:
    if not path.startswith(PREFIXES):
        raise Untrusted(f"{path} is not below any of {', '.join(prefix[:-1] for prefix in PREFIXES)}")


def _check_server(found: Found, above: os.stat_result, server: str, owners: _Owners) -> None:
    path = f"{found.path}/{server}"
    try:
        with Fd(os.open(server, _PIN, dir_fd=found.file.fileno()), path) as socket:
            status = socket.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise Untrusted(f"{path} does not exist") from None
    _check_socket(status, path)
    owners.check(status, path, above=above.st_uid, is_shared=bool(above.st_mode & _SHARED))


def _check_socket(status: os.stat_result, path: str) -> None:
    if not stat.S_ISSOCK(status.st_mode):
        raise Untrusted(f"{path} is not a socket")
    # Where fs.protected_hardlinks is 0, a user that may write the directory can link another daemon's socket into it.
    if status.st_nlink != 1:
        raise Untrusted(f"{path} is a socket with {status.st_nlink} names")


class Sources:
    """Opens the files below ``root`` that are mounted. A link on the way is followed only if it and its directory are
    root's; the owner of anything else that is passed makes no difference: nothing of it can lead elsewhere.
    """

    def __init__(self, root: Fd) -> None:
        self._root = root
        #: Directories that links led to, by the paths that were asked for: firmware has several files in one.
        self._known: dict[str, Fd] = {}

    def open(self, path: str) -> Fd:
        """What ``path`` leads to, as O_PATH. Raises Untrusted, and OSError (ENOENT, ENOTDIR, ELOOP, ...)."""
        above, _, name = path.rpartition("/")
        if above not in self._known:
            # A driver's files are named without links: one call, and nothing that could be redirected.
            found = _without_links(self._root, path.lstrip("/") or ".")
            if found is not None:
                return found
            if name not in ("", ".", ".."):
                self._known[above] = _walk(self._root, above, _Owners(None), is_strict=False).file
        if above in self._known:
            found = Fd(os.open(name, _PIN, dir_fd=self._known[above].fileno()), path)
            if not stat.S_ISLNK(found.stat().st_mode):
                return found
        return _walk(self._root, path, _Owners(None), is_strict=False).file


def _without_links(directory: Fd, path: str) -> Fd | None:
    """What ``path`` leads to, or None where a walk has to tell. Raises SyscallError."""
    try:
        return syscalls.openat2(directory, path, os.O_PATH, _NO_LINKS)
    except SyscallError as error:
        if error.errno not in (errno.ELOOP, errno.ENOSYS, errno.EPERM, errno.EAGAIN):
            raise
        return None


def real_path(root: Fd, path: str) -> str:
    """Where ``Sources`` would find it: the path without links. Raises as that."""
    return _walk(root, path, _Owners(None), is_strict=False).path
