"""Checks of the kernel module, NVML, firmware and related services."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError
from nvc.doctor.finding import Finding, error, note, ok, warning
from nvc.driver.binaries import find_ipcs
from nvc.driver.nvcaps import MIG_MINORS
from nvc.driver.pageable import ADVICE
from nvc.driver.places import DRIVER, IMEX_MAJOR, platform
from nvc.driver.tables import FIRMWARE_DIRECTORY
from nvc.formats.procfs import char_majors, nvrm_version
from nvc.model import TEGRA, DriverOptions
from nvc.request.injection import NODE_CONFIG, mps_user

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

LOAD = "sudo nvc-py --load-kmods info"
RELOAD = "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia  # or reboot"
#: Of the kernel: where it looks for firmware before /lib/firmware.
FIRMWARE_PATH = "/sys/module/firmware_class/parameters/path"
_FOREIGN = "a path that another user can make or replace is given to no container: it could be any file of the host"
_GPU_CLASSES = ("0x0300", "0x0302")


def version(probe: Probe) -> str:
    """Of the loaded kernel module, "" without one."""
    return nvrm_version(probe.driver(f"{DRIVER}/version").text())


def majors(probe: Probe) -> dict[str, int]:
    """Name -> major of the character devices that the kernel has."""
    return char_majors(probe.system("/proc/devices").text())


def loaded(probe: Probe) -> Iterator[Finding]:
    found = version(probe)
    if found:
        yield ok(f"kernel module {found} is loaded")
        return
    if probe.system("/dev/dxg").exists():
        yield ok("Windows' driver serves this machine (WSL2)")
        return
    if platform(probe.host) == TEGRA:
        yield ok("Tegra's own driver serves this machine, by mount lists")
        return
    text = probe.driver(f"{DRIVER}/version").text()
    if text:
        yield error(f"{DRIVER}/version has no driver version: {text.splitlines()[0][:80]!r}", RELOAD)
    elif probe.system("/sys/module/nvidia").exists():
        yield error(f"the nvidia module is loaded, but {DRIVER}/version is missing", "sudo mount -t proc proc /proc")
    elif probe.system("/sys/module/nouveau").exists():
        yield error(
            "the GPU is bound to the nouveau driver",
            "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf; "
            "sudo update-initramfs -u; sudo reboot",
        )
    else:
        yield error("no NVIDIA driver is loaded", "sudo modprobe nvidia  # install the driver first if that fails")


def gpus(probe: Probe) -> Iterator[Finding]:
    """NVIDIA GPUs on the bus, against those that are bound to the driver."""
    base = probe.system("/sys/bus/pci/devices")
    present = []
    for address in base.names():
        vendor = base.below(f"{address}/vendor").text().strip()
        if vendor == "0x10de" and base.below(f"{address}/class").text().startswith(_GPU_CLASSES):
            present.append(address)
    taken = probe.driver(f"{DRIVER}/gpus").names()
    left = [address for address in present if address.lower() not in {name.lower() for name in taken}]
    if not version(probe):
        if present:
            yield note(f"{len(present)} NVIDIA GPUs on the PCI bus, and no driver for them")
        return
    for address in left:
        yield error(
            f"GPU {address} is not bound to the driver",
            f"sudo dmesg | grep -i -e nvrm -e {address}",
            "the module is too old or of the wrong kind for this GPU, a virtual machine has the GPU, or it is broken",
        )
    if not taken:
        yield error("the driver has no GPU", "lspci -d 10de: -nnk; sudo dmesg | grep -i nvrm")
    elif not left:
        yield ok(f"the driver has {len(taken)} GPU{'s' if len(taken) > 1 else ''}")


def modules(probe: Probe) -> Iterator[Finding]:
    if not version(probe):
        return
    known = majors(probe)
    if "nvidia-uvm" not in known:
        yield error("the module nvidia-uvm is not loaded", LOAD)
    else:
        yield ok(f"nvidia-uvm has device major {known['nvidia-uvm']}")


def memory(probe: Probe) -> Iterator[Finding]:
    """Whether programs can use video memory that no quota counts."""
    if not version(probe):
        return
    try:
        found = probe.ask_pageable(probe.host)
    except FileNotFoundError:
        return  # without the module or its node, which other checks report
    except PermissionError:
        raise
    except OSError as problem:
        yield note(f"nvidia-uvm does not report whether pageable system memory can lie in video memory: {problem}")
        return
    advice = ADVICE.get(found)
    if advice is None:
        yield ok("the driver moves no pageable system memory into video memory")
    else:
        yield note(advice.what, advice.fix)  # matters only with shares; the agent reports it too


def answers(probe: Probe) -> Iterator[Finding]:
    """NVML, queried as for a container."""
    if not version(probe):
        return
    try:
        inventory = probe.inventory()
    except NvcError as problem:
        yield error(str(problem), f"# {problem.hint}" if problem.hint else "nvidia-smi  # says more about the driver")
        return
    count = len(inventory.gpus)
    yield ok(f"NVML answers: driver {inventory.driver.nvrm_version}, {count} GPU{'' if count == 1 else 's'}")
    # Most machines lack most of these; real faults among them have checks of their own.
    if inventory.warnings:
        some = "; ".join(inventory.warnings[:3])
        yield note(f"{len(inventory.warnings)} warnings of discovery: {some} ...", "nvc-py --debug=/dev/stdout info")


def firmware(probe: Probe) -> Iterator[Finding]:
    found = version(probe)
    if not found:
        return
    place = probe.driver(FIRMWARE_DIRECTORY.format(version=found))
    # The kernel searches the directory of its parameter first; it is set on hosts whose driver has its own directory.
    other = probe.kernel(FIRMWARE_PATH).text().strip().rstrip("/")
    if place.names() or (other and probe.driver(f"{other}/nvidia/{found}").names()):
        yield ok(f"GSP firmware of {found} is there")
    elif _running_firmware(probe) == {found}:
        yield note(f"the GPUs run GSP firmware {found}, and {place} does not have it")
    elif "Open Kernel Module" in probe.driver(f"{DRIVER}/version").text():
        yield warning(f"no GSP firmware in {place}", f"# install the firmware package of driver {found}")
    else:
        yield note(f"no GSP firmware in {place}: this driver may not need it")


def _running_firmware(probe: Probe) -> set[str]:
    """The firmware versions that the driver reports for the GPUs, or "N/A"."""
    base = probe.driver(f"{DRIVER}/gpus")
    texts = [base.below(f"{name}/information").text() for name in base.names()]
    return {line.partition(":")[2].strip() for text in texts for line in text.splitlines() if "GPU Firmware:" in line}


def persistence(probe: Probe) -> Iterator[Finding]:
    if not version(probe):
        return
    if probe.driver("/run/nvidia-persistenced/socket").exists():
        yield ok("nvidia-persistenced is running")
    else:
        yield note(
            "nvidia-persistenced is not running",
            "sudo systemctl enable --now nvidia-persistenced  # or: sudo nvidia-smi -pm 1",
        )


def extras(probe: Probe) -> Iterator[Finding]:
    """Devices and services that containers must request by name."""
    if not version(probe):
        return
    switches = [name for name in probe.driver("/dev").names() if name.startswith("nvidia-nvswitch")]
    manager = probe.driver("/run/nvidia-fabricmanager/socket").exists()
    if [name for name in switches if name[-1].isdigit()] and not manager:
        yield error(
            f"there are NVSwitches ({', '.join(switches[:4])}) and no fabric manager",
            "sudo systemctl enable --now nvidia-fabricmanager",
            "without it cuInit fails with 802 (system not yet initialized) on machines with NVSwitch",
        )
    channels = [name for name in probe.driver(f"/dev/{IMEX_MAJOR}").names() if name.startswith("channel")]
    nodes = set(probe.driver("/dev").names())
    endpoints, problems = find_ipcs(
        probe.host.root, os.environ, DriverOptions(mps_user=mps_user(str(probe.system(NODE_CONFIG))))
    )
    for problem in problems:
        if problem.startswith("skipping"):
            yield warning(
                problem, "ls -ld every step of that path; start the daemon as root, or name its user", _FOREIGN
            )
    offers = [
        ("fabric manager", manager, "included in `utility`"),
        (f"{len(channels)} IMEX channels", bool(channels), "NVIDIA_IMEX_CHANNELS=0 or --imex-channel 0"),
        ("MPS", any(file.server for file in endpoints), "included in `compute`"),
        ("GPUDirect Storage", any(name.startswith("nvidia-fs") for name in nodes), "NVIDIA_GDS=enabled"),
        ("GDRCopy", "gdrdrv" in nodes, "NVIDIA_GDRCOPY=enabled"),
    ]
    found = [f"{name} ({how})" for name, there, how in offers if there]
    yield ok(f"extras for containers: {', '.join(found) or 'none on this machine'}")


def imex(probe: Probe) -> Iterator[Finding]:
    """IMEX channels: available in the driver, with nodes of the right number."""
    known = majors(probe)
    place = probe.driver(f"/dev/{IMEX_MAJOR}")
    names = [name for name in place.names() if name.startswith("channel")]
    if IMEX_MAJOR not in known:
        if names:
            yield warning(f"{place} has nodes, and the driver has no IMEX channels", f"sudo rm -r {place}")
        return
    for name in names:
        found = place.below(name).status()
        number = name.removeprefix("channel")
        if found is None or not number.isdecimal():
            continue
        actual, expected = (os.major(found.st_rdev), os.minor(found.st_rdev)), (known[IMEX_MAJOR], int(number))
        if actual != expected:
            yield error(
                f"{place.below(name)} is {actual[0]}:{actual[1]}, the driver's channel is {expected[0]}:{expected[1]}",
                f"sudo rm {place.below(name)}; sudo nvidia-modprobe -i {number}",
            )
    if names:
        yield ok(f"{len(names)} IMEX channels have nodes")


def minors_readable(probe: Probe) -> Iterator[Finding]:
    """mig-minors, which has the number of every MIG node."""
    from nvc.formats import FormatError
    from nvc.formats.procfs import mig_minors

    if "nvidia-caps" not in majors(probe) or not version(probe):
        return
    place = probe.system(MIG_MINORS)
    text = place.text()
    if not text:
        yield warning(f"{place} is missing", "sudo mount -t proc proc /proc  # a container's /proc may lack it")
        return
    try:
        yield ok(f"{MIG_MINORS} has {len(mig_minors(text))} nodes")
    except FormatError as problem:
        yield warning(f"{place}: {problem}", RELOAD)
