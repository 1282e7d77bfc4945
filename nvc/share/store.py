"""The host's record of every container with a share: a directory each below /run/nvc/share.

    <key>/limits           what it may use (nvc.share.limits); no container has this file
    <key>/limits.copy      a copy of it for the container's library, mounted read-only; a container with CAP_SYS_ADMIN
                           can write it all the same, so the host never reads it
    <key>/region           what its processes use (nvc.share.region), the one file that they can write
    <key>/preload          its /etc/ld.so.preload
    <key>/container.json   their container (StoredShare)

The directories are root's alone; containers reach the files through mounts. Making or removing an entry takes the
lock of the whole store, changing a limits file that of its entry or group (``.groups``), and before it where both are
taken. Nothing found here counts before its owner, mode and kind are checked: a damaged entry is passed over with a
warning.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.errors import ContainerError, InputError, PrivilegeError, reason
from nvc.base.nearest import did_you_mean
from nvc.linux import fileflags
from nvc.share import limits, region
from nvc.share.entry import LIMITS as LIMITS
from nvc.share.entry import (
    LIMITS_COPY,
    OPEN_DIRECTORY,
    PRELOAD,
    RECORD,
    REGION,
    check,
    check_key,
    check_room,
    is_key,
    open_entry,
    wait,
)
from nvc.share.entry import Entry as Entry
from nvc.share.entry import StoredShare as StoredShare
from nvc.share.entry import shown_name as shown_name
from nvc.share.entry import start_time as start_time
from rpc.codec import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nvc.share.limits import Limits

DIRECTORY = "/run/nvc/share"


class AmbiguousContainer(InputError):
    """A word that names several containers."""


#: What killed processes leave begins so.
_LEFT = (".new-", ".old-")
_MODES = {LIMITS: 0o600, LIMITS_COPY: 0o644, REGION: 0o666, PRELOAD: 0o644, RECORD: 0o600}


def create(
    record: StoredShare,
    content: Limits,
    preload: bytes,
    *,
    directory: str = DIRECTORY,
    admit: Callable[[], None] = lambda: None,
) -> str:
    """Make an entry, complete before it has its name; its path. The entry of a container that ended gives way.

    admit: called while no other entry can come; what it raises is raised.
    Raises ContainerError when a living container has the key, PrivilegeError, OSError, ValueError.
    """
    check_key(record.key)
    _make_directory(directory)
    store = _open_directory(directory)
    try:
        wait(store, directory)
        _give_way(store, directory, record.key)
        admit()
        fresh = f"{_LEFT[0]}{os.urandom(6).hex()}"
        os.mkdir(fresh, 0o700, dir_fd=store)
        try:
            _fill(store, fresh, record, content, preload)
            os.rename(fresh, record.key, src_dir_fd=store, dst_dir_fd=store)
        except BaseException:
            _delete_if_possible(store, fresh)
            raise
    finally:
        os.close(store)
    return f"{directory}/{record.key}"


class Locked:
    """A context in which no entry comes or goes. Entering raises ContainerError, PrivilegeError, OSError."""

    def __init__(self, directory: str = DIRECTORY) -> None:
        self._directory = directory
        self._store = -1

    def __enter__(self) -> None:
        self._store = _open_directory(self._directory)
        try:
            wait(self._store, self._directory)
        except BaseException:
            os.close(self._store)
            raise

    def __exit__(self, *_: object) -> None:
        os.close(self._store)


def entries(directory: str = DIRECTORY) -> tuple[list[Entry], list[str]]:
    """Every entry, and warnings about what is none. Raises as ``each``."""
    warnings: list[str] = []
    return list(each(directory, warnings)), warnings


def each(directory: str = DIRECTORY, warnings: list[str] | None = None) -> Iterator[Entry]:
    """Every entry by name, those of ended containers too; the caller closes each. warnings: get what is no entry.

    Raises PrivilegeError, ContainerError where no more files can be opened: what is not read may well be an entry.
    """
    try:
        store = _open_directory(directory)
    except FileNotFoundError:
        return
    try:
        for name in sorted(os.listdir(store)):
            if name.startswith("."):
                continue
            try:
                yield open_entry(store, directory, name)
                continue
            except FileNotFoundError:
                why = f"it has no {RECORD}" if _exists(store, name) else ""
            except (OSError, ValueError) as error:
                check_room(f"{directory}/{name}", error)
                why = reason(error) if isinstance(error, OSError) else str(error)
            if why and warnings is not None:
                warnings.append(f"{directory}/{name} is passed over: {why}")
    finally:
        os.close(store)


def entry(key: str, directory: str = DIRECTORY) -> Entry | None:
    """The entry of that key, whether its container lives or not; None: there is none, or it is damaged.

    Raises PrivilegeError, ContainerError where no file can be opened.
    """
    if not is_key(key):
        return None
    try:
        store = _open_directory(directory)
    except FileNotFoundError:
        return None
    try:
        return open_entry(store, directory, key)
    except (OSError, ValueError) as error:
        check_room(f"{directory}/{key}", error)
        return None
    finally:
        os.close(store)


def find(word: str, directory: str = DIRECTORY) -> Entry:
    """The living container that ``word`` names: a key or id; or the only one that has it as its engine's name, pid of
    the first process, or beginning of an id. Names may be a tenant's choice, so none goes before another container's
    id or pid.

    Raises InputError when none is meant, AmbiguousContainer when several are, PrivilegeError.
    """
    own = entry(word, directory)  # most are named by their key: the others need not be read
    if own is not None:
        if own.is_alive():
            return own
        own.close()
    living = [entry for entry in each(directory) if entry.is_alive()]
    exact = [entry for entry in living if word in (entry.record.key, entry.record.container)]
    number = int(word[:10]) if word.isascii() and word.isdigit() else 0
    by_pid = [entry for entry in living if number and entry.record.pid == number]
    named = [entry for entry in living if is_named(entry.record.name, word)]
    begin = [entry for entry in living if word and entry.name.startswith(word)]
    found = exact or by_pid or begin
    if named and not exact:
        found = [entry for entry in living if entry in named or entry in by_pid or entry in begin]
    if len(found) == 1:
        return found[0]
    names = ", ".join(_shown(entry) for entry in (found or living)[:8])
    if found:
        raise AmbiguousContainer(f"container {word!r} is not the only one", hint=f"it could be {names}")
    known = [part for entry in living for part in (shown_name(entry.record.name), entry.record.name.rpartition("/")[2])]
    there = f"there are: {names}" if names else "no container here has a share"
    hint = did_you_mean(word, filter(None, known), otherwise=there)
    raise InputError(f"no container {word!r} with a share", hint=hint)


def is_named(name: str, word: str) -> bool:
    """Whether people call a container so. name: of StoredShare; word: "NAMESPACE/POD/CONTAINER", or how that ends."""
    return bool(word) and f"/{shown_name(name)}".endswith(f"/{word}")


def _shown(entry: Entry) -> str:
    name = shown_name(entry.record.name)
    return f"{entry.name[:16]} ({name})" if name else entry.name[:16]


def group(own: Entry, keys: Iterable[str] | None = None) -> list[Entry]:
    """The entries of the living containers of its group; the caller closes them. keys: theirs, where they are known.

    The oldest first: one that starts has its own limits until the agent gives it what was set meanwhile.
    Raises as ``each``.
    """
    directory = os.path.dirname(own.path)
    found = []
    for one in each(directory) if keys is None else (entry(key, directory) for key in keys):
        if one is not None and one.record.group == own.record.group and one.is_alive():
            found.append(one)
        elif one is not None:
            one.close()
    return sorted(found, key=lambda one: (one.record.when, one.record.key))


def remove(key: str, directory: str = DIRECTORY, *, only: Callable[[StoredShare], bool] | None = None) -> bool:
    """Remove an entry; False when there is none. only: of a container that it says yes to, and no damaged one.

    Raises OSError, PrivilegeError, ContainerError when another writer does not end.
    """
    check_key(key)
    try:
        store = _open_directory(directory)
    except FileNotFoundError:
        return False
    try:
        wait(store, directory)
        return (only is None or _is_meant(store, directory, key, only)) and _discard(store, key)
    finally:
        os.close(store)


def clean(directory: str = DIRECTORY, keys: Iterable[str] | None = None) -> list[str]:
    """Remove the entries of containers that have ended, with ``keys`` at most those; the keys of what went.

    Each with the lock for itself: starts do not wait for all. What cannot be removed stays, in no container's way.
    Raises OSError, PrivilegeError, ContainerError when another writer does not end.
    """
    try:
        store = _open_directory(directory)
    except FileNotFoundError:
        return []
    removed = []
    try:
        for name in os.listdir(store) if keys is None else keys:
            if is_key(name) and _is_meant(store, directory, name, _has_ended):
                try:
                    if remove(name, directory, only=_has_ended):
                        removed.append(name)
                except OSError:
                    pass
            elif name.startswith(_LEFT):
                with Locked(directory):  # then no process works on it
                    _delete_if_possible(store, name)
    finally:
        os.close(store)
    return removed


def _has_ended(record: StoredShare) -> bool:
    return not record.is_alive()


def _is_meant(store: int, directory: str, key: str, only: Callable[[StoredShare], bool]) -> bool:
    """False for a damaged entry, which ``each`` warns of."""
    try:
        with open_entry(store, directory, key) as entry:
            return only(entry.record)
    except (OSError, ValueError):
        return False


def key_of(container: str, pid: int, started: int) -> str:
    """The key of a container: its id where that can be a name, else its first process."""
    return container if is_key(container) else f"pid-{pid}-{started}"


def _make_directory(path: str) -> None:
    for place in (os.path.dirname(path), path):
        try:
            os.mkdir(place, 0o755)
        except FileExistsError:
            continue
        # Not the caller's umask; the store is root's alone.
        os.chmod(place, 0o711 if place == path else 0o755)


def _open_directory(path: str) -> int:
    try:
        store = os.open(path, OPEN_DIRECTORY)
    except PermissionError as error:
        raise PrivilegeError(f"{path}: {reason(error)}", hint="shares of containers are root's business") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        check_room(path, error)
        raise InputError(f"{path}: {reason(error)}", hint="shares are in a directory") from None
    try:
        check(os.fstat(store), stat.S_IFDIR)
    except ValueError as error:
        os.close(store)
        raise PrivilegeError(f"{path} is not used: {error}", hint="remove it; it is made anew") from None
    return store


def _fill(store: int, name: str, record: StoredShare, content: Limits, preload: bytes) -> None:
    directory = os.open(name, OPEN_DIRECTORY, dir_fd=store)
    try:
        for name in (LIMITS, LIMITS_COPY):
            _write(directory, name, limits.encode(content))
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
        with open_entry(store, directory, key) as entry:
            if entry.record.pid and entry.is_alive():
                raise ContainerError(
                    f"{key} has a share already", hint=f"see nvc-py share get {key}; a container gets its share once"
                )
    except (OSError, ValueError) as error:
        check_room(f"{directory}/{key}", error)
        # Damaged: no container has a share of it.
    _discard(store, key)


def _exists(store: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=store, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _discard(store: int, key: str) -> bool:
    """Take the name away at once, then the files: no reader finds half an entry. Raises OSError.

    Files that cannot be removed are left to ``clean``: without the name they are no entry.
    """
    old = f"{_LEFT[1]}{os.urandom(6).hex()}"
    try:
        os.rename(key, old, src_dir_fd=store, dst_dir_fd=store)
    except FileNotFoundError:
        return False
    _delete_if_possible(store, old)
    return True


def _delete_if_possible(store: int, name: str) -> None:
    try:
        _delete(store, name)
    except OSError:
        pass  # it is in no process's way


def _delete(store: int, name: str) -> None:
    try:
        directory = os.open(name, OPEN_DIRECTORY, dir_fd=store)
    except NotADirectoryError:
        os.unlink(name, dir_fd=store)
        return
    except FileNotFoundError:
        return
    try:
        for file in os.listdir(directory):
            fileflags.unlink(directory, file)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=store)
