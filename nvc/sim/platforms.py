"""What a simulated machine without NVIDIA's ordinary driver has: WSL2, with the driver of Windows, and Tegra.

Facts: libnvidia-container.md 8; names of files and devices as WSL with a driver of 2024 and JetPack 5 on an Orin
have them. The making of common things (loader cache, /proc/devices, the description) is ``nvc.sim.create``'s.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable

from nvc.driver.tables import STORE_FILES
from nvc.model import CSV_DIRECTORY, DXG_NODE, TEGRA, WSL, DeviceNode
from nvc.sim import elfwriter, templates
from nvc.sim.description import MachineDescription

Write = Callable[[str, bytes, int], None]

#: The control node, and the one whose user may use the GPU.
CONTROL = {WSL: (DXG_NODE, DXG_NODE), TEGRA: ("/dev/nvmap", "/dev/nvhost-ctrl-gpu")}
WSL_DIRECTORY, STORES = "/usr/lib/wsl/lib", "/usr/lib/wsl/drivers"
#: Another vendor's driver store, which libdxcore names too (native/sim/libdxcore.c).
FOREIGN_STORE = f"{STORES}/iigd_dch.inf_amd64_0000000000000000"
#: Beside those with code, in WSL's directory.
_WSL_STUBS = (
    "libd3d12.so",
    "libd3d12core.so",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvwgf2umx.so",
)
_RELEASES = {WSL: "5.15.153.1-microsoft-standard-WSL2", TEGRA: "5.10.120-tegra"}

_TEGRA_STUBS = ("libnvrm_gpu.so", "libnvrm_mem.so", "libnvos.so", "libnvidia-ptxjitcompiler.so.35.4.1")
#: Numbers that no driver of a PC has; nvmap is a misc device, the others' major is given out when the driver is loaded.
_TEGRA_NODES = (
    DeviceNode("/dev/nvmap", 10, 1048001),
    DeviceNode("/dev/nvhost-ctrl-gpu", 505, 0),
    DeviceNode("/dev/nvhost-gpu", 505, 1),
    DeviceNode("/dev/nvhost-as-gpu", 505, 2),
    DeviceNode("/dev/nvgpu/igpu0/ctrl", 506, 0),
    DeviceNode("/dev/nvgpu/igpu0/channel", 506, 1),
)
_FIRMWARE = "/usr/lib/firmware/tegra23x"
#: The mount lists; {lib} is the directory of libraries. One row in each has nothing behind it, as on real boards.
_LISTS = {
    "devices.csv": """\
