"""Libraries by directory, where no loader cache names them: NixOS, Alpine and Talos have none, and the driver roots of
GKE, COS and snaps hold the driver alone. Source: nvidia-container-toolkit.md 5.5.
"""

from __future__ import annotations

import errno
import os

from nvc.base.errors import DetectionError, reason
from nvc.driver.locate import host_path, read_bytes, resolve
from nvc.driver.places import library_directories
from nvc.formats import FormatError, ldcache
from nvc.formats.ldcache import TYPE_ELF, CacheEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from nvc.driver.tables import Library
    from nvc.model import Host

#: The library without which no program in a container finds a GPU.
INDISPENSABLE = "libnvidia-ml.so"


def entries(host: Host, arch: int, rows: Iterable[Library]) -> tuple[tuple[CacheEntry, ...], list[str]]:
    """What the loader cache has, or what the directories have where it is missing or has no NVML; and warnings.

    arch: ABI that is assumed of files in directories; their headers are looked at when one is chosen. rows: of the
    libraries that count.
    Raises DetectionError where there is neither.
    """
    cached: tuple[CacheEntry, ...] = ()
    problem: DetectionError | None = None
    if not host.libraries:
        try:
            cached = read_cache(host, {row.name.encode() for row in rows}).entries
        except DetectionError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            problem = error
        if any(entry.name.startswith(INDISPENSABLE) for entry in cached):
            return cached, []
    # The last of several is chosen: the cache's first, of the directories the first.
    found = tuple(_in_directories(host, arch))[::-1]
    if not any(entry.name.startswith(INDISPENSABLE) for entry in found):
        if problem is not None:
            raise problem
        return cached, []
    why = "missing" if problem is not None else "without NVML"
    warning = "libraries from --library-search-path" if host.libraries else f"loader cache {host.ldcache} is {why}"
    return (*found, *cached), [f"{warning}: libraries are those of {', '.join(_used(found))}"]


def _used(found: tuple[CacheEntry, ...]) -> dict[str, None]:
    return dict.fromkeys(entry.path.rpartition("/")[0] for entry in found[::-1] if entry.name.startswith(INDISPENSABLE))


def _in_directories(host: Host, arch: int) -> Iterator[CacheEntry]:
    for directory in library_directories(host):
        try:
            names = sorted(os.listdir(host_path(host.root, resolve(host.root, directory))))
        except OSError:
            continue
        for name in names:
            if name.startswith("lib") and ".so." in name:
                yield CacheEntry(name, f"{directory}/{name}", arch | TYPE_ELF)


def read_cache(host: Host, names: Collection[bytes] | None = None) -> ldcache.LoaderCache:
    """The loader cache of the driver root. names: as for ``nvc.formats.ldcache.parse``. Raises DetectionError."""
    hint = "run ldconfig in the driver root, or name its loader cache with --ldcache"
    try:
        data = read_bytes(host_path(host.root, resolve(host.root, host.ldcache)), ldcache.MAX_SIZE)
        return ldcache.parse(data, names)
    except OSError as error:
        raise DetectionError(f"open failed: {host.ldcache}: {reason(error)}", hint=hint) from error
    except FormatError as error:
        raise DetectionError(f"unsupported file format: {host.ldcache}: {error}", hint=hint) from error
