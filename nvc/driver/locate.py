"""Files below the driver root.

The driver root is trusted (a driver container's or the host's own tree), but its links are written for a process
whose root it is: an absolute link must not lead into the host's tree. ``..`` above the root stays at the root, as the
kernel does it for a chroot and for RESOLVE_IN_ROOT (the reference makes it an error; libnvidia-container.md 11
leaves the choice).
Results are strings, because nothing here is used inside a container: mounting opens its sources itself.
"""

from __future__ import annotations

import errno
import os
import stat

#: Links followed for one path (the kernel: MAXSYMLINKS is 40).
LINK_LIMIT = 40


def host_path(root: str, path: str) -> str:
    """Where a driver path is for this process."""
    return path if root == "/" else root.rstrip("/") + path


def resolve(root: str, path: str, known: dict[str, str] | None = None) -> str:
    """``path`` with every link resolved as if ``root`` were "/"; the result is relative to it and starts with "/".

    known: what earlier calls for the same root found, filled by each: link or directory -> the link's text, or "".
    Raises OSError (FileNotFoundError, ELOOP, ENOTDIR, EACCES ...) with the driver path.
    """
    base = "" if root == "/" else root.rstrip("/")
    known = {} if known is None else known
    done: list[str] = []
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if done:
                done.pop()
            continue
        done.append(name)
        place = f"{base}/{'/'.join(done)}"
        text = known.get(place)
        if text is None:
            try:
                text = os.readlink(place)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
                text = ""  # no link has an empty text
            known[place] = text
        if not text:
            continue
        links += 1
        if links > LINK_LIMIT:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        done = [] if text.startswith("/") else done[:-1]
        todo += text.split("/")[::-1]
    return "/" + "/".join(done)


def status(root: str, path: str, known: dict[str, str] | None = None) -> os.stat_result:
    """stat of a driver path, links followed below the root. known: as for ``resolve``. Raises OSError."""
    return os.stat(path) if root == "/" else os.lstat(host_path(root, resolve(root, path, known)))


def is_missing(error: OSError) -> bool:
    """Whether an optional thing counts as absent.

    EACCES too: sockets below directories of other users are the case the reference learnt from (since 1.17.5).
    """
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENXIO)


def open_file(path: str) -> int:
    """Open a regular file of this process's tree for reading. Raises OSError; a FIFO or a device does nothing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def read_bytes(path: str, limit: int) -> bytes:
    """The content of a regular file. Raises OSError; EFBIG when it is longer than ``limit`` bytes."""
    descriptor = open_file(path)
    try:
        parts, size, chunk = [], 0, 1 << 12
        # A file of /proc says size 0 and gives a page a time; most have less. Memory for what is asked for comes from
        # the kernel and goes back to it: a page fault for each page, and above 64 KiB more than the reading costs.
        while part := os.read(descriptor, min(limit + 1 - size, chunk)):
            parts.append(part)
            size += len(part)
            chunk = 1 << 16
            if size > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_text(path: str, limit: int = 1 << 20) -> str:
    """The content of a small text file. Raises OSError."""
    return read_bytes(path, limit).decode("utf-8", "surrogateescape")
