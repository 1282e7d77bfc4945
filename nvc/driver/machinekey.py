"""The keys that a cached inventory is valid for. Read without NVML, in a fraction of a millisecond.

Two groups. The *machine*: if any of it changes, NVML is queried again. The *view*: options, PATH, and the sockets and
nodes that exist now; if only that changes, discovery runs again with the cached NVML facts, and no GPU is woken.
"""

from __future__ import annotations

import os
import stat

import nvc
from nvc.driver.locate import host_path, read_text, status
from nvc.driver.places import CAPABILITIES, DRIVER, GPUS, library_directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from nvc.model import DriverOptions, Host

#: Of the cache file; changes with the meaning of its content.
FORMAT = 4
#: Where PCI devices that nvidia.ko drives are links, named by address.
BINDINGS = "/sys/bus/pci/drivers/nvidia"


def machine_key(host: Host) -> dict[str, Any] | None:
    """What the NVML facts depend on, as JSON data, or None when no driver is loaded (then nothing is cached).

    bindings has the inode numbers of sysfs links, which are never reused: reloading the module, or unbinding a
    GPU and binding another at its address, makes new ones. mig has the times of the instances' directories, because
    an instance that is recreated with another profile has the same name and another UUID; procfs may give an unchanged
    directory a new time, which costs one query of NVML.
    """
    version = _text(host_path(host.nodes, f"{DRIVER}/version"))
    if not version:
        return None
    return {
        "program": f"{nvc.__version__}/{FORMAT}",
        "host": host.as_data(),
        # The running kernel's, for a simulated machine as well.
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "nvrm": version,
        "ldcache": _loader_cache(host),
        "gpus": sorted(_names(host_path(host.nodes, GPUS))),
        "bindings": _bindings(host_path(host.system, BINDINGS)),
        "mig": _mig_instances(host_path(host.nodes, CAPABILITIES)),
        "majors": [line for line in _text(host_path(host.system, "/proc/devices")).split("\n") if "nvidia" in line],
    }


def view_key(options: DriverOptions, environ: Mapping[str, str]) -> dict[str, Any]:
    """The other values that the result depends on."""
    return {
        "options": options.as_data(),
        "path": environ.get("PATH"),
        "mps": environ.get("CUDA_MPS_PIPE_DIRECTORY"),
    }


def identities(root: str, paths: Iterable[str]) -> dict[str, str]:
    """``identity`` of each path."""
    known: dict[str, str] = {}
    return {path: identity(root, path, known) for path in paths}


def watched_identities(host: Host, paths: Iterable[str]) -> dict[str, str]:
    """``identity`` of each path, of nodes below the root of nodes."""
    known: dict[str, str] = {}
    return {path: identity(host.nodes if path.startswith("/dev/") else host.root, path, known) for path in paths}


def identity(root: str, path: str, known: dict[str, str] | None = None) -> str:
    """A text that changes when the file, directory, node or socket at a driver path does, or comes or goes.

    known: see ``nvc.driver.locate.resolve``.
    """
    try:
        found = status(root, path, known)
    except OSError as error:
        return f"errno {error.errno}"
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return f"{found.st_dev}:{found.st_ino} {found.st_mode:o} {found.st_uid} {found.st_size} {found.st_mtime_ns}"
    # The socket of a restarted daemon is equivalent.
    return f"{stat.S_IFMT(found.st_mode):o} {found.st_uid} {found.st_rdev}"


def _loader_cache(host: Host) -> str | dict[str, str]:
    """Of the loader cache; where there is none, of the directories that are looked through instead."""
    found = identity(host.root, host.ldcache)
    if not host.libraries and not found.startswith("errno"):
        return found
    return identities(host.root, library_directories(host))


def _text(path: str) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _bindings(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(f"{entry.name} {entry.inode()}" for entry in entries if ":" in entry.name)
    except OSError:
        return []


def _mig_instances(base: str) -> list[str]:
    found = []
    for gpu in sorted(name for name in _names(base) if name.startswith("gpu")):
        mig = f"{base}/{gpu}/mig"
        for gi in sorted(name for name in _names(mig) if name.startswith("gi")):
            found.append(_dated(f"{mig}/{gi}", f"{gpu}/{gi}"))
            cis = sorted(name for name in _names(f"{mig}/{gi}") if name.startswith("ci"))
            found += [_dated(f"{mig}/{gi}/{ci}", f"{gpu}/{gi}/{ci}") for ci in cis]
    return found


def _dated(path: str, name: str) -> str:
    try:
        return f"{name} {os.stat(path).st_mtime_ns}"
    except OSError:
        return name
