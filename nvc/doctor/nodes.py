"""Checks of the driver's device nodes."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc.doctor.driver import LOAD, majors, version
from nvc.doctor.finding import Finding, error, note, ok, skipped, warning
from nvc.driver import tables
from nvc.driver.kmods import capability_files
from nvc.driver.places import CAPABILITIES, CAPS_MAJOR, DRIVER, GPUS, cap_node, gpu_node
from nvc.driver.served import served_nodes
from nvc.formats.procfs import FileAttributes, file_attributes, gpu_information
from nvc.model import DeviceNode

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

#: Not needed by the driver; only containers that request them fail without.
_OPTIONAL = ("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools")
_GPU_LIMIT = 255


def expected(probe: Probe) -> list[DeviceNode]:
    """The nodes that must exist, with the driver's numbers: control, every GPU, those of the loaded modules."""
    known = majors(probe)
    found = []
    for row in tables.NODES:
        major = row.major if row.major >= 0 else known.get(row.major_name, -1)
        if major >= 0 and (row.major < 0 or row.assumed or row.major_name in known):
            found.append(DeviceNode(row.path, major, row.minor))
    for address in probe.driver(GPUS).names():
        minor = gpu_information(probe.driver(f"{GPUS}/{address}/information").text()).get("Device Minor", "")
        if minor.isdecimal() and len(minor) < 4:
            found.append(gpu_node(int(minor)))
    return found


def mig(probe: Probe) -> list[DeviceNode]:
    """The nodes of the MIG instances that exist."""
    major = majors(probe).get(CAPS_MAJOR)
    if major is None:
        return []
    base = str(probe.driver(CAPABILITIES))
    found = []
    for path in capability_files(base, _GPU_LIMIT):
        minor = file_attributes(probe.driver(CAPABILITIES + path.removeprefix(base)).text()).minor
        if minor >= 0:
            found.append(cap_node(major, minor))
    return found


def _without_nodes(probe: Probe) -> bool:
    """A simulated machine that was made without root has none, as its description says."""
    return bool(probe.host.simulated) and "\nnodes=0" in probe.driver("/etc/nvc-sim/machine").text()


def _served(probe: Probe) -> bool:
    """The nodes of a simulated machine whose driver was started are files."""
    return bool(served_nodes(probe.host))


def present(probe: Probe) -> Iterator[Finding]:
    if not version(probe):
        return
    if _without_nodes(probe):
        yield note("this simulated machine was made without device nodes", "# make it again as root")
        return
    missing = [node.path for node in expected(probe) if not probe.driver(node.path).exists()]
    for path in missing:
        if path in _OPTIONAL:
            yield note(f"{path} is missing: containers start without it", LOAD)
        else:
            yield error(f"{path} is missing", LOAD)
    if not missing:
        yield ok(f"{len(expected(probe))} device nodes are there")


def numbers(probe: Probe) -> Iterator[Finding]:
    """A node with another number is a device of another driver."""
    if not version(probe):
        return
    if _served(probe):
        yield skipped("the nodes are files that a simulated driver serves (nvc-py sim stop ends it)")
        return
    wrong = False
    for node in expected(probe):
        found = probe.driver(node.path).status()
        if found is None:
            continue
        place = shlex.quote(str(probe.driver(node.path)))
        if not stat.S_ISCHR(found.st_mode):
            wrong = True
            yield error(f"{node.path} is not a character device", f"sudo rm -r {place}; {LOAD}")
        elif (actual := (os.major(found.st_rdev), os.minor(found.st_rdev))) != (node.major, node.minor):
            wrong = True
            text = f"{node.path} is {actual[0]}:{actual[1]}, the driver's is {node.major}:{node.minor}"
            yield error(text, f"sudo rm {place}; {LOAD}")
    if not wrong and not _without_nodes(probe):
        yield ok("the nodes have the driver's numbers")


