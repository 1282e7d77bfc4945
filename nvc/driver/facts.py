"""Requests and replies of the driver service: NVML's facts as values.

Numbers are NVML's own; ``nvc.driver.discover`` converts them to those of the model.
"""

from __future__ import annotations

from nvc.base.record import Record


class SystemRequest(Record):
    """For the whole machine: no parameters."""


class LoadRequest(Record):
    """Of all GPUs: no parameters."""


class GpuRequest(Record):
    """index: NVML's enumeration index, from 0."""

    index: int


class NvmlMig(Record):
    """A MIG device: compute instance ``ci`` of GPU instance ``gi``. index: NVML's, on its GPU. name: NVML's."""

    index: int
    gi: int
    ci: int
    uuid: str
    name: str = ""


class NvmlGpu(Record):
    """A GPU.

    minor: of /dev/nvidia<minor>. brand: NVML's nvmlBrandType_t. domain, bus, device: PCI address.
    arch: CUDA compute capability, "9.0". mig_capable: NVML knows a MIG mode for it. migs: empty unless mig_enabled.
    memory: total bytes, with those that the driver reserves; 0 where NVML does not report it.
    """

    index: int
    minor: int
    name: str
    brand: int
    uuid: str
    domain: int
    bus: int
    device: int
    arch: str
    mig_capable: bool
    mig_enabled: bool
    migs: tuple[NvmlMig, ...]
    memory: int = 0


class NvmlSystem(Record):
    """cuda_version: as NVML counts, 12080 is 12.8; 0 if unknown (Tegra without its libcuda).

    driver_store: below WSL, the directory of Windows' driver, else "".
    """

    driver_version: str
    cuda_version: int
    gpu_count: int
    driver_store: str = ""


class NvmlLoad(Record):
    """What a GPU does now. utilization: percent of the time of the driver's last sampling in which a kernel ran.

    power, power_limit: milliwatts. -1: the driver does not report it (utilization under MIG).
    """

    uuid: str
    utilization: int = -1
    power: int = -1
    power_limit: int = -1


class NvmlLoads(Record):
    """In NVML's order; without GPUs that do not answer."""

    gpus: tuple[NvmlLoad, ...]
