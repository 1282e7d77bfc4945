"""The description of a simulated machine: Records, decoded strictly from ``nvc/sim/machines/<name>.json``."""

from __future__ import annotations

import os
import re

from nvc.base.errors import InputError, reason
from nvc.base.nearest import did_you_mean
from nvc.base.record import DecodeError, Record

_MACHINES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "machines")
BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.0")
_PROFILE = re.compile(r"(?:([1-7])c\.)?([1-7])g\.([0-9]{1,3})gb")

#: How a library of the machine is damaged after the loader cache was made.
DAMAGES = {
    "gone": "the file is removed, the loader cache still names it",
    "foreign": "the file is an ELF library of another architecture",
    "truncated": "the file ends in the middle of its ELF header",
    "garbage": "the file is no ELF file",
}

#: What a machine has for graphics.
GRAPHICS = ("", "headless", "desktop")

#: enum machine_pageable of native/sim/machine.h, in its words.
PAGEABLE = ("off", "hmm", "ats")


class GpuModel(Record):
    """What all GPUs of a kind share. brand: NVML's number; memory: MiB; pci_id: device << 16 | vendor."""

    brand: int
    arch: str
    memory: int
    memory_reserved: int
    pci_id: int
    pci_subsystem: int
    mig_capable: bool = False
    video_bios: str = "96.00.a5.00.1a"


class MigLayout(Record):
    """One MIG device: compute instance ``ci`` of GPU instance ``gi``; profile as nvidia-smi prints it."""

    uuid: str
    profile: str
    gi: int
    ci: int

    @property
    def slices(self) -> tuple[int, int]:
        """(GPU instance slices, compute instance slices) from the profile's name."""
        compute, whole, _ = self._parts()
        return int(whole), int(compute or whole)

    @property
    def memory(self) -> int:
        """Bytes, from the profile's name."""
        return int(self._parts()[2]) << 30

    def _parts(self) -> tuple[str | None, str, str]:
        match = _PROFILE.fullmatch(self.profile)
        if match is None:
            raise DecodeError(f"MIG profile {self.profile!r} is not like 1g.10gb or 1c.3g.40gb")
        compute, whole, memory = match.groups()
        return compute, whole, memory


class GpuDescription(Record):
    """One GPU. model: a key of ``gpu_models``; bus_id: domain:bus:device.0 in lower-case hexadecimal."""

    model: str
    minor: int
    uuid: str
    bus_id: str
    mig_enabled: bool = False
    mig: tuple[MigLayout, ...] = ()

    @property
    def pci(self) -> tuple[int, int, int]:
        """(domain, bus, device)."""
        match = BUS_ID.fullmatch(self.bus_id)
        if match is None:
            raise DecodeError(f"bus_id {self.bus_id!r} is not like 0000:1b:00.0")
        domain, bus, device = (int(part, 16) for part in match.groups())
        return domain, bus, device


class MachineDescription(Record):
    """A simulated machine.

    nvrm: first line of /proc/driver/nvidia/version, ``{driver}`` stands for the driver's version.
    majors: character devices in /proc/devices; without "nvidia-caps" the nvcaps are files below /proc only.
    capabilities: the driver has nvcaps at all.
    glvnd: the driver has vendor libraries for GLVND; otherwise the old libGL and its kin.
    compat32: 32-bit libraries are installed.
    imex_channels: which /dev/nvidia-caps-imex-channels/channel<N> exist.
    extra, without: names of libraries and programs that are there beyond, or missing from, the driver's usual set;
    ``without`` also takes paths of device nodes.
    versions: libraries left over from another driver, with its version. damage: library -> one of DAMAGES.
    platform: "" for NVIDIA's ordinary driver, else "wsl" or "tegra"; such a machine has the libraries, programs and
    nodes of ``nvc.sim.platforms`` and none of the rows above. store: below WSL, name of the driver store.
    faults: what goes wrong in NVML: "nvmlInit hang", "nvmlShutdown crash", "nvmlDeviceGetCount error 15",
    "nvmlInit slow 500" (milliseconds).
    layout: of which distribution its directories are, a key of ``nvc.sim.layouts.LAYOUTS``. graphics: "", "headless" or
    "desktop": the files of Vulkan, EGL and OpenCL, and those of the X server. drm: nvidia-drm is loaded, so that GPUs
    have DRM nodes; other_drm: bus ids of GPUs of other makers, which have theirs before them.
    pageable: whether ordinary memory of programs can lie in video memory: one of PAGEABLE.
    """

    name: str
    summary: str
    driver_version: str
    cuda_version: int
    nvrm: str
    gcc: str
    majors: dict[str, int]
    gpu_models: dict[str, GpuModel]
    gpus: tuple[GpuDescription, ...]
    capabilities: bool = True
    glvnd: bool = True
    compat32: bool = False
    modeset: bool = False
    mps: bool = False
    imex_channels: tuple[int, ...] = ()
    firmware: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    damage: dict[str, str] = {}
    faults: tuple[str, ...] = ()
    platform: str = ""
    store: str = ""
    pageable: str = "off"
    layout: str = "debian"
    graphics: str = ""
    drm: bool = False
    other_drm: tuple[str, ...] = ()

    @property
    def nvml_version(self) -> str:
        """NVML's own version: CUDA's major in front of the driver's version."""
        return f"{self.cuda_version // 1000}.{self.driver_version}"

    @property
    def caps_in_dev(self) -> bool:
        """The nvcaps have device nodes (newer drivers), not only files below /proc."""
        return self.capabilities and "nvidia-caps" in self.majors


def names(platform: str | None = None) -> tuple[str, ...]:
    """Names of the machines that come with the product, sorted; of one platform ("" is NVIDIA's ordinary driver)."""
    every = sorted(entry[:-5] for entry in os.listdir(_MACHINES) if entry.endswith(".json"))
    return tuple(name for name in every if platform is None or load(name).platform == platform)


def load(name: str) -> MachineDescription:
    """The machine called ``name``, or the one described by the file ``name`` when it ends in .json.

    Raises InputError for an unknown name and for a description that cannot be decoded.
    """
    import json

    own = name.endswith(".json")
    if not own and name not in names():
        known = f"known machines: {', '.join(names())}; or a .json file"
        raise InputError(f"unknown machine: {name}", hint=did_you_mean(name, names(), otherwise=known))
    path = name if own else os.path.join(_MACHINES, f"{name}.json")
    try:
        with open(path, encoding="utf-8") as file:
            machine = MachineDescription.from_data(json.load(file))
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}", hint="nvc-py sim describe h200 --json shows a complete one") from error
    return checked(machine)


def checked(machine: MachineDescription) -> MachineDescription:
    """``machine`` itself. Raises InputError for an invalid description."""
    from nvc.sim.checks import check

    try:
        check(machine)
    except DecodeError as error:
        raise InputError(f"machine {machine.name}: {error}") from error
    return machine
