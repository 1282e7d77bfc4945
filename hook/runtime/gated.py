"""Devices beside the GPUs that a container gets when a variable of it says "enabled".

Source: nvidia-container-toolkit.md 1.5 and 5.7.

They belong to other drivers, so the hook, which gives what libnvidia-container gives, knows nothing of them.
"""

from __future__ import annotations

import os

from nvc.cdi.spec import CdiDeviceNode, CdiEdits, CdiMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: variable, device nodes ("*": whatever follows), files that come with them where there are any
ROWS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("NVIDIA_GDS", ("/dev/nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    ("NVIDIA_MOFED", ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"), ()),
    ("NVIDIA_GDRCOPY", ("/dev/gdrdrv",), ()),
    ("NVIDIA_NVSWITCH", ("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*"), ()),
)
_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")


def wanted(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of ``env`` that ask for something."""
    return tuple(variable for variable, _, _ in ROWS if env.get(variable) == "enabled")


def edits(variable: str, root: str = "") -> CdiEdits | None:
    """What ``variable`` gives on this host; None when the host has none of its devices. root: in place of "/"."""
    for name, patterns, files in ROWS:
        if name == variable:
            nodes = sorted({path for pattern in patterns for path in _matching(pattern, root)})
            if not nodes:
                return None
            present = [path for path in files if os.path.exists(root + path)]
            return CdiEdits(
                device_nodes=tuple(CdiDeviceNode(path, host_path=root + path if root else "") for path in nodes),
                mounts=tuple(CdiMount(root + path, path, _OPTIONS) for path in present),
            )
    return None


def _matching(pattern: str, root: str) -> list[str]:
    directory, _, name = pattern.rpartition("/")
    start = name.removesuffix("*")
    try:
        names = os.listdir(root + directory)
    except OSError:
        return []
    return [f"{directory}/{found}" for found in names if found == start or (start != name and found.startswith(start))]
