"""Choose one file for every library row, from the loader cache (libnvidia-container.md 3.3).

Where this differs from the reference: a cache entry whose file is gone, unreadable, no ELF file or of another
architecture is skipped with a warning, never an error. Partly removed drivers leave such entries.
"""

from __future__ import annotations

import os
import posixpath

from nvc.base.errors import DetectionError, reason
from nvc.driver import tables
from nvc.driver.locate import host_path, open_file, resolve
from nvc.formats import FormatError, elf, ldcache
from nvc.model import DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvc.driver.tables import Library


def host_arch(machine: str = "") -> tables.HostArch:
    """The row of this machine. Raises DetectionError for one that NVIDIA has no driver for."""
    machine = machine or os.uname().machine
    for arch in tables.HOST_ARCHES:
        if arch.machine == machine:
            return arch
    raise DetectionError(
        f"unsupported architecture: {machine}", hint=f"known are {', '.join(a.machine for a in tables.HOST_ARCHES)}"
    )


def rows(*, glvnd: bool) -> tuple[Library, ...]:
    """The library rows in use: with the GLVND vendor libraries, or with the GL libraries from before."""
    return tuple(row for row in tables.LIBRARIES if row.only in ("", "glvnd" if glvnd else "legacy"))


def _fits(name: str, row: Library, version: str) -> bool:
    """Whether a file of this name is of the driver's version, or of any where the row has its own."""
    if not row.own_version:
        return name.endswith("." + version)
    number = name.removeprefix(f"{row.name}.")
    return number != name and all(part.isascii() and part.isdecimal() for part in number.split("."))


class Chooser:
    """Goes through the cache for one architecture. skipped: sentences; missing: names of rows without a file."""

    def __init__(self, root: str, version: str, wanted: Sequence[Library], *, kind: str) -> None:
        self._root = root
        self._version = version
        self._wanted = wanted
        self._kind = kind
        self._by_name: dict[str, list[Library]] = {}
        for row in wanted:
            self._by_name.setdefault(row.name, []).append(row)
        self._chosen: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self.skipped: list[str] = []
        self.missing: list[str] = []

    def choose(self, entries: Iterable[ldcache.CacheEntry], arch: int, machine: str) -> tuple[DriverFile, ...]:
        """The files in the order of the rows. arch: of the cache entries; machine: of the ELF files."""
        for entry in entries:
            if not entry.is_elf or entry.arch != arch:
                continue
            # A row's name ends with the first ".so" of a file's.
            head, suffix, _ = entry.name.partition(".so")
            candidates = self._by_name.get(head + suffix)
            if candidates:
                self._consider(entry, candidates, machine)
        files = []
        for row in self._wanted:
            path = self._chosen.get(row.name)
            if path is None:
                self.missing.append(row.name)
            else:
                base = posixpath.basename(path)
                links = tuple((link.name, link.text or base) for link in row.links)
                files.append(DriverFile(path, self._kind, row.capability, links))
        return tuple(files)

    def _consider(self, entry: ldcache.CacheEntry, candidates: list[Library], machine: str) -> None:
        try:
            path = resolve(self._root, entry.path, self._links)
        except OSError as error:
            self._skip(entry.path, f"stale entry of the loader cache: {reason(error)}")
            return
        row = next((row for row in candidates if self._chosen.get(row.name) != path), None)
        if row is None:
            return
        # The version is compared first: the name costs nothing, and another driver's file needs no warning.
        if not _fits(path.rpartition("/")[2], row, self._version):
            return
        why = refusal(self._root, path, row.check, machine)
        if why:
            self._skip(path, why)
        else:
            # The last acceptable one wins: the cache is sorted in descending order, plain directories last.
            self._chosen[row.name] = path

    def _skip(self, path: str, why: str) -> None:
        self.skipped.append(f"skipping {path}: {why}")


def refusal(root: str, path: str, check: str, machine: str) -> str:
    """Why the file at a driver path is not a library of this machine that passes ``check`` of a row, or ""."""
    try:
        with open(open_file(host_path(root, path)), "rb") as stream:
            found = elf.header(stream)
            if found.machine != machine:
                return f"built for {found.machine} ({found.bits} bits), not {machine}"
            if check == "tls-note":
                return _refuse_tls(elf.abi_tag(stream))
            if check == "legacy-gl":
                return _refuse_legacy(elf.dynamic(stream).needed)
    except OSError as error:
        return f"cannot be read: {reason(error)}"
    except FormatError as error:
        return str(error)
    return ""


def _refuse_tls(tag: elf.AbiTag | None) -> str:
    if tag is not None and (tag.system, tag.kernel) == (elf.ABI_OS_LINUX, tables.TLS_KERNEL):
        return ""
    return "its ABI note is not that of the thread-local storage model in use"


def _refuse_legacy(needed: tuple[str, ...]) -> str:
    if any(name.startswith(tables.LEGACY_GL_NEEDS) for name in needed):
        return ""
    return "not NVIDIA's: it needs neither libnvidia-glcore nor libnvidia-eglcore"
