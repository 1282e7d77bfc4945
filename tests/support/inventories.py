"""Inventories for tests, as data: small machines in the words of ``nvc.model``."""

from __future__ import annotations

from nvc.model import (
    NVCAPS_DEV,
    NVIDIA_MAJOR,
    DeviceNode,
    DriverEndpoint,
    DriverFile,
    DriverInfo,
    Gpu,
    Inventory,
    MigDevice,
    Nvcap,
)

CAPS_MAJOR = 237
VERSION = "535.104.05"


def nvcap(path: str, minor: int, *, style: int = NVCAPS_DEV) -> Nvcap:
    node = DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", CAPS_MAJOR, minor) if style == NVCAPS_DEV else None
    return Nvcap(f"/proc/driver/nvidia/capabilities/{path}", node)


def mig_device(gpu: int, index: int, gi: int, ci: int, uuid: str, *, style: int = NVCAPS_DEV) -> MigDevice:
    # The kernel's formula: nv-caps.c, libnvidia-container.md 3.8.
    minor = 3 + 135 * gpu + 9 * gi
    base = f"gpu{gpu}/mig/gi{gi}"
    return MigDevice(
        index=index,
        uuid=uuid,
        gi=gi,
        ci=ci,
        gi_access=nvcap(f"{base}/access", minor, style=style),
        ci_access=nvcap(f"{base}/ci{ci}/access", minor + 1 + ci, style=style),
    )


def gpu(index: int, bus_id: str, uuid: str, *migs: MigDevice, mig_capable: bool = False, minor: int = -1) -> Gpu:
    number = index if minor < 0 else minor
    return Gpu(
        index=index,
        minor=number,
        model="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        uuid=uuid,
        bus_id=bus_id,
        arch="9.0",
        node=DeviceNode(f"/dev/nvidia{number}", NVIDIA_MAJOR, number),
        proc_path=bus_id[4:],
        mig_capable=mig_capable or bool(migs),
        mig_caps_path=f"/proc/driver/nvidia/capabilities/gpu{number}/mig" if mig_capable or migs else "",
        mig_devices=migs,
        mig_nodes=tuple(
            nvcap_.node for mig in migs for nvcap_ in (mig.gi_access, mig.ci_access) if nvcap_.node is not None
        ),
    )


def driver() -> DriverInfo:
    return DriverInfo(
        nvrm_version=VERSION,
        cuda_version="12.2",
        libraries=(DriverFile(f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}", "library", "compute"),),
        libraries32=(DriverFile(f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}", "library32", "compute"),),
        binaries=(DriverFile("/usr/bin/nvidia-smi", "binary", "utility"),),
        ipcs=(DriverEndpoint("/run/nvidia-persistenced/socket", "ipc", "utility"),),
        firmwares=(DriverFile(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "firmware", ""),),
        nodes=(DeviceNode("/dev/nvidiactl", NVIDIA_MAJOR, 255), DeviceNode("/dev/nvidia-uvm", 234, 0)),
    )


GPU_A = "GPU-aaaaaaaa-1111-2222-3333-444444444444"
GPU_B = "GPU-bbbbbbbb-1111-2222-3333-444444444444"
MIG_7 = "MIG-77777777-1111-2222-3333-444444444444"
MIG_9 = "MIG-99999999-1111-2222-3333-444444444444"


def two_gpus(style: int = NVCAPS_DEV) -> Inventory:
    """The machine of the reference vectors: two GPUs, the second with the MIG devices 0 and 1."""
    migs = (mig_device(1, 0, 7, 0, MIG_7, style=style), mig_device(1, 1, 9, 0, MIG_9, style=style))
    return Inventory(
        driver=driver(),
        gpus=(gpu(0, "00000000:3d:00.0", GPU_A), gpu(1, "00000001:3e:00.0", GPU_B, *migs)),
        nvcaps_style=style,
        mig_config=nvcap("mig/config", 1, style=style),
        mig_monitor=nvcap("mig/monitor", 2, style=style),
    )


def without_gpus() -> Inventory:
    return two_gpus().replace(gpus=())
