"""Reads and writes engine files. The one module of this package that accesses the disk.

A file is replaced by renaming a complete new one over it, so an engine never reads half of it and a full disk leaves
the old one. Links are followed: the file they lead to is replaced, the link stays.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from typing import TYPE_CHECKING

from nvc.base import directories
from nvc.base.errors import InputError, NvcError, PrivilegeError, reason
from nvc.engines.config import as_written

if TYPE_CHECKING:
    from nvc.engines.config import FileEdit

#: Bytes; far above the size of any engine's file.
LIMIT = 4 << 20
BACKUP = ".nvc-backup"
#: The PATH of systemd's units (systemd.exec(5)), in which an engine finds a program without a directory.
_SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_MODE = 0o644


class Files:
    """The disk, as ``config.Sources``."""

    def read(self, path: str) -> str | None:
        """The text of a file, None if there is none. Raises InputError if it is none, PrivilegeError if unreadable."""
        try:
            # O_NONBLOCK: open of a FIFO would block.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failure("read", path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{path} is not a regular file", hint="name the engine's file with --config")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(LIMIT + 1)
        except OSError as error:
            raise _failure("read", path, error) from error
        finally:
            os.close(descriptor)
        if len(data) > LIMIT:
            raise InputError(f"{path} is larger than {LIMIT} bytes", hint="name the engine's file with --config")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise InputError(
                f"{path} is not valid: line {line}: it is not UTF-8",
                hint="the file was not changed; save it as UTF-8",
            ) from error

    def backup(self, path: str) -> str | None:
        return self.read(backup_path(path))

    def listing(self, pattern: str) -> list[str]:
        return sorted(name for name in glob.glob(pattern, include_hidden=True) if os.path.isfile(name))


def located(program: str) -> str:
    """The file that an engine starts for a program's name, links followed."""
    if "\0" in program:
        return program
    places = [program] if "/" in program else [f"{directory}/{program}" for directory in _SEARCHED]
    return os.path.realpath(next((place for place in places if os.access(place, os.X_OK)), as_written(program)))


def backup_path(path: str) -> str:
    """The backup of a file: beside it, but not in a directory of which the engine reads every file (crio.conf.d)."""
    path = os.path.realpath(path)
    directory, name = os.path.split(path)
    if directory.endswith(".d"):
        directory = os.path.dirname(directory)
    return os.path.join(directory, name + BACKUP)


def write(edit: FileEdit, reader: Files) -> None:
    """Do one edit: backup, then the file. An edit that fails leaves the file unchanged.

    Raises PrivilegeError or NvcError with the reason.
    """
    path, backup = os.path.realpath(edit.path), backup_path(edit.path)
    if reader.read(path) != edit.before:
        raise NvcError(f"{edit.path} has changed in the meantime", hint="nothing was written; run this again")
    try:
        if edit.after is not None:
            directories.make(os.path.dirname(path))
        if edit.backup == "make" and edit.before is not None:
            _replace(backup, edit.before, like=path)
        if edit.after is None:
            os.unlink(path)
        else:
            _replace(path, edit.after, like=path)
        if edit.backup == "drop":
            _discard(backup)
    except OSError as error:
        raise _failure("write", edit.path, error) from error


def _replace(path: str, text: str, *, like: str) -> None:
    """Write a file under another name, with the owner, mode and labels of ``like``, and rename it."""
    new = f"{os.path.dirname(path)}/.{os.path.basename(path)}.nvc-new"
    _discard(new)  # of a run that was killed
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            _copy_attributes(descriptor, like)
            os.fsync(descriptor)
        os.rename(new, path)
    except BaseException:
        _discard(new)
        raise
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _copy_attributes(descriptor: int, like: str) -> None:
    try:
        there = os.stat(like)
    except FileNotFoundError:
        os.fchmod(descriptor, _MODE)
        return
    if (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, there.st_uid, there.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))
    for name in _attributes(like):  # above all security.selinux, without which a confined daemon cannot read the file
        try:
            os.setxattr(descriptor, name, os.getxattr(like, name))
        except OSError:
            continue  # the file system sets the label of new files itself


def _attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError:
        return []


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


_HINTS = {
    errno.ENOSPC: "the file was not changed; free space and run this again",
    errno.EDQUOT: "the file was not changed; free space and run this again",
    errno.EROFS: "the file is on a read-only file system: change it at its source, or name another file with --config",
    errno.EBUSY: "the file is a mount point and cannot be replaced: change it outside of this container",
    errno.ELOOP: "the path has a loop of symbolic links",
    errno.ENOTDIR: "a component of the path is a file: correct --config",
    errno.EISDIR: "name a file, not a directory",
}


def _failure(verb: str, path: str, error: OSError) -> NvcError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return PrivilegeError(f"cannot {verb} {path}: {reason(error)}", hint="run this as root (sudo)")
    return NvcError(f"cannot {verb} {path}: {reason(error)}", hint=_HINTS.get(error.errno or 0, ""))
