"""DRM nodes of GPUs (/dev/dri/cardN, renderDN) and their links in /dev/dri/by-path.

Kernel: drivers/gpu/drm/drm_sysfs.c names them below the PCI device; udev makes the links. They are there once the
module nvidia-drm is loaded.
"""

from __future__ import annotations

import os
import stat

from nvc.driver.locate import host_path, status
from nvc.driver.places import GPUS
from nvc.model import DeviceNode, DrmNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import Host

DIRECTORY = "/dev/dri"


def drm_nodes(host: Host, bus_id: str, proc_path: str = "") -> tuple[DrmNode, ...]:
    """Of a GPU, those that exist, with the numbers that they have. bus_id, proc_path: as in ``nvc.model.Gpu``."""
    # sysfs names PCI functions by four digits of the domain and more where it is larger; so does the directory below
    # /proc.
    bus = proc_path.removeprefix(f"{GPUS}/") if proc_path else f"{bus_id[:4].lstrip('0')}{bus_id[4:]}"
    try:
        names = sorted(os.listdir(host_path(host.system, f"/sys/bus/pci/devices/{bus}/drm")))
    except OSError:
        return ()
    found = []
    for name in names:
        kind = next((kind for prefix, kind in _KINDS if _is_numbered(name, prefix)), "")
        path = f"{DIRECTORY}/{name}"
        try:
            node = status(host.nodes, path) if kind else None
        except OSError:
            continue
        if node is not None and stat.S_ISCHR(node.st_mode):
            number = os.major(node.st_rdev), os.minor(node.st_rdev)
            link = _by_path(host, f"{DIRECTORY}/by-path/pci-{bus}-{kind}", name)
            found.append(DrmNode(DeviceNode(path, *number), link))
    return tuple(found)


_KINDS = (("card", "card"), ("renderD", "render"))


def _is_numbered(name: str, prefix: str) -> bool:
    number = name.removeprefix(prefix)
    return number != name and number.isascii() and number.isdecimal()


def _by_path(host: Host, link: str, name: str) -> str:
    try:
        return link if os.readlink(host_path(host.nodes, link)) == f"../{name}" else ""
    except OSError:
        return ""
