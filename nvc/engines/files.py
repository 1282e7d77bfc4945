"""Reads and writes engine files. The one module of this package that accesses the disk.

A file is replaced by renaming a complete new one over it, so an engine never reads half of it and a full disk leaves
the old one. Links are followed: the file they lead to is replaced, the link stays. The new file is locked while it is
written, so of several processes one writes at a time, and none over what it has not read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import stat
import time
from typing import TYPE_CHECKING

from nvc.base import directories
from nvc.base.errors import InputError, NvcError, PrivilegeError, reason
from nvc.base.progress import waiting
from nvc.engines.config import as_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvc.engines.config import FileEdit, Plan

#: Bytes; far above the size of any engine's file.
LIMIT = 4 << 20
BACKUP = ".nvc-backup"
#: The PATH of systemd's units (systemd.exec(5)), in which an engine finds a program without a directory.
_SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_MODE = 0o644
#: Seconds to wait for another process that writes the same file, and between two looks.
_PATIENCE, _PAUSE = 30.0, 0.02
#: Plans for one command. Each further one means that another process has written one of the files.
_PLANS = 100


class ChangedError(NvcError):
    """A file is not what the edit was made for."""


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


def carry_out(plan: Callable[[], Plan], reader: Files, done: Callable[[FileEdit], None]) -> Plan:
    """Make a plan and write it; where another process has changed a file since it was read, make a new one of the rest.

    done: called with each edit that was written. Returns the last plan, with these and with the notes of all plans.
    Raises as ``write``.
    """
    written: list[FileEdit] = []
    notes: dict[str, None] = {}
    plans = 0
    while True:
        made, plans = plan(), plans + 1
        notes |= dict.fromkeys(made.notes)
        try:
            for edit in made.edits:
                write(edit, reader)
                written.append(edit)
                done(edit)
            return made.replace(edits=tuple(written), notes=tuple(notes))
        except ChangedError:
            if plans == _PLANS:
                raise


def write(edit: FileEdit, reader: Files) -> None:
    """Do one edit: backup, then the file. An edit that fails leaves the file unchanged.

    Raises ChangedError, PrivilegeError or NvcError with the reason.
    """
    path, backup = os.path.realpath(edit.path), backup_path(edit.path)
    if reader.read(path) != edit.before:
        raise _changed(edit)
    try:
        if edit.after is not None:
            directories.make(os.path.dirname(path))
        with _new(path) as (descriptor, name):
            if reader.read(path) != edit.before:
                raise _changed(edit)
            if edit.backup == "make" and edit.before is not None:
                with _new(backup) as (copy, copy_name):
                    _replace(copy, copy_name, backup, edit.before, like=path)
            if edit.after is None:
                os.unlink(path)
            else:
                _replace(descriptor, name, path, edit.after, like=path)
            if edit.backup == "drop":
                _discard(backup)
    except OSError as error:
        raise _failure("write", edit.path, error) from error


def _changed(edit: FileEdit) -> ChangedError:
    return ChangedError(f"{edit.path} has changed in the meantime", hint="nothing was written; run this again")


@contextlib.contextmanager
def _new(path: str) -> Iterator[tuple[int, str]]:
    """The file that is going to be ``path``, empty and locked, and its name. It is gone at the end, unless renamed.

    Only the process that has the lock changes ``path``. Raises NvcError if another one keeps it.
    """
    name = f"{os.path.dirname(path)}/.{os.path.basename(path)}.nvc-new"
    with waiting(f"another process writes {path}"):
        descriptor = _locked(name, path)
    try:
        os.ftruncate(descriptor, 0)  # a run that was killed left its text
        yield descriptor, name
    finally:
        if _is(descriptor, name):
            os.unlink(name)
        os.close(descriptor)


def _locked(name: str, path: str) -> int:
    end = time.monotonic() + _PATIENCE
    while True:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Else its owner has renamed or removed it since it was opened.
            if _is(descriptor, name):
                return descriptor
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                hint = f"it has the lock of {name}: see fuser(1) for its pid"
                raise NvcError(
                    f"cannot write {path}: another process does, since {_PATIENCE:.0f} s", hint=hint
                ) from None
            time.sleep(_PAUSE)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is(descriptor: int, name: str) -> bool:
    """Whether this name is the open file's."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(name))
    except FileNotFoundError:
        return False


def _replace(descriptor: int, name: str, path: str, text: str, *, like: str) -> None:
    """Write the text into the new file, give it the owner, mode and labels of ``like``, and rename it to ``path``."""
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(text.encode())
        file.flush()
        _copy_attributes(descriptor, like)
        os.fsync(descriptor)
    os.rename(name, path)
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
