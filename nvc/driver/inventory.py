"""The inventory of a host, cached between containers so that a start needs neither NVML nor an awake GPU.

The file holds the NVML facts under the machine key, and up to VIEW_LIMIT inventories found with them, each under its
view key (``nvc.driver.machinekey``). On a hit only this module and its imports run; discovery and the query
are for a miss. Only a file written by root is used: one of another owner, with write permission for others, a link, or
one that is too big, truncated or malformed counts as missing and is replaced.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base import directories
from nvc.base.errors import DetectionError, NvcError, reason
from nvc.driver.facts import NvmlGpu, NvmlSystem
from nvc.driver.locate import host_path, read_text
from nvc.driver.machinekey import identities, machine_key, view_key, watched_identities
from nvc.driver.places import CACHE, cap_node
from nvc.model import Inventory
from rpc.codec import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from nvc.base.log import Log
    from nvc.driver.discover import Installed
    from nvc.driver.nvcaps import Nvcaps
    from nvc.model import DriverInfo, DriverOptions, Host

    Facts = tuple[NvmlSystem, tuple[NvmlGpu, ...]]

SIZE_LIMIT = 4 << 20
#: info, list and the hook's configure differ in options and PATH; each has its view.
VIEW_LIMIT = 4


class Known:
    """A file that was read. stamp: its identity. stored: its content. inventories: of its views."""

    __slots__ = ("inventories", "stamp", "stored")

    def __init__(self, stamp: tuple[int, ...], stored: dict[str, Any], inventories: tuple[Inventory, ...]) -> None:
        self.stamp = stamp
        self.stored = stored
        self.inventories = inventories


#: Path -> what ``read_ahead`` found there.
_known: dict[str, Known] = {}


def read_ahead(path: str = CACHE) -> None:
    """Read and decode the file in advance; ``load`` uses the result if the file is then still the same.

    ``load`` checks everything else that makes an inventory valid. Ignores a file that would not be used.
    """
    known = _known.get(path)
    try:
        stamp, data = _read(path, known.stamp if known else ())
        if data is None:
            return
        _known.pop(path, None)
        stored = loads(data, limit=SIZE_LIMIT)
        inventories = tuple(_unpack(view["inventory"]) for view in stored["views"])
        _known[path] = Known(stamp, stored, inventories)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        _known.pop(path, None)


def load(
    host: Host,
    options: DriverOptions,
    query: Callable[[], Facts],
    *,
    cache: str | None,
    log: Log,
    environ: Mapping[str, str] | None = None,
) -> Inventory:
    """What is installed, from ``cache`` if that is still valid, else by discovery.

    query: queries NVML; not called on a hit. cache: the file, None for no cache. environ: PATH and
    CUDA_MPS_PIPE_DIRECTORY, os.environ unless given. Raises DetectionError and whatever ``query`` raises; a cache
    that cannot be read or written is a line in the log.
    """
    environ = os.environ if environ is None else environ
    _ahead.clear()
    # The key is computed first: a change during the query makes the next load a miss.
    machine = machine_key(host) if cache is not None else None
    if cache is None or machine is None:
        return _logged(_discover(host, options, query(), environ, watch=False)[0], log)
    stored, inventories = _stored(cache, machine, log)
    view = view_key(options, environ)
    try:
        found = _hit(host, stored["views"], inventories, view)
        if found is not None:
            log.info(f"inventory from {cache}")
            return _logged(found, log)
        facts = _facts(stored["facts"]) if stored["facts"] is not None else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warn(f"inventory in {cache} is damaged ({error}); it is rebuilt")
        stored, facts = {"machine": machine, "facts": None, "views": []}, None
    if facts is None:
        log.info(f"querying NVML: no valid inventory in {cache}")
        facts = query()
        stored["facts"] = [facts[0].as_data(), [gpu.as_data() for gpu in facts[1]]]
        stored["views"] = []
    inventory, watch = _discover(host, options, facts, environ)
    others = [other for other in stored["views"] if other["key"] != view]
    stored["views"] = [{"key": view, "watch": watch, "inventory": _pack(inventory)}, *others][:VIEW_LIMIT]
    _write(cache, stored, log)
    return _logged(inventory, log)


def _logged(inventory: Inventory, log: Log) -> Inventory:
    if log.enabled:
        for warning in inventory.warnings:
            log.warn(warning)
    return inventory


def _hit(
    host: Host, views: list[dict[str, Any]], inventories: tuple[Inventory, ...], wanted: dict[str, Any]
) -> Inventory | None:
    """inventories: of the views, if they were decoded before."""
    for index, view in enumerate(views):
        if view["key"] == wanted and view["watch"] == watched_identities(host, view["watch"]):
            return inventories[index] if inventories else _unpack(view["inventory"])
    return None


def look_ahead(
    host: Host,
    options: DriverOptions,
    environ: Mapping[str, str] | None = None,
    *,
    watch: bool = True,
    meanwhile: Callable[[DriverInfo], None] | None = None,
) -> None:
    """Look for the files of the version that the kernel module has, while NVML is initialised.

    ``load`` takes them where NVML names the same version, and looks itself where this failed. watch: False where
    ``load`` gets no cache. meanwhile: called with the files as soon as they are found; what it raises is raised.
    """
    from nvc.driver.places import DRIVER, platform
    from nvc.formats.procfs import nvrm_version

    environ = os.environ if environ is None else environ
    _ahead.clear()
    try:
        version = nvrm_version(read_text(host_path(host.nodes, f"{DRIVER}/version")))
        if not version or platform(host):
            return
        from nvc.driver.discover import begin_caps

        caps = begin_caps(host)
    except (OSError, NvcError):
        return
    try:
        watching, installed = _look(host, options, version, environ, watch)
        if meanwhile is not None:
            meanwhile(installed.driver(version))
        _ahead[:] = [(_subject(host, options, version, environ), watching, installed, caps)]
    except (OSError, DetectionError):
        pass  # ``load`` tells what it is, if it still is
    finally:
        caps.read_ahead()


#: What ``look_ahead`` found: of what, the identities of what it looked at, the files, the nvcaps.
_ahead: list[tuple[tuple[Any, ...], dict[str, str], Installed, Nvcaps]] = []


def _subject(host: Host, options: DriverOptions, version: str, environ: Mapping[str, str]) -> tuple[Any, ...]:
    return host, options, version, *(environ.get(name) for name in ("PATH", "CUDA_MPS_PIPE_DIRECTORY"))


def _look(
    host: Host, options: DriverOptions, version: str, environ: Mapping[str, str], watch: bool
) -> tuple[dict[str, str], Installed]:
    from nvc.driver.discover import files, watched

    # The identities first: a change meanwhile makes the next load a miss.
    watching = watched_identities(host, watched(version, options, environ)) if watch else {}
    installed = files(host, options, version, environ)
    if watch:
        watching.update(_identities(host, installed))
    return watching, installed


def _identities(host: Host, found: Installed | DriverInfo) -> dict[str, str]:
    """Of the driver's files, and of what else they depend on."""
    files = (*found.libraries, *found.libraries32, *found.binaries, *found.firmwares, *found.more)
    paths = [file.path for file in files]
    if any(file.owners for file in found.ipcs):
        from nvc.driver.binaries import PASSWD

        paths.append(PASSWD)
    return identities(host.root, paths)


