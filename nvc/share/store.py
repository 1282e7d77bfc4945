"""The host's record of every container with a share: a directory each below /run/nvc/share.

    <key>/limits           what it may use (nvc.share.limits), read-only in the container
    <key>/region           what its processes use (nvc.share.region), the one file that they can write
    <key>/preload          its /etc/ld.so.preload
    <key>/container.json   whose they are (StoredShare)

The directories are root's alone; containers reach the files through mounts. Whoever makes or removes an entry holds the
lock of the whole store, whoever changes a limits file that of its entry. Nothing found here is believed before its
owner, mode and kind are looked at: a damaged entry is passed over with a warning.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from nvc.errors import ContainerError, InputError, PrivilegeError, reason
from nvc.record import Record
from nvc.share import limits, region
from rpc.codec import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from nvc.share.limits import Limits

DIRECTORY = "/run/nvc/share"
LIMITS, REGION, PRELOAD, RECORD = "limits", "region", "preload", "container.json"
_MODES = {LIMITS: 0o644, REGION: 0o666, PRELOAD: 0o644, RECORD: 0o600}
#: A record is some hundred bytes; an image's ld.so.preload is no longer than this either.
SIZE_LIMIT = 64 << 10
_KEY_LIMIT = 128
_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
#: Seconds to wait for another writer; each needs some milliseconds.
_PATIENCE = 10.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StoredShare(Record):
    """Whose an entry is.

    key: the entry's name. container: the engine's id, or "". pid: of the container's first process as this host counts,
    0 when not known; start_time: field 22 of its /proc/PID/stat. mount_namespace: inode of its /proc/PID/ns/mnt, or 0.
    rootfs, engine: for people. when: seconds since 1970. text, source: the share, and who asked for it.
    """

    key: str
    container: str = ""
    pid: int = 0
    start_time: int = 0
    mount_namespace: int = 0
    rootfs: str = ""
    engine: str = ""
    when: int = 0
    text: str = ""
    source: str = ""


class Entry:
    """An entry whose directory is open: it stays what it is, whatever happens to its name."""

    __slots__ = ("_directory", "path", "record")

    def __init__(self, directory: int, path: str, record: StoredShare) -> None:
        self._directory = directory
        self.path = path
        self.record = record

    @property
    def name(self) -> str:
        """What people call the container."""
        return self.record.container or self.record.key

    def is_alive(self) -> bool:
        """Whether its container's first process is still there; True where nobody knows it."""
        return self.record.pid == 0 or start_time(self.record.pid) == self.record.start_time

    def open_limits(self, *, write: bool = False) -> int:
        """A descriptor of the limits file. Raises OSError, ValueError."""
        return _open_checked(self._directory, LIMITS, write=write)

    def open_region(self, *, write: bool = False) -> int:
        """A descriptor of the region. Raises OSError, ValueError."""
        return _open_checked(self._directory, REGION, write=write)

    def limits(self) -> Limits:
        """What it may use now. Raises FormatError, OSError, ValueError."""
        descriptor = self.open_limits()
        try:
            return limits.read(descriptor)
        finally:
            os.close(descriptor)

    def change(self, changed: Limits) -> int:
        """Put other limits into force; hold ``lock`` from reading the old ones on. Raises OSError, ValueError."""
        descriptor = self.open_limits(write=True)
        try:
            return limits.write(descriptor, changed)
        finally:
            os.close(descriptor)

    def lock(self) -> None:
        """Be the one writer of this entry until it is closed. Raises ContainerError when another does not end."""
        _wait(self._directory, self.path)

    def close(self) -> None:
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_directory", -1) >= 0 and os is not None:
            self.close()


def create(record: StoredShare, content: Limits, preload: bytes, *, directory: str = DIRECTORY) -> str:
    """Make an entry, complete before it has its name; its path. The entry of a container that ended gives way.

    Raises ContainerError when a living container has the key, PrivilegeError, OSError, ValueError.
    """
    _check_key(record.key)
    _make_directory(directory)
    store = _open_directory(directory)
    try:
        _wait(store, directory)
        _clean_leftovers(store)
        _give_way(store, directory, record.key)
        fresh = f".new-{os.urandom(6).hex()}"
        os.mkdir(fresh, 0o700, dir_fd=store)
        try:
            _fill(store, fresh, record, content, preload)
            os.rename(fresh, record.key, src_dir_fd=store, dst_dir_fd=store)
        except BaseException:
            _delete(store, fresh)
            raise
    finally:
        os.close(store)
    return f"{directory}/{record.key}"