dev, /dev/nvmap
dev, /dev/nvhost-ctrl-gpu
dev, /dev/nvhost-gpu
dev, /dev/nvhost-as-gpu
dev, /dev/nvgpu/igpu0/*
dev, /dev/nvhost-nvdla0
""",
    "drivers.csv": f"""\
lib, /etc/ld.so.conf.d/nvidia-tegra.conf
lib, {{lib}}/tegra/libcuda.so.1.1
lib, {{lib}}/tegra/libnvrm_*.so
lib, {{lib}}/tegra/libnvos.so
lib, {{lib}}/tegra/libnvidia-ptxjitcompiler.so.35.4.1
lib, {{lib}}/tegra/libnvscf.so
dir, {_FIRMWARE}
sym, {{lib}}/tegra/libcuda.so
sym, {{lib}}/tegra/libcuda.so.1
sym, {{lib}}/libcuda.so
""",
    "l4t.csv": "lib, /etc/nv_tegra_release\n",
    "cudnn.csv": "lib, {lib}/libcudnn.so.8.6.0\nsym, {lib}/libcudnn.so.8\n",
}


def nodes(machine: MachineDescription) -> tuple[tuple[DeviceNode, int], ...]:
    """Every device node with its permission bits."""
    if machine.platform == WSL:
        return ((DeviceNode(DXG_NODE, 10, 1048000), 0o666),)
    return tuple((node, 0o660) for node in _TEGRA_NODES if node.path not in machine.without)


def store(machine: MachineDescription) -> str:
    """Path of the driver store."""
    return f"{STORES}/{machine.store}"


def texts(machine: MachineDescription, libraries: str) -> dict[str, str]:
    """Text files. libraries: the system's directory of libraries."""
    files = {
        "/proc/sys/kernel/osrelease": f"{_RELEASES[machine.platform]}\n",
        "/proc/sys/kernel/overflowuid": "65534\n",
        "/proc/sys/kernel/overflowgid": "65534\n",
    }
    if machine.platform == WSL:
        return {**files, "/etc/ld.so.conf.d/ld.wsl.conf": f"# This file was made by WSL.\n{WSL_DIRECTORY}\n"}
    release, _, revision = machine.driver_version.partition(".")
    return {
        **files,
        "/etc/nv_tegra_release": f"# R{release} (release), REVISION: {revision}, GCID: 33958178, BOARD: t186ref, "
        "EABI: aarch64, DATE: Tue Aug  1 19:57:35 UTC 2023\n",
        "/etc/ld.so.conf.d/nvidia-tegra.conf": f"{libraries}/tegra\n",
        "/sys/devices/soc0/family": "Tegra\n",
        "/proc/device-tree/model": f"{machine.gpus[0].model}\0",
        "/proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0",
        f"{_FIRMWARE}/gpmu_ucode.bin": "SIMULATED firmware\n",
        **{f"{CSV_DIRECTORY}/{name}": text.format(lib=libraries) for name, text in _LISTS.items()},
    }


def install(
    machine: MachineDescription, root: str, libraries: str, target: elfwriter.Target, text: str, write: Write
) -> None:
    """Write libraries and programs below ``root``. text: the description, for those that answer from it.

    write: path, content, permission bits. Raises DetectionError when a template was not built.
    """

    def library(path: str, soname: str = "") -> None:
        soname = soname or posixpath.basename(path)
        write(root + path, elfwriter.shared_object(target, soname, needed=("libc.so.6",)), 0o755)

    def speaking(template: str, path: str) -> None:
        write(root + path, templates.bake(templates.read(template), text), 0o755)

    if machine.platform == WSL:
        _install_wsl(machine, root, library, speaking, write)
        return
    place = f"{libraries}/tegra"
    speaking(templates.CUDA, f"{place}/libcuda.so.1.1")
    for name in _TEGRA_STUBS:
        library(f"{place}/{name}", name.removesuffix(".35.4.1"))
    library(f"{libraries}/libcudnn.so.8.6.0", "libcudnn.so.8")
    for link, name in (
        ("tegra/libcuda.so", "libcuda.so.1.1"),
        ("tegra/libcuda.so.1", "libcuda.so.1.1"),
        ("libcuda.so", "tegra/libcuda.so"),
    ):
        os.symlink(name, f"{root}{libraries}/{link}")


def _install_wsl(
    machine: MachineDescription,
    root: str,
    library: Callable[[str], None],
    speaking: Callable[[str, str], None],
    write: Write,
) -> None:
    """Real libraries in WSL's directory load those of the store; here both are the same code."""
    speaking(templates.DXCORE, f"{WSL_DIRECTORY}/libdxcore.so")
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.1.1"):
        speaking(templates.CUDA, f"{WSL_DIRECTORY}/{name}")
    speaking(templates.NVML, f"{WSL_DIRECTORY}/libnvidia-ml.so.1")
    for name in _WSL_STUBS:
        library(f"{WSL_DIRECTORY}/{name}")
    for name in (name for name in STORE_FILES if name not in machine.without):
        path = f"{store(machine)}/{name}"
        if name == "nvidia-smi":
            for place in (path, f"{WSL_DIRECTORY}/{name}"):
                write(root + place, templates.read(templates.SMI), 0o555)
        elif name == "nvcubins.bin":
            write(root + path, b"SIMULATED cubins\n", 0o555)
        elif name == "libcuda.so.1.1":
            speaking(templates.CUDA, path)
        elif name == "libnvidia-ml.so.1":
            speaking(templates.NVML, path)
        else:
            library(path)
    library(f"{FOREIGN_STORE}/libigc.so")
