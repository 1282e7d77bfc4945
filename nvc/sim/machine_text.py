"""The description as the simulated NVML reads it: the writer of the format in ``native/sim/machine.h``."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.sim.caps import ci_access, gi_access
from nvc.sim.description import PAGEABLE, GpuDescription, MachineDescription, MigLayout
from nvc.sim.platforms import CONTROL, store

FORMAT = 1
#: MACHINE_TEXT_LIMIT of native/sim/machine.h, bytes.
LIMIT = 128 * 1024


def machine_text(machine: MachineDescription, *, nodes: bool) -> str:
    """The whole text of a checked description.

    nodes: the machine has device nodes, so NVML shows a GPU only to a process that can open its node.
    Raises InputError when the text is longer than the C side reads.
    """
    lines = [
        f"nvc-sim-machine={FORMAT}",
        f"name={machine.name}",
        f"driver={machine.driver_version}",
        f"nvml={machine.nvml_version}",
        f"cuda={machine.cuda_version}",
        f"nodes={int(nodes)}",
    ]
    if machine.pageable != PAGEABLE[0]:
        lines.append(f"pageable={machine.pageable}")
    if machine.platform:
        lines.append(f"control={CONTROL[machine.platform][0]}")
    if machine.store:
        lines.append(f"store={store(machine)}")
    lines += [f"fault={fault}" for fault in machine.faults]
    for index, gpu in enumerate(machine.gpus):
        lines += _gpu_lines(machine, gpu, index)
    lines.append(f"end={len(machine.gpus)}")
    text = "\n".join(lines) + "\n"
    if len(text) > LIMIT:
        raise InputError(f"machine {machine.name}: its description is longer than {LIMIT} bytes")
    return text


def _gpu_lines(machine: MachineDescription, gpu: GpuDescription, index: int) -> list[str]:
    model = machine.gpu_models[gpu.model]
    domain, bus, device = gpu.pci
    major, _, minor = model.arch.partition(".")
    lines = [
        f"gpu={index}",
        f"uuid={gpu.uuid}",
        f"model={gpu.model}",
        f"node={CONTROL[machine.platform][1] if machine.platform else f'/dev/nvidia{gpu.minor}'}",
        f"minor={gpu.minor}",
        f"brand={model.brand}",
        f"domain={domain}",
        f"bus={bus}",
        f"device={device}",
        f"pci_id={model.pci_id}",
        f"pci_subsystem={model.pci_subsystem}",
        f"arch_major={major}",
        f"arch_minor={minor}",
        f"mig_capable={int(model.mig_capable)}",
        f"mig_enabled={int(gpu.mig_enabled)}",
        f"memory={model.memory << 20}",
        f"memory_reserved={model.memory_reserved << 20}",
    ]
    for number, mig in enumerate(gpu.mig):
        lines += _mig_lines(machine, gpu, mig, number)
    return lines


def _mig_lines(machine: MachineDescription, gpu: GpuDescription, mig: MigLayout, number: int) -> list[str]:
    whole, compute = mig.slices
    return [
        f"mig={number}",
        f"uuid={mig.uuid}",
        f"profile={mig.profile}",
        f"gi_access={gi_access(gpu.minor, mig.gi).usable(machine.caps_in_dev)}",
        f"ci_access={ci_access(gpu.minor, mig.gi, mig.ci).usable(machine.caps_in_dev)}",
        f"gi={mig.gi}",
        f"ci={mig.ci}",
        f"gi_slices={whole}",
        f"ci_slices={compute}",
        f"memory={mig.memory}",
    ]