def entries(directory: str = DIRECTORY) -> tuple[list[Entry], list[str]]:
    """Every entry by name, those of ended containers too, and warnings about what is none. Raises PrivilegeError."""
    try:
        store = _open_directory(directory)
    except FileNotFoundError:
        return [], []
    found, warnings = [], []
    try:
        for name in sorted(os.listdir(store)):
            if name.startswith("."):
                continue
            try:
                found.append(_open_entry(store, directory, name))
            except FileNotFoundError:
                if _exists(store, name):
                    warnings.append(f"{directory}/{name} is passed over: it has no {RECORD}")
            except (OSError, ValueError) as error:
                why = reason(error) if isinstance(error, OSError) else str(error)
                warnings.append(f"{directory}/{name} is passed over: {why}")
    finally:
        os.close(store)
    return found, warnings


def find(word: str, directory: str = DIRECTORY) -> Entry:
    """The living container that ``word`` names: a key, the beginning of an id, or the pid of its first process.

    Raises InputError when none or several are meant, PrivilegeError.
    """
    living = [entry for entry in entries(directory)[0] if entry.is_alive()]
    exact = [entry for entry in living if word in (entry.record.key, entry.record.container)]
    by_pid = [entry for entry in living if word.isascii() and word.isdigit() and entry.record.pid == int(word[:10])]
    begin = [entry for entry in living if word and entry.name.startswith(word)]
    found = exact or by_pid or begin
    if len(found) == 1:
        return found[0]
    names = ", ".join(entry.name[:16] for entry in (found or living)[:8])
    if found:
        raise InputError(f"container {word!r} is not the only one", hint=f"it could be {names}")
    raise InputError(
        f"no container {word!r} with a share", hint=f"there are: {names}" if names else "no container here has a share"
    )


def remove(key: str, directory: str = DIRECTORY) -> bool:
    """Remove an entry, whoever's it is; False when there is none. Raises OSError, PrivilegeError."""
    _check_key(key)
    try:
        store = _open_directory(directory)
    except FileNotFoundError:
        return False
    try:
        _wait(store, directory)
        return _discard(store, key)
    finally:
        os.close(store)


def clean(directory: str = DIRECTORY) -> list[str]:
    """Remove the entries of containers that have ended; their keys. Raises OSError, PrivilegeError."""
    removed: list[str] = []
    try:
        store = _open_directory(directory)
    except FileNotFoundError:
        return removed
    try:
        _wait(store, directory)
        _clean_leftovers(store)
        for name in os.listdir(store):
            if name.startswith("."):
                continue
            try:
                with _open_entry(store, directory, name) as entry:
                    ended = not entry.is_alive()
            except (OSError, ValueError):
                continue  # entries() tells; it is not for us to judge
            if ended and _discard(store, name):
                removed.append(name)
    finally:
        os.close(store)
    return removed


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat, in clock ticks since boot; -1 when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def key_of(container: str, pid: int, started: int) -> str:
    """The key of a container: its id where that can be a name, else its first process."""
    return container if _is_key(container) else f"pid-{pid}-{started}"


def _is_key(key: str) -> bool:
    return bool(key) and len(key) <= _KEY_LIMIT and _KEY.issuperset(key) and key[0] not in ".-"


def _check_key(key: str) -> None:
    if not _is_key(key):
        raise ValueError(f"{key[:40]!r} cannot be the name of an entry")


def _make_directory(path: str) -> None:
    for place in (os.path.dirname(path), path):
        try:
            os.mkdir(place, 0o755)
        except FileExistsError:
            continue
        # Not the caller's umask; the store is nobody else's business.
        os.chmod(place, 0o711 if place == path else 0o755)


