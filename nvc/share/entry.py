"""One entry of the host's store of shares: its directory, opened and looked at, and the files in it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from binascii import crc32

from nvc.base.errors import ContainerError, reason
from nvc.base.progress import waiting
from nvc.base.record import Record
from nvc.share import limits, region
from rpc.codec import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from nvc.share.limits import Limits

LIMITS, LIMITS_COPY, REGION, PRELOAD, RECORD = "limits", "limits.copy", "region", "preload", "container.json"
#: A record is some hundred bytes; an image's ld.so.preload is no longer than this either.
SIZE_LIMIT = 64 << 10
_KEY_LIMIT = 128
_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
#: Seconds to wait for another writer; each needs some milliseconds.
_LOCK_TIMEOUT_S = 10.0
#: In the store. A byte of it is the lock of a group; two of one checksum wait for each other, and no more.
GROUPS = ".groups"
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StoredShare(Record):
    """The container of an entry.

    key: the entry's name. container: the engine's id, or "". pid: of the container's first process as this host counts,
    0 when not known; start_time: field 22 of its /proc/PID/stat. mount_namespace: inode of its /proc/PID/ns/mnt, or 0.
    rootfs, engine: for people. when: seconds since 1970. text: the share spec; source: what requested it.
    group: containers with one name are one tenant; "" for a tenant of its own.
    name: "NAMESPACE/POD/CONTAINER" by the engine.
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
    group: str = ""
    name: str = ""

    def is_alive(self) -> bool:
        """Whether the container's first process is still there; True where it is not known."""
        return self.pid == 0 or _start_time(self.pid) in (self.start_time, None)


def shown_name(name: str) -> str:
    """What an engine calls a container, for people. name: of StoredShare."""
    return "/".join(part for part in name.split("/") if part)


class Entry:
    """An entry with its directory open: a rename or a removal does not change it.

    others: those that get what is written to it, for they are of its group (``nvc.share.change.Hold``).
    """

    __slots__ = ("_directory", "_group", "others", "path", "record")

    def __init__(self, directory: int, path: str, record: StoredShare) -> None:
        self._directory = directory
        self._group = -1
        self.others: tuple[Entry, ...] = ()
        self.path = path
        self.record = record

    @property
    def name(self) -> str:
        """What people call the container."""
        return self.record.container or self.record.key

    def is_alive(self) -> bool:
        """Whether its container's first process is still there; True where it is not known."""
        return self.record.is_alive()

    def open_limits(self) -> int:
        """A descriptor of the limits file, for reading. Raises OSError, ValueError."""
        return _open_checked(self._directory, LIMITS, write=False)

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

    def checked_limits(self, hint: str = "its programs are refused GPU memory until it is started anew") -> Limits:
        """``limits``, with an error for people; hint: of that. Raises ContainerError."""
        try:
            return self.limits()
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else error
            raise ContainerError(f"{self.path}/{LIMITS}: {why}", hint=hint) from None

    def change(self, changed: Limits) -> None:
        """Put other limits into force, then show them to the container; hold ``lock`` from reading the old ones on.

        Raises OSError, ValueError for the host's file, ContainerError when only the container's copy is as it was.
        """
        self._write(LIMITS, changed)
        try:
            self._write(LIMITS_COPY, changed)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else error
            raise ContainerError(
                f"{self.path}/{LIMITS_COPY}, the container's copy of its limits: {why}",
                hint="the host has the new limits, its library the old ones: say it again, or start the container anew",
            ) from error

    def _write(self, name: str, changed: Limits) -> None:
        descriptor = _open_checked(self._directory, name, write=True)
        try:
            limits.write(descriptor, changed)
        finally:
            os.close(descriptor)

    def lock(self) -> None:
        """Be the one writer of this entry, and of those of its group, until it is closed; before the store's lock.

        Raises ContainerError when another does not end.
        """
        if not self.record.group:
            wait(self._directory, self.path)
            return
        # One lock for all of them: a writer of all and one of the second, which each hold one, would wait for ever.
        path = f"{os.path.dirname(self.path)}/{GROUPS}"
        try:
            self._group = self._group if self._group >= 0 else os.open(path, _LOCK_FILE, 0o600)
        except OSError as error:
            raise ContainerError(f"{path}: {reason(error)}") from None
        wait(self._group, f"group {self.record.group}", crc32(self.record.group.encode()))

    def unlock_group(self) -> None:
        """Let others write; nothing where it is of no group, or not locked."""
        group, self._group = self._group, -1
        if group >= 0:
            os.close(group)

    def close(self) -> None:
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)
        self.unlock_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_directory", -1) >= 0 and os is not None:
            self.close()


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat, in clock ticks since boot; -1 when there is no such process, or it cannot be read."""
    found = _start_time(pid)
    return -1 if found is None else found


def _start_time(pid: int) -> int | None:
    """None: no file can be opened, which says nothing of the process."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # open() makes five more system calls
        try:
            return int(os.read(file, 4096).rpartition(b")")[2].split()[19])
        finally:
            os.close(file)
    except OSError as error:
        return None if error.errno in _NO_ROOM else -1
    except (ValueError, IndexError):
        return -1


def check_room(path: str, error: Exception) -> None:
    """Raises ContainerError for what says only that no file can be opened, and nothing of the entry at ``path``."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        hint = "raise the limit of open files (ulimit -n, LimitNOFILE)"
        raise ContainerError(f"{path}: {reason(error)}", hint=hint) from None


def is_key(key: str) -> bool:
    """Whether ``key`` can be the name of an entry."""
    return bool(key) and len(key) <= _KEY_LIMIT and _KEY.issuperset(key) and key[0] not in ".-"


def check_key(key: str) -> None:
    """Raises ValueError for what cannot be the name of an entry."""
    if not is_key(key):
        raise ValueError(f"{key[:40]!r} cannot be the name of an entry")


def check(found: os.stat_result, kind: int, *, shared: bool = False) -> None:
    """Whether a file is of this kind and this user's alone. Raises ValueError."""
    if stat.S_IFMT(found.st_mode) != kind:
        raise ValueError("it is of another kind")
    if found.st_uid != os.geteuid() or (not shared and found.st_mode & 0o022):
        raise ValueError(f"it belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}")


def wait(descriptor: int, path: str, place: int = -1) -> None:
    """Hold the lock of a directory, or of a byte of a file, until it is closed.

    Raises ContainerError when another does not end.
    """
    until = time.monotonic() + _LOCK_TIMEOUT_S
    with waiting(f"{path} is locked by another nvc-py"):
        while True:
            try:
                if place < 0:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    wanted = region.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
                    fcntl.fcntl(descriptor, region.F_OFD_SETLK, wanted)
                return
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                    raise
            if time.monotonic() > until:
                raise ContainerError(
                    f"{path} is locked", hint="another nvc-py changes it and does not end; see /proc/locks"
                )
            time.sleep(0.005)


def open_entry(store: int, directory: str, name: str) -> Entry:
    """Raises OSError, ValueError (also of what decoding finds)."""
    check_key(name)
    opened = os.open(name, OPEN_DIRECTORY, dir_fd=store)
    try:
        check(os.fstat(opened), stat.S_IFDIR)
        content = os.open(RECORD, _READ, dir_fd=opened)
        try:
            check(os.fstat(content), stat.S_IFREG)
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
        check(found, stat.S_IFREG, shared=name == REGION)
        if found.st_nlink == 0:  # removed between two calls of ours, with its entry
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if found.st_nlink != 1:
            raise ValueError(f"{name} has {found.st_nlink} names")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
