"""The device nodes of a simulated machine, with the numbers and modes that nvidia-modprobe gives.

Source: libnvidia-container.md 3.7.
"""

from __future__ import annotations

import os
import stat

from nvc.base.errors import reason
from nvc.model import CONTROL_MINOR, MODESET_MINOR, NVIDIA_MAJOR, DeviceNode
from nvc.sim import caps, graphics, platforms
from nvc.sim.description import MachineDescription

_UVM, _CAPS, _IMEX = "nvidia-uvm", "nvidia-caps", "nvidia-caps-imex-channels"


def nodes(machine: MachineDescription) -> tuple[tuple[DeviceNode, int], ...]:
    """Every node with its permission bits."""
    if machine.platform:
        return platforms.nodes(machine)
    found = [(DeviceNode(f"/dev/nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor), 0o666) for gpu in machine.gpus]
    found.append((DeviceNode("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR), 0o666))
    if machine.modeset:
        found.append((DeviceNode("/dev/nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR), 0o666))
    if _UVM in machine.majors:
        uvm = machine.majors[_UVM]
        found.append((DeviceNode("/dev/nvidia-uvm", uvm, 0), 0o666))
        found.append((DeviceNode("/dev/nvidia-uvm-tools", uvm, 1), 0o666))
    if machine.caps_in_dev:
        major = machine.majors[_CAPS]
        found += [(DeviceNode(cap.node, major, cap.minor), cap.mode) for cap in caps.present(machine)]
    for channel in machine.imex_channels:
        found.append((DeviceNode(f"/dev/{_IMEX}/channel{channel}", machine.majors[_IMEX], channel), 0o666))
    found += [(node, graphics.NODE_MODE) for node in graphics.drm_nodes(machine)]
    return tuple((node, mode) for node, mode in found if node.path not in machine.without)


def make_nodes(machine: MachineDescription, root: str) -> str:
    """Make the nodes below ``root``. Returns "" or, when the kernel allows none, why (then there are none)."""
    made: list[str] = []
    for node, mode in nodes(machine):
        path = root + node.path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(node.major, node.minor))
        except PermissionError as error:
            for path in made:
                os.unlink(path)
            return f"{node.path}: {reason(error)}"
        made.append(path)
        os.chmod(path, mode)
    return ""
