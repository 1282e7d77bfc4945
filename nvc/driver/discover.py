"""Discovery of what is installed on a host: one Inventory from NVML's facts and the files below the root."""

from __future__ import annotations

from nvc.base.errors import DetectionError
from nvc.base.record import Record
from nvc.driver import binaries, drm, graphics, nvcaps
from nvc.driver.gpus import find_gpus
from nvc.driver.libraries import Chooser, host_arch, rows
from nvc.driver.nodes import find_nodes
from nvc.driver.places import platform, read_majors
from nvc.driver.search import INDISPENSABLE, entries
from nvc.driver.served import served_nodes
from nvc.driver.tables import MORE_BINARIES, MORE_LIBRARIES, NODES
from nvc.formats import ldcache
from nvc.model import WSL, DriverEndpoint, DriverFile, DriverInfo, DriverOptions, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvc.driver.facts import NvmlGpu, NvmlSystem
    from nvc.driver.tables import HostArch
    from nvc.model import DeviceNode, Host


def watched(version: str, options: DriverOptions, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Driver paths on which the result of ``discover`` depends, besides the files that it finds.

    version: NVML's. A daemon's socket appears when the daemon starts, nvidia-uvm's node when the module is loaded, a
    program when its package is installed: all of them long after the first container.
    """
    return (
        *binaries.directories(environ),
        *(path for path, _ in binaries.ipc_paths(environ, options)),
        binaries.firmware_directory(version),
        *(node.path for node in NODES if not node.assumed),
        drm.DIRECTORY,
    )


class Installed(Record):
    """The driver's files, and the nodes of no GPU. warnings: about what is optional and missing."""

    libraries: tuple[DriverFile, ...]
    libraries32: tuple[DriverFile, ...]
    binaries: tuple[DriverFile, ...]
    ipcs: tuple[DriverEndpoint, ...]
    firmwares: tuple[DriverFile, ...]
    more: tuple[DriverFile, ...]
    nodes: tuple[DeviceNode, ...]
    warnings: tuple[str, ...]

    def driver(self, version: str, cuda: str = "", nodes: tuple[DeviceNode, ...] = ()) -> DriverInfo:
        """The driver that they are of. cuda: as far as it is known. nodes: none yet, or those."""
        return DriverInfo(
            version,
            cuda,
            self.libraries,
            self.libraries32,
            self.binaries,
            self.ipcs,
            self.firmwares,
            nodes,
            more=self.more,
        )


def files(host: Host, options: DriverOptions, version: str, environ: Mapping[str, str]) -> Installed:
    """Look for the files of a driver's version, which needs nothing else of NVML's, and nodes. Not for WSL and Tegra.

    Raises DetectionError.
    """
    libraries, libraries32, others, warnings = _libraries(host, options, version)
    # A new file there without a new loader cache is not noticed: a driver's installation makes one.
    search = (*binaries.directories(environ), *binaries.beside(libraries, INDISPENSABLE))
    programs, more = binaries.find_binaries(host.root, search, options)
    warnings += more
    ipcs, more = binaries.find_ipcs(host.root, environ, options)
    warnings += more
    firmwares, more = binaries.find_firmware(host.root, version, options)
    warnings += more
    nodes, more = find_nodes(host.nodes, read_majors(host.system), options, served_nodes(host))
    warnings += more
    return Installed(
        libraries,
        libraries32,
        tuple(programs),
        tuple(ipcs),
        tuple(firmwares),
        _more(host, options, version, libraries, others, search),
        tuple(nodes),
        tuple(warnings),
    )


def begin_caps(host: Host) -> nvcaps.Nvcaps:
    """The nvcaps, which are being read: ``read_ahead`` is to be called. Raises DetectionError."""
    caps = nvcaps.Nvcaps(host, read_majors(host.system))
    caps.begin_reading()
    return caps


def discover(
    host: Host,
    options: DriverOptions,
    system: NvmlSystem,
    gpus: Sequence[NvmlGpu],
    environ: Mapping[str, str],
    installed: Installed | None = None,
    caps: nvcaps.Nvcaps | None = None,
) -> Inventory:
    """Look for every row of the tables. Raises DetectionError; what is optional and missing becomes a warning.

    installed: the files of this version, where ``files`` found them already. caps: the nvcaps, where they were read.
    """
    version = checked_version(system.driver_version)
    where = platform(host) if installed is None else ""
    if where:
        from nvc.driver import tegra, wsl

        special = wsl.discover if where == WSL else tegra.discover
        return special(host, options, system, gpus, environ)
    if installed is None:
        installed = files(host, options, version, environ)
    warnings = list(installed.warnings)
    caps = caps or nvcaps.Nvcaps(host, read_majors(host.system))
    found, more = find_gpus(host, gpus, caps)
    warnings += more
    config, monitor = (caps.optional(path, warnings) for path in (nvcaps.MIG_CONFIG, nvcaps.MIG_MONITOR))
    driver = installed.driver(version, cuda_text(system.cuda_version), installed.nodes)
    return Inventory(driver, tuple(found), caps.style, config, monitor, tuple(warnings))


def checked_version(text: str) -> str:
    """The driver's version, which is part of file names. Raises DetectionError for one that cannot be."""
    if (
        not text
        or text.startswith(".")
        or not all(char.isascii() and (char.isalnum() or char in ".-_") for char in text)
    ):
        raise DetectionError(
            f"invalid driver version: {text!r}", hint="is libnvidia-ml.so.1 in the driver root NVIDIA's?"
        )
    return text


def cuda_text(number: int) -> str:
    """NVML's CUDA version (12020) as text ("12.2")."""
    return f"{number // 1000}.{number % 100 // 10}"


def _libraries(
    host: Host, options: DriverOptions, version: str
) -> tuple[tuple[DriverFile, ...], tuple[DriverFile, ...], tuple[DriverFile, ...], list[str]]:
    """libnvidia-container's libraries, the 32-bit ones, those of MORE_LIBRARIES, and warnings."""
    arch = host_arch()
    wanted = rows(glvnd=not options.no_glvnd)
    known, warnings = entries(host, arch.cache, (*wanted, *MORE_LIBRARIES))
    native = Chooser(host.root, version, wanted, kind="library")
    libraries = native.choose(known, arch.cache, arch.elf)
    if not any(file.path.rpartition("/")[2].startswith(INDISPENSABLE) for file in libraries):
        raise DetectionError(f"no {INDISPENSABLE}.{version} in {host.ldcache}", hint=_hint(known, arch))
    warnings += native.skipped + [f"missing library {name}" for name in native.missing]
    beyond = Chooser(host.root, version, MORE_LIBRARIES, kind="library")
    others = beyond.choose(known, arch.cache, arch.elf)
    if arch.cache32 < 0:
        return libraries, (), others, warnings
    compat = Chooser(host.root, version, wanted, kind="library32")
    libraries32 = compat.choose(known, arch.cache32, arch.elf32)
    # A host without 32-bit libraries lacks all of them: one warning, not forty.
    missing = [f"missing compat32 library {name}" for name in compat.missing]
    return (
        libraries,
        libraries32,
        others,
        warnings + compat.skipped + (missing if libraries32 else ["missing compat32 libraries"]),
    )


def _more(
    host: Host,
    options: DriverOptions,
    version: str,
    libraries: tuple[DriverFile, ...],
    others: tuple[DriverFile, ...],
    search: tuple[str, ...],
) -> tuple[DriverFile, ...]:
    programs, _ = binaries.find_binaries(host.root, search, DriverOptions(), MORE_BINARIES)
    known = (*libraries, *others)
    return (
        *others,
        *graphics.find_unlisted(host, version, known, glvnd=not options.no_glvnd, machine=host_arch().elf),
        *programs,
        *graphics.find_configs(host, libraries),
        *graphics.find_modules(host, version, libraries),
    )


def _hint(known: Sequence[ldcache.CacheEntry], arch: HostArch) -> str:
    flags = [entry.flags for entry in known if entry.is_elf and entry.name.startswith(INDISPENSABLE)]
    others = sorted({ldcache.arch_name(flag) for flag in flags})
    if others and all(flag & ldcache.ARCH_MASK != arch.cache for flag in flags):
        return f"it is there for {', '.join(others)} only: install the driver for {arch.machine}"
    return "run ldconfig in the driver root; if an upgrade is half done, load the module of the same version"