def _discover(
    host: Host, options: DriverOptions, facts: Facts, environ: Mapping[str, str], *, watch: bool = True
) -> tuple[Inventory, dict[str, str]]:
    """watch: whether the identities of what the inventory depends on are needed."""
    # Imported here: the parsers cost more than the rest of a warm configure.
    from nvc.driver.discover import checked_version, discover, watched

    system, gpus = facts
    version = checked_version(system.driver_version)
    ahead = _ahead.pop() if _ahead else None
    if ahead is not None and ahead[0] == _subject(host, options, version, environ) and (ahead[1] or not watch):
        return discover(host, options, system, gpus, environ, *ahead[2:]), ahead[1]
    watching = watched_identities(host, watched(version, options, environ)) if watch else {}
    inventory = discover(host, options, system, gpus, environ)
    if watch:
        watching.update(_identities(host, inventory.driver))
    return inventory, watching


def _stored(path: str, machine: dict[str, Any], log: Log) -> tuple[dict[str, Any], tuple[Inventory, ...]]:
    """The content of the file, or an empty one for this machine; and its inventories, if it was read ahead."""
    empty: tuple[dict[str, Any], tuple[Inventory, ...]] = {"machine": machine, "facts": None, "views": []}, ()
    known = _known.get(path)
    try:
        _, data = _read(path, known.stamp if known else ())
        if known is not None and data is None:
            stored, inventories = {**known.stored}, known.inventories
        else:
            stored, inventories = loads(data or b"", limit=SIZE_LIMIT), ()
        if not isinstance(stored, dict) or stored.keys() != empty[0].keys():
            raise ValueError("unexpected content")
    except FileNotFoundError:
        return empty
    except (OSError, ValueError) as error:
        log.warn(f"inventory in {path} is not used: {reason(error) if isinstance(error, OSError) else error}")
        return empty
    if stored["machine"] != machine:
        before = stored["machine"] if isinstance(stored["machine"], dict) else {}
        changed = [name for name, value in machine.items() if before.get(name) != value]
        log.info(f"inventory in {path} is outdated: {', '.join(changed)} changed")
        return empty
    return stored, inventories


