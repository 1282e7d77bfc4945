"""Opens a log that was named by a path: written as root, so no link of another user's may say where.

A link is followed only if it and its directory are root's, or the caller's, and no other user may write the directory.
Where others may (/tmp), the file itself must be the caller's or root's, and have one name.
"""

from __future__ import annotations

import errno
import os
import stat

_PIN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: a FIFO or a terminal without a reader would hang the command, here or at a later record.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_SHARED = stat.S_IWGRP | stat.S_IWOTH
#: MAXSYMLINKS of kernel/include/linux/namei.h.
_MAX_LINKS = 40


def open_append(path: str, *, make: bool = False) -> int:
    """A descriptor to append to ``path`` with, the file made where missing; make: its directories too.

    Raises OSError: EPERM for what another user has put on the way, ELOOP.
    """
    todo = path.split("/")[::-1]
    stack = [os.open("/" if path.startswith("/") else ".", _PIN | os.O_DIRECTORY)]
    links = 0
    try:
        while True:
            name = todo.pop() if todo else "."
            if name in ("", ".") and any(part not in ("", ".") for part in todo):
                continue
            if name == ".." and todo:
                if len(stack) > 1:
                    os.close(stack.pop())
                continue
            directory = stack[-1]
            above = os.fstat(directory)
            is_ours = _is_trusted(above.st_uid) and not above.st_mode & _SHARED
            text = _link(directory, name, path, is_ours)
            if text is None and todo:
                stack.append(_enter(directory, name, make))
            elif text is None:
                return _open(directory, name, path, is_ours)
            elif not todo and _is_own_descriptor(directory):
                return os.open(name, _APPEND & ~os.O_CREAT, dir_fd=directory)
            else:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if text.startswith("/"):
                    # ".." behind it stays at the root.
                    stack, above_root = [os.open("/", _PIN | os.O_DIRECTORY)], stack
                    _close(above_root)
                todo += text.split("/")[::-1]
    finally:
        _close(stack)


def _close(numbers: list[int]) -> None:
    for number in numbers:
        os.close(number)


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _link(directory: int, name: str, path: str, is_ours: bool) -> str | None:
    """The text of a link, None for anything else. Raises OSError EPERM for a link that is not to be followed."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            return None
        text = os.readlink(name, dir_fd=directory)
    except OSError:
        return None  # not there, or no link any more: opening it follows none
    if not is_ours or not _is_trusted(status.st_uid):
        raise OSError(errno.EPERM, f"{name} is a link that another user can make or replace", path)
    return text


def _enter(directory: int, name: str, make: bool) -> int:
    try:
        return os.open(name, _PIN | os.O_DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:
        pass
    return os.open(name, _PIN | os.O_DIRECTORY, dir_fd=directory)


def _open(directory: int, name: str, path: str, is_ours: bool) -> int:
    number = os.open(name, _APPEND | os.O_NOFOLLOW, 0o644, dir_fd=directory)
    status = os.fstat(number)
    if not is_ours and (not _is_trusted(status.st_uid) or (stat.S_ISREG(status.st_mode) and status.st_nlink != 1)):
        os.close(number)
        raise OSError(errno.EPERM, f"{name} belongs to user {status.st_uid}, or has another name", path)
    return number


def _is_own_descriptor(directory: int) -> bool:
    """Whether it is /proc/self/fd, where /dev/stderr leads: its links name what this process has open."""
    try:
        return os.path.samestat(os.fstat(directory), os.stat("/proc/self/fd"))
    except OSError:
        return False
