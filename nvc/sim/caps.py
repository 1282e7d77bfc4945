"""The nvcaps of a simulated driver: names, minors and modes as the kernel module gives them.

Source: nv-caps.c; libnvidia-container.md 3.8.
"""

from __future__ import annotations

from nvc.base.record import Record
from nvc.sim.description import MachineDescription

#: Sizes of the table that the kernel module counts minors through, whatever the machine has.
GPUS, GPU_INSTANCES, COMPUTE_INSTANCES = 32, 15, 8
_DIRECTORY = "/proc/driver/nvidia/capabilities"


class Cap(Record):
    """One capability. name: its line in mig-minors or sys-minors; path: its file below /proc; mode: permission bits."""

    name: str
    path: str
    minor: int
    mode: int

    @property
    def node(self) -> str:
        """Path of its device node."""
        return f"/dev/nvidia-caps/nvidia-cap{self.minor}"

    def usable(self, in_dev: bool) -> str:
        """What a process must be able to open to have this capability."""
        return self.node if in_dev else self.path


CONFIG = Cap("config", f"{_DIRECTORY}/mig/config", 1, 0o400)
MONITOR = Cap("monitor", f"{_DIRECTORY}/mig/monitor", 2, 0o444)


def _minor(gpu: int, gi: int) -> int:
    return 3 + gpu * GPU_INSTANCES * (COMPUTE_INSTANCES + 1) + gi * (COMPUTE_INSTANCES + 1)


#: The first minor behind the table: management of IMEX domains.
FABRIC_IMEX = Cap("fabric-imex-mgmt", f"{_DIRECTORY}/fabric-imex-mgmt", _minor(GPUS, 0), 0o400)


def gi_access(gpu: int, gi: int) -> Cap:
    """Access to a GPU instance. gpu: the GPU's device minor."""
    path = f"{_DIRECTORY}/gpu{gpu}/mig/gi{gi}/access"
    return Cap(f"gpu{gpu}/gi{gi}/access", path, _minor(gpu, gi), 0o444)


def ci_access(gpu: int, gi: int, ci: int) -> Cap:
    """Access to a compute instance."""
    path = f"{_DIRECTORY}/gpu{gpu}/mig/gi{gi}/ci{ci}/access"
    return Cap(f"gpu{gpu}/gi{gi}/ci{ci}/access", path, _minor(gpu, gi) + 1 + ci, 0o444)


def present(machine: MachineDescription) -> tuple[Cap, ...]:
    """The capabilities that exist on ``machine``: the two for all of MIG, and two for each MIG device."""
    if not machine.capabilities:
        return ()
    caps = [CONFIG, MONITOR]
    for gpu in machine.gpus:
        for mig in gpu.mig:
            caps += [gi_access(gpu.minor, mig.gi), ci_access(gpu.minor, mig.gi, mig.ci)]
    return tuple(dict.fromkeys(caps))


def mig_minors() -> str:
    """Text of /proc/driver/nvidia-caps/mig-minors: the whole table, existing or not."""
    lines = [f"{cap.name} {cap.minor}" for cap in (CONFIG, MONITOR)]
    for gpu in range(GPUS):
        for gi in range(GPU_INSTANCES):
            cap = gi_access(gpu, gi)
            lines.append(f"{cap.name} {cap.minor}")
            lines += [f"{cap.name} {cap.minor}" for cap in (ci_access(gpu, gi, ci) for ci in range(COMPUTE_INSTANCES))]
    return "\n".join(lines) + "\n"
