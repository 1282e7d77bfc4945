"""What a simulated machine has for graphics: files of loaders and of the X server, and DRM nodes.

Texts as a driver 580's .run file installs them; nodes as Linux 6.1 and udev make them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from nvc.base.record import Record
from nvc.driver.tables import CONFIGS
from nvc.model import DeviceNode
from nvc.sim import elfwriter
from nvc.sim.description import MachineDescription
from nvc.sim.layouts import Architecture, Layout

Write = Callable[[str, bytes, int], None]

#: DRM_MAJOR of include/drm/drm_drv.h; of render nodes the minors begin here (drm_minor_alloc()).
DRM_MAJOR, RENDER = 226, 128
#: Debian's groups ``video`` and ``render``, which udev gives the nodes to.
VIDEO_GROUP, RENDER_GROUP, NODE_MODE = 44, 105, 0o660
#: Driver majors from which files are installed, by the end of their paths; others always are.
_SINCE = {"09_nvidia_wayland2.json": 590, "20_nvidia_xcb.json": 560, "20_nvidia_xlib.json": 560}
#: Of the X server only: not on a machine without a display.
_DISPLAY = ("X11/",)

_ICD = """\
{{
    "file_format_version" : "1.0.1",
    "ICD": {{
        "library_path": "{0}",
        "api_version" : "1.4.303"
    }}
}}
"""
_EGL = """\
{{
    "file_format_version" : "1.0.0",
    "ICD" : {{
        "library_path" : "{0}"
    }}
}}
"""
_LAYERS = """\
{{
    "file_format_version" : "1.0.0",
    "layer": {{
        "name": "VK_LAYER_NV_optimus",
        "type": "INSTANCE",
        "library_path": "{0}",
        "api_version" : "1.4.303",
        "implementation_version" : "1",
        "description" : "NVIDIA Optimus layer",
        "enable_environment": {{"__NV_PRIME_RENDER_OFFLOAD": "1"}},
        "disable_environment": {{"DISABLE_LAYER_NV_OPTIMUS_1": ""}}
    }}
}}
"""
#: End of a file's name -> text, the library that it names.
_TEXTS = {
    "nvidia.icd": ("{0}\n", "libnvidia-opencl.so.1"),
    "10_nvidia.json": (_EGL, "libEGL_nvidia.so.0"),
    "09_nvidia_wayland2.json": (_EGL, "libnvidia-egl-wayland2.so.1"),
    "10_nvidia_wayland.json": (_EGL, "libnvidia-egl-wayland.so.1"),
    "15_nvidia_gbm.json": (_EGL, "libnvidia-egl-gbm.so.1"),
    "20_nvidia_xcb.json": (_EGL, "libnvidia-egl-xcb.so.1"),
    "20_nvidia_xlib.json": (_EGL, "libnvidia-egl-xlib.so.1"),
    "nvidia_layers.json": (_LAYERS, "libGLX_nvidia.so.0"),
    "nvoptix.bin": ("SIMULATED data of OptiX\n", ""),
    "10-nvidia.conf": ('Section "OutputClass"\n    Identifier "nvidia"\nEndSection\n', ""),
    "nvidia-drm-outputclass.conf": ('Section "OutputClass"\n    Driver "nvidia"\nEndSection\n', ""),
}


def configs(machine: MachineDescription, layout: Layout) -> dict[str, str]:
    """Path -> text of the configuration files."""
    found = {}
    major = int(machine.driver_version.partition(".")[0])
    for row in CONFIGS:
        name = row.path.rpartition("/")[2]
        if not machine.graphics or (machine.graphics != "desktop" and row.path.startswith(_DISPLAY)):
            continue
        if row.path.startswith("vulkan/icd.d/"):
            # One of the names, by distribution.
            if name != layout.icd:
                continue
            found[f"{layout.vulkan}/icd.d/{name}"] = _ICD.format("libGLX_nvidia.so.0")
        elif major >= _SINCE.get(name, 0):
            text, library = _TEXTS[name]
            place = layout.share if row.target != "/etc" else layout.etc
            path = f"{layout.vulkan}{row.path.removeprefix('vulkan')}" if row.at_root else f"{place}/{row.path}"
            found[path] = text.format(library) if library else text
    return found


def install(machine: MachineDescription, root: str, layout: Layout, architecture: Architecture, write: Write) -> None:
    """Configuration files, modules of the X server and the link of GBM's backend."""
    for path, text in configs(machine, layout).items():
        write(root + path, text.encode(), 0o644)
    if not machine.graphics:
        return
    gbm = f"{root}{layout.libraries}/gbm"
    os.makedirs(gbm)
    os.symlink("../libnvidia-allocator.so.1", f"{gbm}/nvidia-drm_gbm.so")
    if machine.graphics != "desktop":
        return
    glx = f"libglxserver_nvidia.so.{machine.driver_version}"
    for directory, name in (("drivers", "nvidia_drv.so"), ("extensions", glx)):
        data = elfwriter.shared_object(architecture.target, name.partition(".so")[0] + ".so")
        write(f"{root}{layout.modules}/{directory}/{name}", data, 0o644)
    os.symlink(glx, f"{root}{layout.modules}/extensions/libglxserver_nvidia.so")


class _Drm(Record):
    """A DRM node: of which PCI device, and the word for its kind in the name of its link."""

    node: DeviceNode
    bus_id: str
    kind: str
    group: int


def _drm(machine: MachineDescription) -> Iterator[_Drm]:
    """Of other makers' GPUs first, then of the machine's."""
    for number, bus_id in enumerate((*machine.other_drm, *(gpu.bus_id for gpu in machine.gpus)) if machine.drm else ()):
        yield _Drm(DeviceNode(f"/dev/dri/card{number}", DRM_MAJOR, number), bus_id, "card", VIDEO_GROUP)
        minor = RENDER + number
        yield _Drm(DeviceNode(f"/dev/dri/renderD{minor}", DRM_MAJOR, minor), bus_id, "render", RENDER_GROUP)


def drm_nodes(machine: MachineDescription) -> tuple[DeviceNode, ...]:
    """The DRM nodes of the machine's GPUs and of others' (``other_drm``)."""
    return tuple(drm.node for drm in _drm(machine))


def finish_drm(machine: MachineDescription, root: str, *, nodes: bool) -> None:
    """What sysfs shows of DRM nodes; where there are ``nodes``, their groups and links."""
    for drm in _drm(machine):
        name = drm.node.path.rpartition("/")[2]
        os.makedirs(f"{root}/sys/bus/pci/devices/{drm.bus_id}/drm/{name}")
        if nodes:
            os.chown(root + drm.node.path, 0, drm.group)
            os.chmod(root + drm.node.path, NODE_MODE)
            os.makedirs(f"{root}/dev/dri/by-path", exist_ok=True)
            os.symlink(f"../{name}", f"{root}/dev/dri/by-path/pci-{drm.bus_id}-{drm.kind}")
