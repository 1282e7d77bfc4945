"""Paths and numbers of the driver below /proc and /dev that several modules use. Light: imported on a cache hit, which
needs no parser."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import DetectionError, reason
from nvc.driver.locate import host_path, read_text, resolve, status
from nvc.model import DXG_NODE, NVIDIA_MAJOR, TEGRA, WSL, DeviceNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.model import Host

DRIVER = "/proc/driver/nvidia"
#: The inventory (``nvc.driver.inventory``).
CACHE = "/run/nvc/inventory.json"
GPUS = f"{DRIVER}/gpus"
CAPABILITIES = f"{DRIVER}/capabilities"
#: Names in /proc/devices.
CAPS_MAJOR, IMEX_MAJOR = "nvidia-caps", "nvidia-caps-imex-channels"
#: Where WSL mounts the libraries that belong to it; it tells the loader by /etc/ld.so.conf.d/ld.wsl.conf.
WSL_LIBRARIES = "/usr/lib/wsl/lib"
_DXCORE = f"{WSL_LIBRARIES}/libdxcore.so"
TEGRA_RELEASE, TEGRA_FAMILY = "/etc/nv_tegra_release", "/sys/devices/soc0/family"

#: Looked through in this order; {machine} is uname's. Directories of distributions, of their packages for several
#: drivers, of NixOS, of .run files with a prefix, of Talos, and the driver root's own.
_LIBRARY_DIRECTORIES = (
    *("/usr/lib64", "/usr/lib/{machine}-linux-gnu", "/usr/lib"),
    *("/usr/lib64/nvidia/current", "/usr/lib/{machine}-linux-gnu/nvidia/current"),
    *("/run/opengl-driver/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"),
    *("/usr/local/glibc/usr/lib", "/usr/local/glibc/lib", "/usr/local/lib"),
    *("/lib64", "/lib/{machine}-linux-gnu", "/lib"),
)


def cache_path(host: Host) -> str:
    """Where a host's inventory is kept: a simulated machine has its file inside its own directory."""
    return host_path(host.system, CACHE)


def platform(host: Host) -> str:
    """WSL, TEGRA, or "" for a machine with NVIDIA's ordinary driver (libnvidia-container.md 2.5 and 8.1).

    Checks files only and loads no library. On most machines, with neither /dev/dxg nor a file of Tegra's, that is three
    system calls.
    """
    if _is(host, DXG_NODE, stat.S_ISCHR) and _is(host, _DXCORE, stat.S_ISREG):
        return WSL
    return TEGRA if _is_tegra(host) and not _has_nvml(host) else ""


def _is(host: Host, path: str, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(status(host.nodes if path.startswith("/dev/") else host.root, path).st_mode)
    except OSError:
        return False


def _is_tegra(host: Host) -> bool:
    if os.path.lexists(host_path(host.root, TEGRA_RELEASE)):
        return True
    try:
        return read_text(host_path(host.system, TEGRA_FAMILY), 4096).lower().startswith("tegra")
    except OSError:
        return False


def _has_nvml(host: Host) -> bool:
    """Whether the loader cache of the driver root has an NVML that exists."""
    from nvc.driver.locate import read_bytes
    from nvc.formats import FormatError, ldcache

    try:
        cache = ldcache.parse(read_bytes(host_path(host.root, resolve(host.root, host.ldcache)), ldcache.MAX_SIZE))
    except (OSError, FormatError):
        return False
    names = (entry for entry in cache.entries if entry.name == "libnvidia-ml.so.1")
    return any(_is(host, entry.path, stat.S_ISREG) for entry in names)


def library_directories(host: Host) -> tuple[str, ...]:
    """Driver paths of the directories that may hold the driver's libraries."""
    if host.libraries:
        return host.libraries
    return tuple(directory.format(machine=os.uname().machine) for directory in _LIBRARY_DIRECTORIES)


def gpu_node(minor: int) -> DeviceNode:
    """The node of a GPU. Not checked here: the minor is NVML's, and the mount checks the number."""
    return DeviceNode(f"/dev/nvidia{minor}", NVIDIA_MAJOR, minor)


def cap_node(major: int, minor: int) -> DeviceNode:
    """The node of an nvcap."""
    return DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor)


#: Where IMEX channels' nodes are.
IMEX_DIRECTORY = "/dev/nvidia-caps-imex-channels"


def imex_path(channel: int) -> str:
    """Driver path of an IMEX channel's node."""
    return f"{IMEX_DIRECTORY}/channel{channel}"


def read_majors(system: str) -> dict[str, int]:
    """Name -> major of the character devices that the kernel has. Raises DetectionError."""
    from nvc.formats.procfs import char_majors

    path = host_path(system, "/proc/devices")
    try:
        return char_majors(read_text(path))
    except OSError as error:
        raise DetectionError(f"open failed: {path}: {reason(error)}", hint="mount /proc") from error