def permissions(probe: Probe) -> Iterator[Finding]:
    """Against those in the driver's parameters."""
    if not version(probe):
        return
    wanted: FileAttributes = file_attributes(probe.driver(f"{DRIVER}/params").text())
    wrong = False
    for node in expected(probe):
        found = probe.driver(node.path).status()
        if found is None or not stat.S_ISCHR(found.st_mode):
            continue
        mode = stat.S_IMODE(found.st_mode)
        place = shlex.quote(str(probe.driver(node.path)))
        if mode & wanted.mode != wanted.mode:
            wrong = True
            yield warning(f"{node.path} has mode {mode:o}; the driver's parameters say {wanted.mode:o}",
                          f"sudo chmod {wanted.mode:o} {place}")  # fmt: skip
        elif (found.st_uid, found.st_gid) != (wanted.uid, wanted.gid) and mode & 0o006 != 0o006:
            wrong = True
            yield warning(
                f"{node.path} belongs to {found.st_uid}:{found.st_gid}; "
                f"the driver's parameters say {wanted.uid}:{wanted.gid}",
                f"sudo chown {wanted.uid}:{wanted.gid} {place}",
            )
    if wrong:
        return
    if wanted.mode & 0o006 != 0o006:
        yield note(
            f"nodes have mode {wanted.mode:o}, group {wanted.gid}: users outside of that group cannot use GPUs",
            "podman run --group-add keep-groups IMAGE  # rootless, for users in the group",
        )
    elif not _without_nodes(probe):
        yield ok("the nodes have the permissions of the driver's parameters")


def links(probe: Probe) -> Iterator[Finding]:
    """/dev/char/MAJOR:MINOR: systemd looks the device rules of a container up there."""
    if not version(probe):
        return
    names, commands = [], []
    for node in expected(probe):
        link = probe.driver(f"/dev/char/{node.major}:{node.minor}")
        if probe.driver(node.path).exists() and not link.exists():
            names.append(link.path)
            commands.append(f"sudo ln -sf ..{node.path.removeprefix('/dev')} {shlex.quote(str(link))}")
    if not names:
        yield note("no nodes, no links") if _without_nodes(probe) else ok("the links in /dev/char are there")
        return
    text = f"no link {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}"
    if not probe.has_systemd():
        yield note(f"{text}: only systemd needs them, and it is not running here")
    elif probe.host.root == "/":
        yield warning(text, f"{LOAD}  # after every boot; it creates the links too")
    else:
        yield warning(text, "; ".join(commands))


def mig_nodes(probe: Probe) -> Iterator[Finding]:
    if not version(probe) or _without_nodes(probe) or _served(probe):
        return
    wanted = mig(probe)
    wrong = False
    for node in wanted:
        found = probe.driver(node.path).status()
        place = shlex.quote(str(probe.driver(node.path)))
        if found is None:
            wrong = True
            yield error(f"{node.path} is missing: MIG devices with it cannot be used", LOAD)
        elif (os.major(found.st_rdev), os.minor(found.st_rdev)) != (node.major, node.minor):
            wrong = True
            actual = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            text = f"{node.path} is {actual}, the driver's is {node.major}:{node.minor}"
            yield error(text, f"sudo rm {place}; {LOAD}")
    if wanted and not wrong:
        yield ok(f"{len(wanted)} nvcap nodes are there")


def mig_devices(probe: Probe) -> Iterator[Finding]:
    """GPU and compute instances below /proc against those of NVML."""
    inventory = probe.known_inventory()
    if inventory is None:
        return
    for gpu in inventory.gpus:
        base = probe.driver(f"{CAPABILITIES}/gpu{gpu.minor}/mig")
        instances = [name for name in base.names() if name.startswith("gi") and name[2:].isdecimal()]
        used = {f"gi{device.gi}" for device in gpu.mig_devices}
        for name in instances:
            if name not in used:
                number = name.removeprefix("gi")
                yield warning(
                    f"GPU {gpu.index}: GPU instance {number} has no compute instance, so no process can use it",
                    f"sudo nvidia-smi mig -i {gpu.index} -gi {number} -cci",
                )
    count = sum(len(gpu.mig_devices) for gpu in inventory.gpus)
    if count:
        yield ok(f"{count} MIG devices")
