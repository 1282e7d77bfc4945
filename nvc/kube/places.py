"""Where a machine's GPUs are: their PCI path and their node of processors and memory, from the kernel's sysfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.driver.locate import host_path
from nvc.driver.places import GPUS
from nvc.kube.plugin_prefer import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.model import Gpu, Host

_DEVICES = "/sys/bus/pci/devices"


def find(host: Host, gpus: Iterable[Gpu]) -> dict[str, Place]:
    """UUID -> place, of those that sysfs has. Raises nothing."""
    return {gpu.uuid: _place(host_path(host.system, f"{_DEVICES}/{_address(gpu)}")) for gpu in gpus}


def _address(gpu: Gpu) -> str:
    """As sysfs writes it: four digits of the domain, and more where it is larger."""
    if gpu.proc_path:
        return gpu.proc_path.removeprefix(f"{GPUS}/")
    return f"{gpu.bus_id[:4].lstrip('0')}{gpu.bus_id[4:]}"


def _place(link: str) -> Place:
    path = os.path.realpath(link) if os.path.lexists(link) else ""
    try:
        with open(f"{link}/numa_node", encoding="ascii") as file:
            numa = int(file.read(32))
    except (OSError, ValueError):
        numa = -1
    return Place(path, numa)
