"""What ldconfig may change, remembered, so that a failed configure can put it back.

The cache itself is not touched until all has gone well: ldconfig writes another file (``nvc.container.ldcache.aside``),
which gets the cache's name last (``Snapshot.publish``). So nothing of the image's is copied, whose file may be
gigabytes of holes. Remembered are the links in the directories that ldconfig is given, and its table of known
libraries; links that it makes in directories which the image's own configuration names are not.

It is taken before anything is changed, and refuses what it could not put back in time: the image says how much there
is to remember. Where another update of the same root is at work, or came to its end since, nothing is put back: its
cache names the same links.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from nvc.base.budgets import ENTRIES, NAME_BYTES, RESTORE_S, TABLE_BYTES
from nvc.base.errors import LdcacheError, reason
from nvc.base.undo import Undo
from nvc.container.ldcache.aside import CACHE, Aside
from nvc.linux import procfd
from nvc.linux.fd import Fd
from nvc.linux.rights import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.linux.root import Root

_ETC, _NAME = CACHE.rsplit("/", 1)
#: ldconfig's table of known libraries: no option names its place.
_TABLE, _TABLES = "/var/cache/ldconfig", ("aux-cache", "aux-cache~")
TABLE_FILES = tuple(f"{_TABLE}/{name}" for name in _TABLES)
#: A larger one is not copied back, but removed: ldconfig makes it anew. Real ones have some 50 KiB.
_TABLE_BYTES = TABLE_BYTES
_COPY_BYTES = 1 << 16
#: Seconds for putting things back: the engine waits for the failure.
UNDO_LIMIT = RESTORE_S
#: Entries looked at between two looks at the clock.
_STEPS = 256


class _Place:
    """An open directory with what some of its entries were: name -> link text, pinned file, or None for absent."""

    def __init__(self, directory: Fd, entries: dict[str, str | Fd | None]) -> None:
        self.directory = directory
        self.entries = entries


class _Amount:
    """What may be read of directories: entries, and bytes of names and texts of links. Raises LdcacheError."""

    def __init__(self, path: str, factor: int = 1) -> None:
        self._path = path
        self._entries = ENTRIES * factor
        self._bytes = NAME_BYTES * factor

    def take(self, count: int) -> None:
        self._entries -= 1
        self._bytes -= count
        if self._entries < 0 or self._bytes < 0:
            raise LdcacheError(
                f"{self._path}: the library directories of the image have more than {ENTRIES} entries, or "
                f"{NAME_BYTES >> 20} MiB of names and links",
                hint="the loader's links could not be put back in time after a failure: take them out of the image",
            )


class _Clock:
    """Raises TimeoutError when the time is over; cheap enough to be asked for every entry of a directory."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._steps = 0

    def tick(self) -> None:
        self._steps += 1
        if self._steps % _STEPS == 0 and time.monotonic() > self._end:
            raise TimeoutError("the loader's links are not all as they were: putting them back takes too long")


