"""A container, a driver and GPUs for tests of the plan, and what a plan comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.container.operations import AllowDevices, BindMount
from nvc.container.plan import PROC_DRIVER, Scope
from nvc.model import Container, DeviceNode, DriverEndpoint, DriverFile, DriverInfo, Gpu, MigDevice, Nvcap, ProcFile
from nvc.request.capabilities import DriverCapabilities

if TYPE_CHECKING:
    from nvc.container.operations import Operation

CONTAINER = Container(
    pid=7,
    rootfs="/r",
    supervised=True,
    mount_namespace="/proc/7/ns/mnt",
    binaries_directory="/usr/bin",
    libraries_directory="/usr/lib64",
    libraries32_directory="/usr/lib32",
    ldconfig="/sbin/ldconfig",
    owner_uid=0,
    owner_gid=0,
)
V = "535.104.05"
DRIVER = DriverInfo(
    nvrm_version=V,
    cuda_version="12.2",
    libraries=(
        DriverFile(f"/lib/x/libnvidia-ml.so.{V}", "library", "utility"),
        DriverFile(f"/lib/x/libcuda.so.{V}", "library", "compute", (("libcuda.so", "libcuda.so.1"),)),
        DriverFile(f"/lib/x/libnvcuvid.so.{V}", "library", "video"),
        DriverFile(
            f"/lib/x/libGLX_nvidia.so.{V}", "library", "graphics", (("libGLX_indirect.so.0", f"libGLX_nvidia.so.{V}"),)
        ),
    ),
    libraries32=(DriverFile(f"/lib/y/libcuda.so.{V}", "library32", "compute", (("libcuda.so", "libcuda.so.1"),)),),
    binaries=(
        DriverFile("/opt/bin/nvidia-smi", "binary", "utility"),
        DriverFile("/opt/bin/nvidia-cuda-mps-server", "binary", "compute"),
    ),
    ipcs=(
        DriverEndpoint("/run/nvidia-persistenced/socket", "ipc", "utility"),
        DriverEndpoint("/tmp/nvidia-mps", "ipc", "compute", server="control"),
    ),
    firmwares=(DriverFile(f"/lib/firmware/nvidia/{V}/gsp.bin", "firmware", ""),),
    nodes=(
        DeviceNode("/dev/nvidiactl", 195, 255),
        DeviceNode("/dev/nvidia-uvm", 235, 0),
        DeviceNode("/dev/nvidia-uvm-tools", 235, 1),
        DeviceNode("/dev/nvidia-modeset", 195, 254),
    ),
)
PROC_FILES = (ProcFile("/proc/driver/nvidia/params", 0o444, "ModifyDeviceFiles: 0\n"),)
CAPS = "/proc/driver/nvidia/capabilities"


def nvcap(path: str, minor: int | None) -> Nvcap:
    node = None if minor is None else DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", 237, minor)
    return Nvcap(f"{CAPS}/{path}", node)


def gpu(minor: int) -> Gpu:
    migs = tuple(
        MigDevice(
            index,
            f"MIG-{minor}-{index}",
            gi,
            ci,
            nvcap(f"gpu{minor}/mig/gi{gi}/access", 3 + 135 * minor + 9 * gi),
            nvcap(f"gpu{minor}/mig/gi{gi}/ci{ci}/access", 4 + 135 * minor + 9 * gi + ci),
        )
        for index, (gi, ci) in enumerate(((1, 0), (1, 1), (2, 0)))
    )
    return Gpu(
        index=minor,
        minor=minor,
        model="m",
        brand="Nvidia",
        uuid=f"GPU-{minor}",
        bus_id=f"00000000:{minor:02x}:00.0",
        arch="8.0",
        node=DeviceNode(f"/dev/nvidia{minor}", 195, minor),
        proc_path=f"{PROC_DRIVER}/gpus/0000:{minor:02x}:00.0",
        mig_capable=True,
        mig_caps_path=f"{CAPS}/gpu{minor}",
        mig_devices=migs,
        mig_nodes=tuple(DeviceNode(f"/dev/nvidia-caps/nvidia-cap{n}", 237, n) for n in range(3 + 135 * minor, 9)),
    )


def scope(words: str = "compute,utility", **changes: object) -> Scope:
    return Scope(CONTAINER, DriverCapabilities.parse(words)).replace(**changes)


def targets(operations: tuple[Operation, ...]) -> list[str]:
    return [operation.container_path for operation in operations if isinstance(operation, BindMount)]


def rules(operations: tuple[Operation, ...]) -> list[tuple[int, int]]:
    return [rule for operation in operations if isinstance(operation, AllowDevices) for rule in operation.rules]
