"""The directory in which a container's cache is made: each update has its own, as several may be at work in one root.

Its name cannot be known before, so that an image has nothing in its place, and tells the updates of one root of each
other. What a killed one left is removed by a later one.
"""

from __future__ import annotations

import os
import stat

from nvc.linux.fd import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ETC, _CACHE = "/etc", "ld.so.cache"
CACHE = f"{_ETC}/{_CACHE}"
_PREFIX = f"{_CACHE}.nvc-"
#: What ldconfig writes, which it renames then to the name that it was given.
_FILES = ("cache", "cache~")
#: As long as every path of one.
SAMPLE = f"{_ETC}/{_PREFIX}{'0' * 16}/{_FILES[0]}"
#: Seconds without a change after which an update is taken for killed; no update lives as long.
STALE_S = 600
#: Such directories that one update removes, and entries of /etc that are looked at for any.
_REMOVED, _LOOKED_AT = 64, 4096


class Aside:
    """Made in ``etc``, the container's /etc, with the rights that the calling process has. Raises OSError."""

    def __init__(self, etc: Fd) -> None:
        self._etc = etc
        self._name = _PREFIX + os.urandom(8).hex()
        self.path = f"{_ETC}/{self._name}/{_FILES[0]}"
        os.mkdir(self._name, 0o700, dir_fd=etc.fileno())
        try:
            self._directory = _open(etc, self._name)
            self._sweep()
        except OSError:
            _discard(etc, self._name)
            raise

    def others(self) -> bool:
        """Whether another update is at work in this root."""
        return any(self._is_live(other) for other in self._found())

    def publish(self) -> None:
        """Give the cache its name, in one step. Raises OSError, and nothing is changed."""
        at = self._directory.fileno()
        os.rename(_FILES[0], _CACHE, src_dir_fd=at, dst_dir_fd=self._etc.fileno())

    def remove(self) -> None:
        """Take it away with what is in it; once. Raises OSError."""
        if self._directory.closed:
            return
        with self._directory:
            _empty(self._directory)
            os.rmdir(self._name, dir_fd=self._etc.fileno())

    def _sweep(self) -> None:
        left = _REMOVED
        for other in self._found():
            if not self._is_live(other):
                _discard(self._etc, other)
                left -= 1
                if not left:
                    break

    def _found(self) -> Iterator[str]:
        """Names of the others."""
        number = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._etc.fileno())
        try:
            with os.scandir(number) as entries:
                for _, entry in zip(range(_LOOKED_AT), entries, strict=False):
                    if entry.name.startswith(_PREFIX) and entry.name != self._name:
                        yield entry.name
        finally:
            os.close(number)

    def _is_live(self, name: str) -> bool:
        try:
            status = os.stat(name, dir_fd=self._etc.fileno(), follow_symlinks=False)
        except OSError:
            return False
        # Both times are the file system's: another machine may have made it.
        age = self._directory.stat().st_mtime - status.st_mtime
        return stat.S_ISDIR(status.st_mode) and abs(age) < STALE_S


def _open(etc: Fd, name: str) -> Fd:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return Fd(os.open(name, flags, dir_fd=etc.fileno()), name)


def _empty(directory: Fd) -> None:
    for name in _FILES:
        try:
            os.unlink(name, dir_fd=directory.fileno())
        except FileNotFoundError:
            pass


def _discard(etc: Fd, name: str) -> None:
    try:
        with _open(etc, name) as directory:
            _empty(directory)
        os.rmdir(name, dir_fd=etc.fileno())
    except OSError:
        pass  # none of ours, or a later update has it already
