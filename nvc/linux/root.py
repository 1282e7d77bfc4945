"""Paths inside a directory tree under foreign control: resolved to descriptors, never out of the tree.

The tree is a container's rootfs (or a driver root). Whatever its links contain and however they change meanwhile, a
path leads to something inside; absolute links start at the tree's root and ".." at the root stays there. Resolution
is the kernel's (openat2 with RESOLVE_IN_ROOT), or ``nvc.linux.walk`` on kernels before 5.6.

Nothing that exists is ever written to, truncated or replaced: creation is O_EXCL on an open parent directory, and in no
mount that a link of the tree leads into (a volume): what is made there outlives the container.
``umask`` applies to the modes given here, as to any mkdir and open.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.budgets import ENTRIES
from nvc.base.undo import Undo
from nvc.linux import const, procfd, syscalls
from nvc.linux.fd import Fd, same_file
from nvc.linux.rights import Owner
from nvc.linux.syscalls import SyscallError
from nvc.linux.volumes import Volumes
from nvc.linux.walk import Walk, open_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_RESOLVE = const.RESOLVE_IN_ROOT | const.RESOLVE_NO_MAGICLINKS
#: A rename anywhere on the machine can make openat2 answer EAGAIN for a path with "..": openat2(2) says try again.
_TRIES = 128
_CREATE = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Root:
    """An open directory that paths are resolved in.

    path: what it was opened as, for messages. volumes: where in it something may be made. is_shared: whether another
    process mounts over what is made in it, in a namespace of its own: undo then leaves it, as no mount outlives the
    name that it is on.
    """

    __slots__ = ("fd", "is_shared", "path", "volumes")

    def __init__(self, fd: Fd, path: str = "") -> None:
        self.fd = fd
        self.path = path or fd.name
        self.volumes = Volumes(fd)
        self.is_shared: Callable[[], bool] = lambda: False

    @classmethod
    def open(cls, path: str) -> Root:
        """Open the directory ``path``, its links followed. Open it after entering the mount namespace it is used in.

        Raises SyscallError.
        """
        return cls(syscalls.open_path(path, os.O_PATH | os.O_DIRECTORY), path)

    def close(self) -> None:
        """Close the directory."""
        self.fd.close()

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resolve(self, path: str, *, follow: bool = True) -> Fd:
        """What ``path`` leads to, as O_PATH; with follow=False a link at its end is itself the answer.

        Raises SyscallError: ENOENT, ENOTDIR, ELOOP (also for a magic link), EAGAIN (too many concurrent renames).
        """
        return self._open(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))

    def exists(self, path: str) -> bool:
        """Whether ``path`` leads to something. Raises SyscallError for errors other than absence (EACCES, ...)."""
        try:
            self.resolve(path).close()
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            raise
        return True

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result:
        """stat(2) of what ``path`` leads to. Raises SyscallError."""
        with self.resolve(path, follow=follow) as found:
            return found.stat()

    def open_file(self, path: str) -> Fd:
        """A regular file opened for reading. Raises SyscallError, EINVAL for anything that is not a regular file."""
        with self.resolve(path) as pinned:
            # Checked before it is opened for reading: opening a FIFO blocks, and opening a device has effects.
            if not stat.S_ISREG(pinned.stat().st_mode):
                raise SyscallError(errno.EINVAL, "open", path, "not a regular file")
            try:
                return procfd.reopen(pinned, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError as error:
                raise SyscallError(error.errno or errno.EIO, "open", path) from error

    def read(self, path: str, limit: int) -> bytes:
        """The content of a regular file. Raises SyscallError, EFBIG when it is longer than ``limit`` bytes."""
        with self.open_file(path) as file:
            data = b""
            while chunk := os.read(file.fileno(), min(limit + 1 - len(data), 1 << 20)):
                data += chunk
                if len(data) > limit:
                    raise SyscallError(errno.EFBIG, "read", path, limit)
            return data

    def list_directory(self, path: str, limit: int = ENTRIES) -> list[str]:
        """The names in a directory, sorted. Raises SyscallError, EFBIG when there are more than ``limit``."""
        names: list[str] = []
        with (
            self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK) as directory,
            os.scandir(directory.fileno()) as entries,
        ):
            for entry in entries:
                if len(names) == limit:
                    raise SyscallError(errno.EFBIG, "getdents64", path, limit)
                names.append(entry.name)
        return sorted(names)

    def real_path(self, path: str) -> str:
        """``path`` with its links resolved, from the root: "/usr/lib". What is missing is kept as it is written.

        For messages and plans; a mount target is what ``resolve`` or ``make_*`` returned. Raises SyscallError.
        """
        walk = Walk(self.fd)
        parts = [part for part in path.split("/") if part]
        while parts:
            name = parts.pop(0)
            found = None
            if name not in ("..", "."):
                found = open_name(walk.directory, name)
                if found is None:
                    return _lexical(walk.names, [name, *parts])
                if stat.S_ISLNK(found.stat().st_mode):
                    parts = walk.follow(found, parts)
                    continue
                if not parts:
                    walk.names.append(name)
                    break
            parts = walk.step(name, parts)
        return "/" + "/".join(walk.names)

    def make_directories(self, path: str, *, mode: int = 0o755, uid: int, gid: int, undo: Undo) -> Fd:
        """The directory ``path``, made with its parents where missing, owned by uid:gid.

        A dangling link on the way, or at the end, gets its target made inside the root, as the reference does.
        Raises SyscallError, ENOTDIR where a file is in the way.
        """
        with Owner(uid, gid):
            there = self._directory(path)
            if there is not None:
                return there
            walk = self._creating_walk(path, mode, uid, gid, undo)
            walk.enter(path)
            walk.verify()
            return walk.directory.duplicate()

    def make_file(self, path: str, *, mode: int = 0o644, uid: int, gid: int, undo: Undo) -> Fd:
        """A file to mount over: what is at ``path`` already, or a new empty regular file, with its parents.

        mode: st_mode of what will be mounted; its type (none: regular) says which other kind of existing file is
        accepted (a socket for a socket, a device node for a device node), its permission bits are the new file's.
        A link at the end is followed inside the root; when it dangles, its target is made, as the reference does.
        Raises SyscallError: EISDIR for a directory, ENOTDIR for a file among the parents, EEXIST for another kind.
        """
        with Owner(uid, gid):
            for _ in range(_TRIES):
                found, directory, name = self._place(path) or self._walk_place(path, uid, gid, undo)
                if found is not None:
                    _check_kind(found, path, mode)
                    return found
                self.volumes.check(directory, path)
                try:
                    made = syscalls.openat(directory, name, _CREATE, mode & 0o777)
                except SyscallError as error:
                    if error.errno == errno.EEXIST:
                        continue  # created by another process meanwhile: examine it
                    raise
                undo.push(self._undo, _remove_file, directory.duplicate(), name, _identity(made.stat()), (uid, gid))
                return made
        raise SyscallError(errno.EAGAIN, "openat", path)

    def make_symlink(self, path: str, text: str, *, uid: int, gid: int, undo: Undo) -> bool:
        """Make the link ``path`` -> ``text``, with its parents. False, and nothing done, when the name is taken.

        Raises SyscallError.
        """
        with Owner(uid, gid):
            above, _, name = path.rpartition("/")
            directory = self._directory(above) if name not in ("", ".", "..") else None
            if directory is None:
                walk = self._creating_walk(path, 0o755, uid, gid, undo)
                name = walk.parent(path.rstrip("/"))
                walk.verify()
                directory = walk.directory
            if open_name(directory, name or ".") is None:
                self.volumes.check(directory, path)
            try:
                os.symlink(text, name or ".", dir_fd=directory.fileno())
            except FileExistsError:
                return False
            except OSError as error:
                raise SyscallError(error.errno or errno.EIO, "symlinkat", text, directory, name) from error
            made = os.stat(name, dir_fd=directory.fileno(), follow_symlinks=False)
            undo.push(self._undo, _remove_file, directory.duplicate(), name, _identity(made), (uid, gid))
            return True

    def _open(self, path: str, flags: int) -> Fd:
        for _ in range(_TRIES):
            try:
                return syscalls.openat2(self.fd, path.lstrip("/") or ".", flags, _RESOLVE)
            except SyscallError as error:
                # EPERM: what seccomp profiles older than the call answer; the walk finds the true answer.
                if error.errno in (errno.ENOSYS, errno.EPERM):
                    return self._walk_open(path, flags)
                if error.errno != errno.EAGAIN:
                    raise SyscallError(error.errno or errno.EIO, "openat2", self.fd, path) from None
        raise SyscallError(errno.EAGAIN, "openat2", self.fd, path)

    def _walk_open(self, path: str, flags: int) -> Fd:
        """openat2's answer without openat2."""
        walk = Walk(self.fd)
        found, name = walk.final(path, follow=not flags & os.O_NOFOLLOW)
        walk.verify()
        if found is None:
            raise SyscallError(errno.ENOENT, "openat", self.fd, path)
        if flags & os.O_PATH:
            return found
        opened = syscalls.openat(walk.directory, name or ".", flags | os.O_NOFOLLOW)
        if not same_file(found, opened):
            raise SyscallError(errno.EAGAIN, "openat", self.fd, path)
        return opened

    def _directory(self, path: str) -> Fd | None:
        """The directory ``path`` if it exists and the kernel can tell at once; None to walk there."""
        try:
            return syscalls.openat2(self.fd, path.lstrip("/") or ".", os.O_PATH | os.O_DIRECTORY, _RESOLVE)
        except SyscallError:
            return None

    def _place(self, path: str) -> tuple[Fd | None, Fd, str] | None:
        """(what is at ``path``, its directory, its name), found as the walk would find it; None to walk there.

        One call in place of two a component. It is as safe: the kernel checks at its end that the directory is
        still below the root (complete_walk() in kernel/fs/namei.c), which is what ``Walk.verify`` does.
        """
        above, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return None
        directory = self._directory(above)
        if directory is None:
            return None
        found = open_name(directory, name)
        if found is not None and stat.S_ISLNK(found.stat().st_mode):
            return None
        return found, directory, name

    def _walk_place(self, path: str, uid: int, gid: int, undo: Undo) -> tuple[Fd | None, Fd, str]:
        """As ``_place``, for every path: missing parents are made, links at the end are followed."""
        walk = self._creating_walk(path, 0o755, uid, gid, undo)
        found, name = walk.final(path)
        walk.verify()
        return found, walk.directory, name

    def _creating_walk(self, path: str, mode: int, uid: int, gid: int, undo: Undo) -> Walk:
        def make_directory(parent: Fd, name: str) -> None:
            self.volumes.check(parent, path)
            try:
                os.mkdir(name, mode, dir_fd=parent.fileno())
            except FileExistsError:
                return  # created by another process meanwhile: the walk examines it
            except OSError as error:
                raise SyscallError(error.errno or errno.EIO, "mkdirat", parent, name) from error
            made = os.stat(name, dir_fd=parent.fileno(), follow_symlinks=False)
            undo.push(self._undo, _remove_directory, parent.duplicate(), name, _identity(made), (uid, gid))

        return Walk(self.fd, make_directory)

    def _undo(self, remove: Callable[..., None], *made: object) -> None:
        if not self.is_shared():
            remove(*made)


