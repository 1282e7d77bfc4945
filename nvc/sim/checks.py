"""Checks of a description beyond its types. Its names become parts of paths and of lines of text."""

from __future__ import annotations

import re

from nvc.base.record import DecodeError
from nvc.driver.tables import STORE_FILES
from nvc.model import TEGRA, WSL
from nvc.sim import faults
from nvc.sim.description import BUS_ID, DAMAGES, GRAPHICS, PAGEABLE, GpuDescription, MachineDescription
from nvc.sim.files import EXTRA_BINARIES, LIBRARIES, known_names
from nvc.sim.layouts import LAYOUTS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")
_ARCH = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_UUID = re.compile(r"[A-Za-z0-9/-]{1,95}")
_MODEL = re.compile(r"[ -~]{1,95}")
_LINE = re.compile(r"[ -~]{1,200}")
#: Below /run only: /var/run of the machine is an absolute link, which would lead to this computer's /run.
_SOCKET = re.compile(r"/run/[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*")
_NODE = re.compile(r"/dev/nv[a-z0-9/-]*")
PLATFORMS = ("", WSL, TEGRA)
#: The kernel knows 12 bits of major and 20 of minor; the driver 254 GPUs, NVML 64, and 7 MIG devices on each.
_MAJORS, _GPU_MINORS, _GPUS, _MIGS, _FAULTS, _CHANNELS = range(1, 4096), range(254), 64, 7, 8, range(1 << 20)


def check(machine: MachineDescription) -> None:
    """Raise DecodeError, with the field, for the first invalid value; InputError for a fault."""
    _match(_NAME, machine.name, "name")
    _match(_VERSION, machine.driver_version, "driver_version")
    if machine.platform not in PLATFORMS:
        raise DecodeError(f"platform: {machine.platform!r} must be one of {', '.join(filter(None, PLATFORMS))}")
    if machine.platform:
        _check_platform(machine)
    else:
        _match(_LINE, machine.nvrm, "nvrm")
        _match(_LINE, machine.gcc, "gcc")
    _range(range(1000, 1000000), machine.cuda_version, "cuda_version")
    for name, major in machine.majors.items():
        _match(_NAME, name, "majors")
        _range(_MAJORS, major, f"majors.{name}")
    for name, model in machine.gpu_models.items():
        _match(_MODEL, name, "gpu_models")
        _match(_ARCH, model.arch, f"gpu_models.{name}.arch")
        for field in ("brand", "pci_id", "pci_subsystem"):
            _range(range(1 << 32), getattr(model, field), f"gpu_models.{name}.{field}")
        _range(range(1 << 40), model.memory, f"gpu_models.{name}.memory")
        _range(range(model.memory + 1), model.memory_reserved, f"gpu_models.{name}.memory_reserved")
    if machine.pageable not in PAGEABLE:
        raise DecodeError(f"pageable: {machine.pageable!r} must be one of {', '.join(PAGEABLE)}")
    for field, allowed in (("layout", tuple(LAYOUTS)), ("graphics", GRAPHICS)):
        if getattr(machine, field) not in allowed:
            raise DecodeError(f"{field}: {getattr(machine, field)!r} must be one of {', '.join(filter(None, allowed))}")
    for bus_id in machine.other_drm:
        _match(BUS_ID, bus_id, "other_drm")
    _check_gpus(machine)
    _check_files(machine)


def _check_platform(machine: MachineDescription) -> None:
    if machine.platform == WSL:
        _match(_NAME, machine.store, "store")
    if machine.platform == TEGRA and len(machine.gpus) != 1:
        raise DecodeError("gpus: a Tegra has one")
    for field in (
        "compat32",
        "mps",
        "imex_channels",
        "firmware",
        "sockets",
        "extra",
        "versions",
        "damage",
        "graphics",
        "drm",
    ):
        if getattr(machine, field):
            raise DecodeError(f"{field}: not on a machine of platform {machine.platform}")


def _check_gpus(machine: MachineDescription) -> None:
    _range(range(_GPUS + 1), len(machine.gpus), "number of gpus")
    seen: set[object] = set()
    for index, gpu in enumerate(machine.gpus):
        where = f"gpus[{index}]"
        if gpu.model not in machine.gpu_models:
            raise DecodeError(f"{where}.model: {gpu.model!r} is not in gpu_models")
        _range(_GPU_MINORS, gpu.minor, f"{where}.minor")
        for field in ("minor", "uuid", "bus_id"):
            value = getattr(gpu, field)
            if (field, value) in seen:
                raise DecodeError(f"{where}.{field}: {value} is a duplicate")
            seen.add((field, value))
        _match(_UUID, gpu.uuid, f"{where}.uuid")
        _ = gpu.pci
        _check_mig(gpu, where, capable=machine.gpu_models[gpu.model].mig_capable)


def _check_mig(gpu: GpuDescription, where: str, *, capable: bool) -> None:
    if gpu.mig_enabled and not capable:
        raise DecodeError(f"{where}.mig_enabled: this model has no MIG")
    if gpu.mig and not gpu.mig_enabled:
        raise DecodeError(f"{where}.mig: MIG devices, but mig_enabled is false")
    _range(range(_MIGS + 1), len(gpu.mig), f"{where}: number of MIG devices")
    for mig in gpu.mig:
        _match(_UUID, mig.uuid, f"{where}.mig.uuid")
        _range(range(15), mig.gi, f"{where}.mig.gi")
        _range(range(8), mig.ci, f"{where}.mig.ci")
        _ = mig.slices


def _check_files(machine: MachineDescription) -> None:
    names = known_names() | set(STORE_FILES if machine.platform == WSL else ())
    libraries = {row.name for row in LIBRARIES}
    for name in machine.extra:
        if name not in libraries and name not in EXTRA_BINARIES:
            raise DecodeError(f"extra: {name!r} is not a known library or program")
    for name in machine.without:
        if name not in names and not _NODE.fullmatch(name):
            raise DecodeError(f"without: {name!r} is not a known library, program or device node")
    for name, version in machine.versions.items():
        _match(_VERSION, version, f"versions.{name}")
    for name in (*machine.versions, *machine.damage):
        if name not in libraries:
            raise DecodeError(f"versions, damage: {name!r} is not a known library")
    for name, damage in machine.damage.items():
        if damage not in DAMAGES:
            raise DecodeError(f"damage.{name}: {damage!r} must be one of {', '.join(DAMAGES)}")
    for path in machine.sockets:
        _match(_SOCKET, path, "sockets")
    for name in machine.firmware:
        _match(_NAME, name, "firmware")
    for fault in machine.faults:
        faults.check(fault, f"machine {machine.name}: faults")
    _range(range(_FAULTS + 1), len(machine.faults), "number of faults")
    for channel in machine.imex_channels:
        _range(_CHANNELS, channel, "imex_channels")
    if machine.imex_channels and "nvidia-caps-imex-channels" not in machine.majors:
        raise DecodeError("imex_channels: majors has no nvidia-caps-imex-channels")


def _match(pattern: re.Pattern[str], text: str, where: str) -> None:
    if not pattern.fullmatch(text):
        raise DecodeError(f"{where}: {text!r} does not match {pattern.pattern}")


def _range(allowed: range, value: int, where: str) -> None:
    if value not in allowed:
        raise DecodeError(f"{where}: {value} is not in {allowed.start}..{allowed.stop - 1}")
