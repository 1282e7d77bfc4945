"""What ldconfig may change, remembered, so that a failed configure can put it back.

ldconfig replaces its cache by renaming, so holding the old file open keeps its content: nothing is copied unless it
must be restored. Remembered are both caches and the links in the directories that ldconfig is told; links that it makes
in directories which the image's own configuration names are not.
"""

from __future__ import annotations

import os
import stat

from nvc.linux.fd import Fd
from nvc.linux.rights import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.linux.root import Root

CACHE = "/etc/ld.so.cache"
#: Files that ldconfig writes: the cache, its table of known libraries, and the temporary files of both.
_FILES = (("/etc", ("ld.so.cache", "ld.so.cache~")), ("/var/cache/ldconfig", ("aux-cache", "aux-cache~")))
_COPY_BYTES = 1 << 20


class _Place:
    """An open directory with what some of its entries were: name -> link text, open file, or None for absent."""

    def __init__(self, directory: Fd, entries: dict[str, str | Fd | None]) -> None:
        self.directory = directory
        self.entries = entries


class Snapshot:
    """Take it before ldconfig runs; ``restore`` after it failed. owner: ids that files are written as."""

    def __init__(self, root: Root, directories: tuple[str, ...], owner: tuple[int, int]) -> None:
        self._owner = owner
        self._files = [_Place(directory, _entries(directory, names)) for directory, names in _open(root)]
        self._links = [_Place(directory, _links(directory)) for directory in _open_all(root, directories)]
        self._new_directory = None if len(self._files) == len(_FILES) else _parent(root, _FILES[-1][0])

    def close(self) -> None:
        """Let go of what is remembered."""
        for place in (*self._files, *self._links):
            place.directory.close()
            for entry in place.entries.values():
                if isinstance(entry, Fd):
                    entry.close()

    def restore(self) -> None:
        """Put back what differs. Raises OSError."""
        with Owner(*self._owner):
            for place in self._links:
                after = _links(place.directory)
                for name, text in after.items():
                    if place.entries.get(name) != text:
                        _put(place.directory, name, place.entries.get(name))
                for name in place.entries.keys() - after.keys():
                    _put(place.directory, name, place.entries[name])
            for place in self._files:
                for name, entry in place.entries.items():
                    if not _unchanged(place.directory, name, entry):
                        _put(place.directory, name, entry)
            self._remove_new_directory()
        self.close()

    def _remove_new_directory(self) -> None:
        if self._new_directory is None:
            return
        parent, name = self._new_directory
        try:
            with Fd(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent.fileno())) as made:
                for file in _FILES[-1][1]:
                    _remove(made, file)
            os.rmdir(name, dir_fd=parent.fileno())
        except FileNotFoundError:
            pass


def _open(root: Root) -> list[tuple[Fd, tuple[str, ...]]]:
    return [(directory, names) for path, names in _FILES for directory in _open_all(root, (path,))]


def _open_all(root: Root, paths: tuple[str, ...]) -> list[Fd]:
    """Those of ``paths`` that are directories, each inode once."""
    found: dict[tuple[int, int], Fd] = {}
    for path in paths:
        try:
            directory = root.resolve(path)
        except OSError:
            continue
        status = directory.stat()
        if stat.S_ISDIR(status.st_mode):
            found.setdefault((status.st_dev, status.st_ino), directory)
    return list(found.values())


def _parent(root: Root, path: str) -> tuple[Fd, str] | None:
    parent, _, name = path.rpartition("/")
    for directory in _open_all(root, (parent,)):
        return directory, name
    return None


def _links(directory: Fd) -> dict[str, str | Fd | None]:
    number = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fileno())
    try:
        with os.scandir(number) as entries:
            names = [entry.name for entry in entries if entry.is_symlink()]
        return {name: os.readlink(name, dir_fd=number) for name in names}
    finally:
        os.close(number)


def _entries(directory: Fd, names: tuple[str, ...]) -> dict[str, str | Fd | None]:
    return {name: _entry(directory, name) for name in names}


def _entry(directory: Fd, name: str) -> str | Fd | None:
    try:
        mode = os.stat(name, dir_fd=directory.fileno(), follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return os.readlink(name, dir_fd=directory.fileno())
        if not stat.S_ISREG(mode):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return Fd(os.open(name, flags, dir_fd=directory.fileno()), name)
    except FileNotFoundError:
        return None


def _unchanged(directory: Fd, name: str, entry: str | Fd | None) -> bool:
    try:
        now = os.stat(name, dir_fd=directory.fileno(), follow_symlinks=False)
    except FileNotFoundError:
        return entry is None
    if isinstance(entry, Fd):
        before = entry.stat()
        return (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    if isinstance(entry, str):
        return stat.S_ISLNK(now.st_mode) and os.readlink(name, dir_fd=directory.fileno()) == entry
    # What was neither file nor link (a directory, say) is not ldconfig's to replace.
    return not stat.S_ISREG(now.st_mode) and not stat.S_ISLNK(now.st_mode)


def _put(directory: Fd, name: str, entry: str | Fd | None) -> None:
    """Make the entry what it was, by renaming over it."""
    if entry is None:
        _remove(directory, name)
        return
    temporary = f".{name}.nvc-restore"
    _remove(directory, temporary)
    at = directory.fileno()
    if isinstance(entry, str):
        os.symlink(entry, temporary, dir_fd=at)
    else:
        status = entry.stat()
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
        with Fd(number, temporary) as copy:
            offset = 0
            while sent := os.sendfile(copy.fileno(), entry.fileno(), offset, _COPY_BYTES):
                offset += sent
            os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))
            os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
    os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)


def _remove(directory: Fd, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory.fileno())
    except FileNotFoundError:
        pass
