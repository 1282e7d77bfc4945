"""Checks of CDI specs: valid, up to date with the machine, refreshed when it changes."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc.cdi import files
from nvc.cdi.validate import advice
from nvc.doctor.driver import majors, version
from nvc.doctor.finding import Finding, error, note, ok, warning
from nvc.doctor.hooks import hook_files
from nvc.doctor.probe import Place

if TYPE_CHECKING:
    from nvc.cdi.spec import CdiEdits, CdiSpec
    from nvc.doctor.probe import Probe
    from nvc.model import Gpu

#: In the last directory of DIRECTORIES, which a boot empties: a spec is only valid until then.
SPEC = f"{files.DIRECTORIES[-1]}/nvidia.yaml"
GENERATE = f"sudo nvc-py cdi generate --output {SPEC}"
_VERSIONED = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$|/nvidia/(\d{3,}\.\d+(?:\.\d+)?)/")
_UNITS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_REFRESH = re.compile(r"(nvc|nvidia)-cdi-refresh\.service")
_GPU_CLASS = "gpu"
_ENGINES = ("docker.service", "containerd.service", "crio.service")


def _specs(probe: Probe) -> tuple[files.SpecFile, ...]:
    """Every spec that engines read. Raises PermissionError, InputError."""
    directories = []
    for directory in files.DIRECTORIES:
        place = probe.system(directory)
        place.names()  # raises PermissionError, unlike ``files.find``
        if place.exists():
            directories.append(place.actual())
    return files.find(directories)


def _gpu_specs(probe: Probe) -> list[tuple[str, CdiSpec]]:
    """The readable ones with NVIDIA GPUs."""
    found = [(file.path, file.spec) for file in _specs(probe) if file.spec is not None]
    return [(path, spec) for path, spec in found if "nvidia" in spec.kind]


def _all_edits(spec: CdiSpec) -> list[CdiEdits]:
    return [spec.edits, *(device.edits for device in spec.devices)]


def _regenerate(path: str) -> str:
    """What makes a spec right. Nothing refreshes one in /etc/cdi, so it would be wrong again after the next upgrade."""
    if f"{files.DIRECTORIES[0]}/" in path:
        return f"sudo rm {shlex.quote(path)}; {GENERATE}"
    return f"sudo nvc-py cdi generate --output {shlex.quote(path)}"


def _status(probe: Probe, path: str) -> os.stat_result | None:
    """Of a host path in a spec; a simulated machine's begins with the machine's directory."""
    root = probe.host.system
    if root != "/" and path.startswith(root + "/"):
        path = path[len(root) :]
    return probe.system(path).status()


def readable(probe: Probe) -> Iterator[Finding]:
    found = _specs(probe)
    for file in found:
        if file.problems:
            more = f" (and {len(file.problems) - 1} more)" if len(file.problems) > 1 else ""
            yield error(f"{file.path}: {file.problems[0]}{more}", _regenerate(file.path) if "nvidia" in file.path else
                        f"sudo mv {shlex.quote(file.path)} /root/")  # fmt: skip
    for text in files.listing(file for file in found if not file.problems).warnings:
        yield warning(text, f"{GENERATE}  # after removing one of the files")
    if not any(file.problems for file in found):
        yield ok(f"{len(found)} spec files can be read")


def there(probe: Probe) -> Iterator[Finding]:
    """Whether any device is defined."""
    specs = _gpu_specs(probe)
    if not specs:
        if version(probe):
            yield note(f"no CDI spec has NVIDIA GPUs in {' or '.join(files.DIRECTORIES)}", GENERATE)
        return
    names = [f"{spec.kind}={device.name}" for _, spec in specs for device in spec.devices]
    yield ok(f"{len(names)} CDI devices: {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}")


def paths(probe: Probe) -> Iterator[Finding]:
    """Everything that a spec names on the host."""
    for path, spec in _gpu_specs(probe):
        wanted: dict[str, str] = {}
        for edits in _all_edits(spec):
            wanted.update({mount.host_path: "mount" for mount in edits.mounts})
            wanted.update({node.host_path or node.path: "node" for node in edits.device_nodes})
        gone = [f"{what} {name}" for name, what in wanted.items() if _status(probe, name) is None]
        hooks = dict.fromkeys(hook.path for edits in _all_edits(spec) for hook in edits.hooks)
        lost = [name for name in hooks if not _has_program(probe, name)]
        if gone:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            yield error(f"{path} names what does not exist: {gone[0]}{more}", _regenerate(path))
        for name in lost:
            yield error(
                f"{path} names a hook that does not exist: {name}",
                f"sudo make install; {_regenerate(path)}  # or install the package with {name.rpartition('/')[2]}",
            )
        if not gone and not lost:
            yield ok(f"{path}: all {len(wanted) + len(hooks)} paths exist")


def _has_program(probe: Probe, path: str) -> bool:
    """Hooks run on this computer, also for the containers of a simulated machine."""
    return bool(probe.program(path)) or (bool(probe.host.simulated) and Place("/", path).exists())


def driver_version(probe: Probe) -> Iterator[Finding]:
    """Library names carry the version of the driver that the spec was made for."""
    kernel = version(probe)
    if not kernel:
        return
    for path, spec in _gpu_specs(probe):
        named: set[str] = set()
        for edits in _all_edits(spec):
            for mount in edits.mounts:
                match = _VERSIONED.search(mount.host_path)
                named |= {match[1] or match[2]} if match else set()
        if named and kernel not in named:
            yield error(f"{path} was made for driver {', '.join(sorted(named))}; {kernel} is loaded", _regenerate(path))
        elif named:
            yield ok(f"{path} was made for driver {kernel}")


def numbers(probe: Probe) -> Iterator[Finding]:
    """Device numbers written into a spec; those of nvidia-uvm and nvidia-caps may change with every boot."""
    for path, spec in _gpu_specs(probe):
        written = [node for edits in _all_edits(spec) for node in edits.device_nodes if node.major]
        wrong = []
        for node in written:
            found = _status(probe, node.host_path or node.path)
            if found is None or not stat.S_ISCHR(found.st_mode):
                continue
            if (os.major(found.st_rdev), os.minor(found.st_rdev)) != (node.major, node.minor):
                wrong.append(f"{node.path} {node.major}:{node.minor}")
        if wrong:
            yield error(f"{path} has device numbers of another boot: {', '.join(wrong[:3])}", _regenerate(path))
        elif written and path.startswith(str(probe.system(files.DIRECTORIES[0]))):
            yield warning(
                f"{path} has device numbers, and is still there after a boot",
                f"sudo rm {shlex.quote(path)}; {GENERATE}",
            )
        elif written and "nvidia-uvm" in majors(probe):
            yield ok(f"{path}: device numbers are valid")


def devices(probe: Probe) -> Iterator[Finding]:
    """The devices of a spec against the GPUs and MIG devices of the machine."""
    inventory = probe.known_inventory()
    if inventory is None:
        return
    for path, spec in _gpu_specs(probe):
        if not spec.kind.endswith(f"/{_GPU_CLASS}") or spec.kind.startswith("management."):
            continue
        known = {name: gpu for gpu in inventory.gpus for name in _names(gpu)}
        offered = {device.name for device in spec.devices}
        gone = sorted(offered - set(known) - {"all"})
        lacking = [gpu for gpu in inventory.gpus if not offered & set(_names(gpu))]
        if gone:
            yield error(f"{path} has devices that do not exist: {', '.join(gone[:4])}", _regenerate(path))
        for gpu in lacking:
            yield warning(f"{path} lacks GPU {gpu.index} ({gpu.uuid})", _regenerate(path))
        if not gone and not lacking:
            yield ok(f"{path} has every GPU and MIG device")


def _names(gpu: Gpu) -> list[str]:
    """Every name a device of this GPU may have, by each strategy."""
    if not gpu.mig_devices:
        return [str(gpu.index), gpu.uuid, f"gpu{gpu.index}"]
    return [
        name
        for mig in gpu.mig_devices
        for name in (f"{gpu.index}:{mig.index}", mig.uuid, f"mig{gpu.index}:{mig.index}")
    ]


def hook_environment(probe: Probe) -> Iterator[Finding]:
    specs = _gpu_specs(probe)
    wrong = False
    for path, spec in specs:
        for problem in list(advice(spec))[:1]:
            wrong = True
            yield error(f"{path}: {problem}", _regenerate(path))
    if specs and not wrong:
        yield ok("every hook of the CDI specs has an environment")


def twice(probe: Probe) -> Iterator[Finding]:
    """A hook for every container acts on one with a CDI device too, unless the spec disables it."""
    hooks = hook_files(probe)
    specs = _gpu_specs(probe) if hooks else []
    wrong = False
    for path, spec in specs:
        if not any("NVIDIA_VISIBLE_DEVICES=void" in edits.env for edits in _all_edits(spec)):
            wrong = True
            yield warning(
                f"{hooks[0][0]} acts on containers with devices of {path} too",
                f"{_regenerate(path)}  # a spec by nvc-py disables the hook",
            )
    if specs and not wrong:
        yield ok("specs disable the hook for containers with their devices")


def refresh(probe: Probe) -> Iterator[Finding]:
    """A unit that generates the spec again before engines start."""
    if not probe.has_systemd() or not _gpu_specs(probe):
        return
    units = [
        place.below(name)
        for directory in _UNITS
        for place in (probe.system(directory),)
        for name in place.names()
        if _REFRESH.fullmatch(name)
    ]
    if not units:
        yield warning("no unit generates the CDI spec again after a boot or an upgrade of the driver",
                      GENERATE + "  # at every boot; the nvc-py package has a unit for it")  # fmt: skip
        return
    unit = units[0]
    before = unit.text()
    drop_ins = probe.system(f"/etc/systemd/system/{unit.path.rpartition('/')[2]}.d")
    before += "".join(drop_ins.below(name).text() for name in drop_ins.names() if name.endswith(".conf"))
    ordered = " ".join(line.partition("=")[2] for line in before.split("\n") if line.startswith("Before="))
    present = [name for name in _ENGINES if any(probe.system(f"{base}/{name}").exists() for base in _UNITS)]
    late = [name for name in present if name not in ordered.split()]
    if late:
        name = unit.path.rpartition("/")[2]
        yield warning(
            f"{name} is not ordered before {', '.join(late)}: at boot they may start without a spec",
            f"sudo mkdir -p /etc/systemd/system/{name}.d; printf '[Unit]\\nBefore={' '.join(_ENGINES)}\\n' | "
            f"sudo tee /etc/systemd/system/{name}.d/10-container-engines.conf; sudo systemctl daemon-reload",
        )
    else:
        yield ok(f"{unit.path} generates the spec at boot")
