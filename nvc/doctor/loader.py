"""Checks of the loader cache, of the driver's libraries, and of the vendor files of Vulkan and EGL."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc.doctor.driver import RELOAD, version
from nvc.doctor.finding import Finding, error, note, ok, warning
from nvc.doctor.probe import BadFile, Place, table
from nvc.driver import tables
from nvc.driver.libraries import Chooser, host_arch, rows
from nvc.driver.locate import resolve
from nvc.formats import FormatError, ldcache

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

#: Without these there is no nvidia-smi and no CUDA.
NEEDED = ("libnvidia-ml.so", "libcuda.so")
_VULKAN = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
_EGL = ("/etc/glvnd/egl_vendor.d", "/usr/share/glvnd/egl_vendor.d")
_OPTIX = ("/usr/share/nvidia/nvoptix.bin", "/usr/local/share/nvidia/nvoptix.bin")
_INSTALL = "sudo ldconfig  # after installing the user-space packages of driver {version}"


def _entries(probe: Probe) -> tuple[ldcache.CacheEntry, ...]:
    """The cache's entries for driver libraries of this architecture; () for a cache that is missing or broken, which
    ``readable`` reports."""
    try:
        cache = ldcache.parse(probe.driver(probe.host.ldcache).data())
    except FormatError:
        return ()
    known = (host_arch().cache, host_arch().cache32)
    names = tuple(row.name for row in tables.LIBRARIES if row.only != "legacy")
    return tuple(entry for entry in cache.entries if entry.arch in known and entry.name.startswith(names))


def _refresh(probe: Probe) -> str:
    root = probe.host.root
    return "sudo ldconfig" if root == "/" else f"sudo ldconfig -r {shlex.quote(root)}"


def _suffix(path: str) -> str:
    """Version in a library's file name: "580.159.04" of libcuda.so.580.159.04; "" when there is none."""
    text = path.rpartition("/")[2].partition(".so.")[2]
    parts = text.split(".")
    return text if len(parts) in (2, 3) and all(part.isdecimal() for part in parts) and len(parts[0]) >= 3 else ""


def readable(probe: Probe) -> Iterator[Finding]:
    place = probe.driver(probe.host.ldcache)
    data = place.data()
    if not data:
        yield error(
            f"{place} is missing",
            _refresh(probe),
            "the driver's libraries are found through it; systems with musl or NixOS have none (use --ldcache)",
        )
        return
    try:
        yield ok(f"{len(ldcache.parse(data).entries)} entries")
    except FormatError as problem:
        yield error(f"{place}: {problem}", _refresh(probe))


def stale(probe: Probe) -> Iterator[Finding]:
    """Entries of files that do not exist."""
    gone = []
    for entry in _entries(probe):
        try:
            resolve(probe.host.root, entry.path)
        except PermissionError:
            raise
        except OSError:
            gone.append(entry.path)
    if gone:
        names = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        yield warning(f"the loader cache names files that do not exist: {names}", _refresh(probe))
    else:
        yield ok("every driver library in the loader cache exists")


def _found(probe: Probe) -> dict[str, set[str]]:
    """Version -> driver paths of the libraries in the cache."""
    found: dict[str, set[str]] = {}
    for entry in _entries(probe):
        try:
            path = resolve(probe.host.root, entry.path)
        except OSError:
            continue
        # CUDA's forward-compatibility libraries are newer than the driver by design.
        if "/compat/" in path:
            continue
        if _suffix(path) and os.path.basename(path).startswith(("libnvidia-", "libcuda", "libnvcuvid")):
            found.setdefault(_suffix(path), set()).add(path)
    return found


def mismatch(probe: Probe) -> Iterator[Finding]:
    """Libraries of another version than the loaded module's."""
    kernel = version(probe)
    found = _found(probe)
    if not kernel:
        if found:
            yield note(f"libraries of driver {', '.join(sorted(found))} are installed, and no driver is loaded")
        return
    others = sorted(set(found) - {kernel})
    if found and kernel not in found:
        yield error(
            f"the loaded driver is {kernel}, the installed libraries are {', '.join(others)}",
            RELOAD,
            "NVML and CUDA refuse to work: Driver/library version mismatch (an upgrade without a reboot does this)",
        )
        return
    for other in others:
        paths = sorted(found[other])
        yield warning(
            f"there are libraries of another driver: {paths[0]}"
            + (f" and {len(paths) - 1} more" if len(paths) > 1 else ""),
            f"{_refresh(probe)}  # after removing the packages or files of driver {other}",
            f"programs may load them in place of those of {kernel}",
        )
    if found and not others:
        yield ok(f"module and libraries are both {kernel}")


def needed(probe: Probe) -> Iterator[Finding]:
    """The libraries that a container gets, chosen as for one."""
    kernel = version(probe)
    if not kernel:
        return
    try:
        cache = ldcache.parse(probe.driver(probe.host.ldcache).data())
    except FormatError:
        return
    versions = _found(probe)
    if versions and kernel not in versions:
        return  # ``mismatch`` reports that none of them can be used
    glvnd = any(entry.name.startswith("libGLX_nvidia.so") for entry in cache.entries)
    chooser = Chooser(probe.host.root, kernel, rows(glvnd=glvnd), kind="library")
    arch = host_arch()
    files = chooser.choose(cache.entries, arch.cache, arch.elf)
    for name in NEEDED:
        if name in chooser.missing:
            yield error(f"{name} of driver {kernel} is not installed", _INSTALL.format(version=kernel))
    for text in chooser.skipped:
        if "stale entry" not in text and not any(word in text for word in ("not NVIDIA's", "ABI note")):
            package = f"libnvidia-compute-{kernel.partition('.')[0]}"
            yield warning(
                text,
                f"sudo apt-get install --reinstall {package}  # or your distribution's package",
                "containers do not get this library",
            )
    yield ok(f"{len(files)} libraries for containers")


def graphics(probe: Probe) -> Iterator[Finding]:
    """The vendor files for the loaders of Vulkan and EGL; OptiX' data."""
    names = {entry.name.partition(".so")[0] for entry in _entries(probe)}
    if not version(probe) or "libGLX_nvidia" not in names:
        return
    complaints = []
    for what, directories, library in (("Vulkan", _VULKAN, "libGLX_nvidia"), ("EGL", _EGL, "libEGL_nvidia")):
        files = [place for directory in directories for place in _icd(probe.driver(directory))]
        if not files:
            complaints.append(
                note(
                    f"no {what} file of the driver in {', '.join(directories)}: {what} does not work in containers",
                    f"# install the driver's {what} or GL packages",
                )
            )
        for place in files:
            value = table(_json(place), "ICD").get("library_path")
            base = value.rpartition("/")[2].partition(".so")[0] if isinstance(value, str) else ""
            if base not in names:
                text = f"{place} names {value!r}, which the loader cache does not have"
                complaints.append(
                    warning(text, f"# reinstall the package that owns {place}; the right name is {library}.so")
                )
    if "libnvoptix" in names and not any(probe.driver(path).exists() for path in _OPTIX):
        complaints.append(
            note(f"no {_OPTIX[0]}: OptiX' denoiser does not work", "# reinstall the driver's OptiX package")
        )
    yield from complaints or [ok("Vulkan and EGL find the driver")]


def _icd(directory: Place) -> list[Place]:
    return [directory.below(name) for name in directory.names() if "nvidia" in name and name.endswith(".json")]


def _json(place: Place) -> object:
    try:
        found: object = place.json()
    except BadFile:
        return None
    return found