def _lexical(names: list[str], rest: list[str]) -> str:
    kept = list(names)
    for part in rest:
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    return "/" + "/".join(kept)


def _check_kind(found: Fd, path: str, mode: int) -> None:
    there = stat.S_IFMT(found.stat().st_mode)
    if there == stat.S_IFDIR:
        raise SyscallError(errno.EISDIR, "openat", path)
    if there not in (stat.S_IFREG, stat.S_IFMT(mode)):
        raise SyscallError(errno.EEXIST, "openat", path)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _still_ours(parent: Fd, name: str, identity: tuple[int, int]) -> os.stat_result | None:
    """The entry's status if it is the one that we made: not one that took its name since."""
    try:
        status = os.stat(name, dir_fd=parent.fileno(), follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status if _identity(status) == identity else None


def _remove_file(parent: Fd, name: str, identity: tuple[int, int], owner: tuple[int, int]) -> None:
    """Undo: remove the link or empty file that we made. One that was written to since belongs to its writer."""
    with Owner(*owner):
        status = _still_ours(parent, name, identity)
        if status is not None and (stat.S_ISLNK(status.st_mode) or status.st_size == 0):
            os.unlink(name, dir_fd=parent.fileno())


def _remove_directory(parent: Fd, name: str, identity: tuple[int, int], owner: tuple[int, int]) -> None:
    """Undo: remove the directory that we made, if it is empty."""
    with Owner(*owner):
        if _still_ours(parent, name, identity) is None:
            return
        try:
            os.rmdir(name, dir_fd=parent.fileno())
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