def _open_directory(path: str) -> int:
    try:
        store = os.open(path, _OPEN_DIRECTORY)
    except PermissionError as error:
        raise PrivilegeError(f"{path}: {reason(error)}", hint="shares of containers are root's business") from None
    try:
        _check(os.fstat(store), stat.S_IFDIR)
    except ValueError as error:
        os.close(store)
        raise PrivilegeError(f"{path} is not used: {error}", hint="remove it; it is made anew") from None
    return store


def _check(found: os.stat_result, kind: int, *, shared: bool = False) -> None:
    if stat.S_IFMT(found.st_mode) != kind:
        raise ValueError("it is of another kind")
    if found.st_uid != os.geteuid() or (not shared and found.st_mode & 0o022):
        raise ValueError(f"it belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}")


def _wait(descriptor: int, path: str) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                raise
        if time.monotonic() > until:
            raise ContainerError(
                f"{path} is locked", hint="another nvc-py changes it and does not end; see /proc/locks"
            )
        time.sleep(0.005)


def _open_entry(store: int, directory: str, name: str) -> Entry:
    """Raises OSError, ValueError (also of what decoding finds)."""
    _check_key(name)
    opened = os.open(name, _OPEN_DIRECTORY, dir_fd=store)
    try:
        _check(os.fstat(opened), stat.S_IFDIR)
        content = os.open(RECORD, _READ, dir_fd=opened)
        try:
            _check(os.fstat(content), stat.S_IFREG)
            data = os.read(content, SIZE_LIMIT + 1)
        finally:
            os.close(content)
        record = StoredShare.from_data(loads(data, limit=SIZE_LIMIT))
        if record.key != name:
            raise ValueError(f"its record is of {record.key[:40]!r}")
    except BaseException:
        os.close(opened)
        raise
    return Entry(opened, f"{directory}/{name}", record)


def _open_checked(directory: int, name: str, *, write: bool) -> int:
    flags = _READ | os.O_RDWR if write else _READ
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        found = os.fstat(descriptor)
        _check(found, stat.S_IFREG, shared=name == REGION)
        if found.st_nlink != 1:
            raise ValueError(f"{name} has {found.st_nlink} names")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _fill(store: int, name: str, record: StoredShare, content: Limits, preload: bytes) -> None:
    directory = os.open(name, _OPEN_DIRECTORY, dir_fd=store)
    try:
        _write(directory, LIMITS, limits.encode(content))
        _write(directory, REGION, region.header_bytes(), region.SIZE)
        _write(directory, PRELOAD, preload)
        _write(directory, RECORD, dumps(record.as_data()))
    finally:
        os.close(directory)


def _write(directory: int, name: str, content: bytes, size: int = 0) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        if size:
            os.ftruncate(descriptor, size)
        # Not through open(): the caller's umask is not to decide, and may not be changed in its threads.
        os.fchmod(descriptor, _MODES[name])
    finally:
        os.close(descriptor)


def _give_way(store: int, directory: str, key: str) -> None:
    if not _exists(store, key):
        return
    try:
        with _open_entry(store, directory, key) as entry:
            if entry.record.pid and entry.is_alive():
                raise ContainerError(
                    f"{key} has a share already", hint=f"see nvc-py share get {key}; a container gets its share once"
                )
    except (OSError, ValueError):
        pass  # damaged: it serves nobody
    _discard(store, key)


def _exists(store: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=store, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _discard(store: int, key: str) -> bool:
    """Take the name away at once, then the files: nobody finds half an entry."""
    old = f".old-{os.urandom(6).hex()}"
    try:
        os.rename(key, old, src_dir_fd=store, dst_dir_fd=store)
    except FileNotFoundError:
        return False
    _delete(store, old)
    return True


def _clean_leftovers(store: int) -> None:
    """What somebody who was killed left: under the store's lock nobody is at work on them."""
    for name in os.listdir(store):
        if name.startswith((".new-", ".old-")):
            try:
                _delete(store, name)
            except OSError:
                pass  # it is in nobody's way


def _delete(store: int, name: str) -> None:
    try:
        directory = os.open(name, _OPEN_DIRECTORY, dir_fd=store)
    except NotADirectoryError:
        os.unlink(name, dir_fd=store)
        return
    except FileNotFoundError:
        return
    try:
        for file in os.listdir(directory):
            os.unlink(file, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=store)
