"""What containers get beyond libnvidia-container's lists: configuration of loaders, modules of the X server, and files
of the driver that no row names. Source: nvidia-container-toolkit.md 5.4 and 5.5; the rows are in ``tables``.
"""

from __future__ import annotations

import os
import stat

from nvc.driver import tables
from nvc.driver.libraries import refusal, rows
from nvc.driver.locate import host_path, read_text, resolve
from nvc.model import DriverFile
from nvc.request.capabilities import EVERY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nvc.model import Host

#: A loader's configuration file has some hundred bytes.
_CONFIG_LIMIT = 64 << 10
#: What is before a library's path in the JSON of Vulkan's and EGL's loaders.
_LIBRARY_KEY = '"library_path"'


def directories_of(libraries: Iterable[DriverFile]) -> tuple[str, ...]:
    """The directories of ``libraries``, each once."""
    return tuple(dict.fromkeys(file.path.rpartition("/")[0] for file in libraries))


def find_configs(host: Host, libraries: Sequence[DriverFile]) -> Iterator[DriverFile]:
    """The first file of every row of CONFIGS."""
    beside = [directory.rpartition("/")[0] for directory in directories_of(libraries)]
    usual = (*tables.CONFIG_DIRECTORIES, *(f"{place}/{name}" for place in beside for name in ("share", "etc")))
    search = dict.fromkeys(host.configs or usual)
    known = {file.path for file in libraries}
    for row in tables.CONFIGS:
        for directory in (*search, *([""] if row.at_root else [])):
            path = _regular(host, f"{directory}/{row.path}")
            if path:
                links = _named_libraries(host, path, known) if path.endswith(".json") else ()
                yield DriverFile(path, "config", row.capability, links, f"{row.target}/{row.path}")
                break


def find_modules(host: Host, version: str, libraries: Sequence[DriverFile]) -> Iterator[DriverFile]:
    """The first file of every row of MODULES."""
    own = [
        f"{directory}/{below}"
        for directory in directories_of(libraries)
        for below in (*tables.MODULE_DIRECTORIES, *(f"xorg/{name}" for name in tables.XORG_DIRECTORIES))
    ]
    search = (*own, *(f"{root}/{name}" for root in tables.XORG_ROOTS for name in tables.XORG_DIRECTORIES))
    for row in tables.MODULES:
        name = row.name.format(version=version)
        for directory in search:
            path = _regular(host, f"{directory}/{name}")
            if path:
                links = ((row.link, path.rpartition("/")[2]),) if row.link else ()
                yield DriverFile(path, "module", row.capability, links, path)
                break


def find_unlisted(
    host: Host, version: str, known: Sequence[DriverFile], *, glvnd: bool, machine: str
) -> Iterator[DriverFile]:
    """Every other library of the driver's version beside those that are known, and in directories below theirs.

    A row may have missed one there: the loader cache names no file of LIBRARY_SUBDIRECTORIES. glvnd: which of the two
    sets of GL libraries is in use; one of the other set counts as unknown. machine: of the ELF files.
    """
    listed = {row.name: row for row in rows(glvnd=glvnd)}
    present = {file.path for file in known}
    for directory in directories_of(known):
        for below in ("", *(f"{name}/" for name in tables.LIBRARY_SUBDIRECTORIES)):
            for name in _names(host, f"{directory}/{below}"):
                path = f"{directory}/{below}{name}"
                if not name.endswith(f".so.{version}") or path in present or _regular(host, path) != path:
                    continue
                row = listed.get(name[: -len(version) - 1])
                if not refusal(host.root, path, row.check if row else "", machine):
                    capability = row.capability if row else EVERY
                    yield DriverFile(path, "library", capability, place=below + name if below else "")


def _named_libraries(host: Host, path: str, known: set[str]) -> tuple[tuple[str, str], ...]:
    """The absolute paths at which a loader's configuration names libraries of the driver, with the file's name.

    NixOS writes its own paths. Read as text: a parser of JSON costs more than the rest of discovery.
    """
    try:
        parts = read_text(host_path(host.root, path), _CONFIG_LIMIT).split(_LIBRARY_KEY)[1:]
    except OSError:
        return ()
    found = []
    for part in parts:
        named = part.partition('"')[2].partition('"')[0]
        if named.startswith("/") and "\\" not in named:
            library = _regular(host, named)
            if library in known:
                found.append((named, library.rpartition("/")[2]))
    return tuple(dict.fromkeys(found))


def _names(host: Host, directory: str) -> list[str]:
    try:
        return sorted(os.listdir(host_path(host.root, directory)))
    except OSError:
        return []


def _regular(host: Host, path: str) -> str:
    """Where the file at a driver path is, links resolved; "" where there is none."""
    place = host_path(host.root, path)
    # Most places have nothing: one call for those.
    if not os.path.lexists(place):
        return ""
    try:
        found = resolve(host.root, path)
        return found if stat.S_ISREG(os.lstat(host_path(host.root, found)).st_mode) else ""
    except OSError:
        return ""
