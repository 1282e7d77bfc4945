"""Devices beside the GPUs: of GPUDirect Storage, MOFED, GDRCopy, NVSwitch and IMEX.

Source: nvidia-container-toolkit.md 1.5 and 5.7. They belong to other drivers, so libnvidia-container, and our hook with
it, knows nothing of them but IMEX's channels. nvc-runtime gives them to a container whose variable says "enabled",
``nvc-py cdi generate`` makes a spec for each mode.
"""

from __future__ import annotations

import os

from nvc.base.errors import DeviceError, InputError
from nvc.base.record import Record
from nvc.cdi import rules
from nvc.cdi.spec import CdiDevice, CdiDeviceNode, CdiEdits, CdiMount, CdiSpec
from nvc.driver.locate import host_path
from nvc.driver.places import IMEX_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_PERMISSIONS = "rw"
#: A hook that is registered for every container must not act on a container of such a device alone.
_ENV = ("NVIDIA_VISIBLE_DEVICES=void",)


class Gated(Record):
    """mode: of ``cdi generate``, and the class of its devices. variable: of a container.

    nodes: driver paths ("*" at the end: whatever follows). files: what comes with them where there is any.
    """

    mode: str
    variable: str
    nodes: tuple[str, ...]
    files: tuple[str, ...] = ()


ROWS = (
    Gated("gds", "NVIDIA_GDS", ("/dev/nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    Gated("mofed", "NVIDIA_MOFED", ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm")),
    Gated("gdrcopy", "NVIDIA_GDRCOPY", ("/dev/gdrdrv",)),
    Gated("nvswitch", "NVIDIA_NVSWITCH", ("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*")),
)
#: IMEX has a device for each channel; a container asks for channels by a variable of its own.
IMEX = "imex"
_CHANNEL = "channel"
#: Mode -> class of its devices.
CLASSES = {**{row.mode: row.mode for row in ROWS}, IMEX: "imex-channel"}


def wanted(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of ``env`` that ask for something."""
    return tuple(row.variable for row in ROWS if env.get(row.variable) == "enabled")


def edits(name: str, root: str = "/", dev_root: str = "") -> CdiEdits | None:
    """What a mode or variable gives on this host; None when the host has none of its devices.

    root: of the driver. dev_root: of device nodes, "" for the same.
    """
    for row in ROWS:
        if name in (row.mode, row.variable):
            below = dev_root or root
            nodes = sorted({path for pattern in row.nodes for path in _matching(pattern, below)})
            present = [path for path in row.files if os.path.exists(host_path(root, path))]
            mounts = tuple(CdiMount(host_path(root, path), path, _OPTIONS) for path in present)
            return CdiEdits(device_nodes=tuple(_node(path, below) for path in nodes), mounts=mounts) if nodes else None
    return None


def spec(
    mode: str, vendor: str, device_class: str, root: str, dev_root: str = "", *, all_device: bool = True
) -> CdiSpec:
    """The spec of a mode. Raises DeviceError where the host has none of its devices, InputError for a wrong kind."""
    kind = f"{vendor}/{device_class}"
    problem = rules.kind_problem(kind)
    if problem:
        raise InputError(problem, hint="--vendor is like nvidia.com, --class like gds")
    found = edits(mode, root, dev_root) if mode != IMEX else None
    devices = _channels(dev_root or root, all_device=all_device) if mode == IMEX else ()
    if found is not None:
        devices = (CdiDevice("all", found),)
    if not devices:
        patterns = next((row.nodes for row in ROWS if row.mode == mode), (f"{IMEX_DIRECTORY}/{_CHANNEL}*",))
        raise DeviceError(f"mode {mode}: this host has no {' and no '.join(patterns)}", hint="is its driver loaded?")
    made = CdiSpec(rules.BASE, kind, devices, CdiEdits(env=_ENV))
    return made.replace(version=made.minimum_version())


def _channels(root: str, *, all_device: bool) -> tuple[CdiDevice, ...]:
    paths = _matching(f"{IMEX_DIRECTORY}/{_CHANNEL}*", root)
    numbers = (path.rpartition(_CHANNEL)[2] for path in paths)
    known = sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())
    nodes = {number: _node(f"{IMEX_DIRECTORY}/{_CHANNEL}{number}", root) for number in known}
    devices = [CdiDevice(str(number), CdiEdits(device_nodes=(node,))) for number, node in nodes.items()]
    every = CdiDevice("all", CdiEdits(device_nodes=tuple(nodes.values())))
    return (*devices, *((every,) if devices and all_device else ()))


def _node(path: str, root: str) -> CdiDeviceNode:
    # Without numbers: the engine looks, and majors change with every boot.
    place = host_path(root, path)
    return CdiDeviceNode(path, host_path="" if place == path else place, permissions=_PERMISSIONS)


def _matching(pattern: str, root: str) -> list[str]:
    directory, _, name = pattern.rpartition("/")
    start = name.removesuffix("*")
    try:
        names = os.listdir(host_path(root, directory))
    except OSError:
        return []
    return [f"{directory}/{found}" for found in names if found == start or (start != name and found.startswith(start))]