class Snapshot:
    """Take it and ``begin`` before anything is changed, ``complete`` it before ldconfig runs; ``publish`` once all is
    done.

    owner: ids that files are written as. Raises OSError, and LdcacheError for more than can be remembered.
    """

    def __init__(self, root: Root, directories: tuple[str, ...], owner: tuple[int, int]) -> None:
        self._path = root.path + CACHE
        self._root_path = root.path
        self._owner = owner
        self._etc = next(iter(_open_all(root, (_ETC,))), None)
        self._aside: Aside | None = None
        #: Before anything else is looked at: an update that ends meanwhile is noticed.
        self._cache = self._version()
        self._tables = [_Place(one, _entries(one, _TABLES)) for one in _open_all(root, (_TABLE,))]
        amount = _Amount(root.path)
        self._links = [_Place(directory, _links(directory, amount)) for directory in _open_all(root, directories)]
        self._new_places: list[_Place] = []
        #: Links that ldconfig made, and restoring took away.
        self._taken: list[tuple[Fd, str, str | Fd | None]] = []
        self._new_directory = None if self._tables else _parent(root, _TABLE)

    def begin(self) -> None:
        """Let other updates of this root know. Where that cannot be, ``complete`` says why."""
        try:
            self._make_aside()
        except OSError:
            pass

    def _make_aside(self) -> Aside:
        if self._aside is None:
            if self._etc is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), _ETC)
            with Owner(*self._owner):
                self._aside = Aside(self._etc)
        return self._aside

    def complete(self, root: Root, directories: tuple[str, ...], undo: Undo) -> str:
        """Add what was made since. Its links go before the directory goes: undo gets that. Raises as the class.

        Returns the path at which the cache is to be made.
        """
        self._etc = self._etc or next(iter(_open_all(root, (_ETC,))), None)
        if self._aside is None:
            undo.push(self._make_aside().remove)  # before an /etc of ours goes
        path = self._make_aside().path
        known = {_identity(place.directory) for place in self._links}
        amount = _Amount(root.path)
        for directory in _open_all(root, directories):
            if _identity(directory) not in known:
                place = _Place(directory, _links(directory, amount))
                self._new_places.append(place)
                undo.push(self._restore_new, place)
        return path

    def _restore_new(self, place: _Place) -> None:
        with Owner(*self._owner):
            if not self.is_shared():
                self._restore_links(place, _Amount(self._root_path, 2), _Clock(UNDO_LIMIT))

    def close(self) -> None:
        """Let go of what is remembered."""
        for place in (*self._tables, *self._links, *self._new_places):
            place.directory.close()
            for entry in place.entries.values():
                if isinstance(entry, Fd):
                    entry.close()
        if self._etc is not None:
            self._etc.close()

    def publish(self) -> None:
        """Give what ldconfig wrote the cache's name, in one step. Raises LdcacheError, and nothing is changed."""
        assert self._aside is not None
        with Owner(*self._owner):
            try:
                self._aside.publish()
            except OSError as error:
                raise LdcacheError(
                    f"{self._path} cannot be replaced: {reason(error)}",
                    hint="what the image has there is no loader cache",
                ) from error
            try:
                self._aside.remove()
            except OSError:
                pass  # the cache is in force; a later update removes it

    def restore(self) -> None:
        """Put back what differs, within UNDO_LIMIT.

        Raises OSError, LdcacheError; what was put back until then stays.
        """
        # Last first, and whatever fails, the rest is done: an image may have a directory under each of our names.
        undo = Undo()
        undo.push(self.close)
        if self._aside is not None:  # else ldconfig has not run
            undo.push(self._aside.remove)
            self._push_restoring(undo)
        with Owner(*self._owner):
            errors = undo.rollback()
        if errors:
            raise errors[0]

    def _push_restoring(self, undo: Undo) -> None:
        clock, amount = _Clock(UNDO_LIMIT), _Amount(self._root_path, 2)
        undo.push(self._give_back)
        if self.is_shared():
            return
        undo.push(self._remove_new_directory)
        for place in self._tables:
            for name, entry in place.entries.items():
                undo.push(_restore_entry, place.directory, name, entry)
        for place in self._links:
            undo.push(self._restore_links, place, amount, clock)

    def _restore_links(self, place: _Place, amount: _Amount, clock: _Clock) -> None:
        after = _links(place.directory, amount, clock)
        for name, text in after.items():
            clock.tick()
            if place.entries.get(name) != text:
                self._taken.append((place.directory, name, text))
                _put(place.directory, name, place.entries.get(name))
        for name in place.entries.keys() - after.keys():
            clock.tick()
            _put(place.directory, name, place.entries[name])

    def _give_back(self) -> None:
        """Put back what was taken, where another update began meanwhile: its ldconfig may have found it there."""
        if self._taken and self.is_shared():
            for directory, name, text in self._taken:
                _put(directory, name, text)

    def is_shared(self) -> bool:
        """Whether another update of this root is at work, or ended since this one began. Raises OSError."""
        return (self._aside is not None and self._aside.others()) or self._version() != self._cache

    def _version(self) -> tuple[int, ...]:
        """What tells the cache from every other one."""
        if self._etc is None:
            return ()
        try:
            found = os.stat(_NAME, dir_fd=self._etc.fileno(), follow_symlinks=False)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _remove_new_directory(self) -> None:
        if self._new_directory is None:
            return
        parent, name = self._new_directory
        try:
            with Fd(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent.fileno())) as made:
                for file in _TABLES:
                    _remove(made, file)
            os.rmdir(name, dir_fd=parent.fileno())
        except (FileNotFoundError, NotADirectoryError):
            pass  # there is none, or the image has something else in its place


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


def _links(directory: Fd, amount: _Amount, clock: _Clock | None = None) -> dict[str, str | Fd | None]:
    number = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fileno())
    found: dict[str, str | Fd | None] = {}
    try:
        with os.scandir(number) as entries:
            for entry in entries:
                if clock is not None:
                    clock.tick()
                text = ""
                if entry.is_symlink():
                    try:
                        found[entry.name] = text = os.readlink(entry.name, dir_fd=number)
                    except OSError:
                        # Gone, or no link any more: another process works here.
                        continue
                amount.take(len(entry.name) + len(text))
    finally:
        os.close(number)
    return found


def _restore_entry(directory: Fd, name: str, entry: str | Fd | None) -> None:
    if not _unchanged(directory, name, entry):
        _put(directory, name, entry)


def _identity(directory: Fd) -> tuple[int, int]:
    status = directory.stat()
    return status.st_dev, status.st_ino


def _entries(directory: Fd, names: tuple[str, ...]) -> dict[str, str | Fd | None]:
    return {name: _entry(directory, name) for name in names}


def _entry(directory: Fd, name: str) -> str | Fd | None:
    try:
        # Not opened for reading: that happens, if ever, through this descriptor, and to nothing but a file.
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        found = Fd(os.open(name, flags, dir_fd=directory.fileno()), name)
    except FileNotFoundError:
        return None
    mode = found.stat().st_mode
    if stat.S_ISREG(mode):
        return found
    with found:
        return os.readlink("", dir_fd=found.fileno()) if stat.S_ISLNK(mode) else None


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
    """Make the entry what it was, by renaming over it. On failure nothing of it is left."""
    if entry is None or (isinstance(entry, Fd) and entry.stat().st_size > _TABLE_BYTES):
        _remove(directory, name)
        return
    temporary = f".{name}.nvc-restore"
    _remove(directory, temporary)
    at = directory.fileno()
    try:
        if isinstance(entry, str):
            os.symlink(entry, temporary, dir_fd=at)
        else:
            _copy(entry, directory, temporary)
        os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        _remove(directory, temporary)
        raise


def _copy(entry: Fd, directory: Fd, name: str) -> None:
    status = entry.stat()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    number = os.open(name, flags, 0o600, dir_fd=directory.fileno())
    with procfd.reopen(entry, os.O_RDONLY) as source, Fd(number, name) as copy:
        # The file may have grown since: no more than what was allowed.
        offset = 0
        while left := _TABLE_BYTES - offset:
            sent = os.sendfile(copy.fileno(), source.fileno(), offset, min(left, _COPY_BYTES))
            if not sent:
                break
            offset += sent
        os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))
        os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove(directory: Fd, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory.fileno())
    except FileNotFoundError:
        pass