def _read(path: str, known: tuple[int, ...]) -> tuple[tuple[int, ...], bytes | None]:
    """The file's identity, and its bytes if only this user can have written them; None if it is the ``known`` file.

    Raises OSError, ValueError.
    """
    _check_owner(os.lstat(os.path.dirname(path)), stat.S_IFDIR, "its directory")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        _check_owner(found, stat.S_IFREG, "it")
        # With a hard link, another file of root's could be used as the cache.
        if found.st_nlink != 1 or found.st_size > SIZE_LIMIT:
            raise ValueError(f"it has {found.st_nlink} links and {found.st_size} bytes")
        # The file is complete before it gets its name and is never written again: it is read once, and no other file
        # has the same inode and times.
        stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        return stamp, None if stamp == known else os.read(descriptor, found.st_size)
    finally:
        os.close(descriptor)


def _check_owner(found: os.stat_result, kind: int, what: str) -> None:
    if stat.S_IFMT(found.st_mode) != kind:
        raise ValueError(f"{what} is of another kind")
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ValueError(f"{what} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}")


def _write(path: str, content: dict[str, Any], log: Log) -> None:
    """Replace the file as a whole. A failure is a warning: the next container queries NVML again."""
    temporary = f"{path}.{os.urandom(6).hex()}"
    try:
        data = dumps(content)
        directory = os.path.dirname(path)
        directories.make(directory)
        _check_owner(os.lstat(directory), stat.S_IFDIR, "its directory")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except (OSError, ValueError) as error:
        log.warn(f"inventory is not cached in {path}: {reason(error) if isinstance(error, OSError) else error}")
        try:
            os.unlink(temporary)
        except OSError:
            pass


def _facts(data: Any) -> Facts:
    system, gpus = data
    return NvmlSystem.from_data(system), tuple(NvmlGpu.from_data(gpu) for gpu in gpus)


def _pack(inventory: Inventory) -> dict[str, Any]:
    """As data, with the 135 nvcap nodes that every MIG-capable GPU has as numbers: they were most of the file."""
    data = inventory.as_data()
    for gpu in data["gpus"]:
        nodes = gpu.pop("mig_nodes")
        gpu["mig_minors"] = [nodes[0]["major"], *(node["minor"] for node in nodes)] if nodes else []
    return data


def _unpack(data: dict[str, Any]) -> Inventory:
    minors = [gpu["mig_minors"] for gpu in data["gpus"]]
    gpus = [{name: value for name, value in gpu.items() if name != "mig_minors"} for gpu in data["gpus"]]
    inventory = Inventory.from_data({**data, "gpus": gpus})
    with_nodes = (
        gpu.replace(mig_nodes=tuple(cap_node(numbers[0], minor) for minor in numbers[1:])) if numbers else gpu
        for gpu, numbers in zip(inventory.gpus, minors, strict=True)
    )
    return inventory.replace(gpus=tuple(with_nodes))
