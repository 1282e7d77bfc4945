"""Paths and numbers of the driver below /proc and /dev that more than one module names. Light: also used on a hit."""

from __future__ import annotations

from nvc.driver.locate import host_path, read_text
from nvc.errors import DetectionError, reason
from nvc.formats.procfs import char_majors
from nvc.model import NVIDIA_MAJOR, DeviceNode

DRIVER = "/proc/driver/nvidia"
GPUS = f"{DRIVER}/gpus"
CAPABILITIES = f"{DRIVER}/capabilities"
#: Names in /proc/devices.
CAPS_MAJOR, IMEX_MAJOR = "nvidia-caps", "nvidia-caps-imex-channels"


def gpu_node(minor: int) -> DeviceNode:
    """The node of a GPU. Not looked at: NVML named the minor, and mounting checks the number."""
    return DeviceNode(f"/dev/nvidia{minor}", NVIDIA_MAJOR, minor)


def cap_node(major: int, minor: int) -> DeviceNode:
    """The node of an nvcap."""
    return DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor)


def imex_path(channel: int) -> str:
    """Driver path of an IMEX channel's node."""
    return f"/dev/nvidia-caps-imex-channels/channel{channel}"


def read_majors(system: str) -> dict[str, int]:
    """Name -> major of the character devices that the kernel has. Raises DetectionError."""
    path = host_path(system, "/proc/devices")
    try:
        return char_majors(read_text(path))
    except OSError as error:
        raise DetectionError(f"open failed: {path}: {reason(error)}", hint="mount /proc") from error
