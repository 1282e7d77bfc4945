"""GPUs and their MIG devices: NVML's facts joined with those of /proc (libnvidia-container.md 3.8, 3.9)."""

from __future__ import annotations

import os

from nvc.base.errors import reason
from nvc.driver import tables
from nvc.driver.drm import drm_nodes
from nvc.driver.locate import host_path, resolve
from nvc.driver.nvcaps import MIG_MINORS
from nvc.driver.places import CAPABILITIES, GPUS, gpu_node
from nvc.formats.procfs import pci_address
from nvc.model import NVCAPS_DEV, NVCAPS_NONE, Gpu, MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.driver.facts import NvmlGpu, NvmlMig
    from nvc.driver.nvcaps import Nvcaps
    from nvc.model import Host


def find_gpus(host: Host, facts: Sequence[NvmlGpu], nvcaps: Nvcaps) -> tuple[list[Gpu], list[str]]:
    """The GPUs in NVML's order, and warnings. Raises DetectionError when a MIG device's nvcap cannot be determined."""
    directories, warnings = _directories(host.nodes)
    gpus = []
    for fact in facts:
        address = (fact.domain, fact.bus, fact.device)
        if address not in directories:
            warnings.append(f"missing {GPUS} entry of GPU {fact.index} ({fact.uuid})")
        caps_path = f"{CAPABILITIES}/gpu{fact.minor}"
        bus_id = f"{fact.domain:08x}:{fact.bus:02x}:{fact.device:02x}.0"
        directory = directories.get(address, "")
        if fact.migs and nvcaps.style == NVCAPS_NONE:
            warnings.append(f"GPU {fact.index} has MIG devices, but there is no {CAPABILITIES} below the driver root")
        gpus.append(
            Gpu(
                fact.index,
                fact.minor,
                fact.name,
                tables.BRANDS.get(fact.brand, "Unknown"),
                fact.uuid,
                bus_id,
                fact.arch,
                gpu_node(fact.minor),
                directory,
                fact.mig_capable,
                caps_path if fact.mig_capable else "",
                tuple(_mig_device(mig, f"{caps_path}/mig", nvcaps) for mig in fact.migs),
                nvcaps.of_gpu(fact.minor) if fact.mig_capable else (),
                memory=fact.memory,
                drm=drm_nodes(host, bus_id, directory),
            )
        )
    if nvcaps.problem and nvcaps.style == NVCAPS_DEV:
        warnings.append(f"{nvcaps.problem}; MIG cannot be configured or monitored from containers without {MIG_MINORS}")
    return gpus, warnings


def _mig_device(fact: NvmlMig, directory: str, nvcaps: Nvcaps) -> MigDevice:
    instance = f"{directory}/gi{fact.gi}"
    access = nvcaps.access(instance), nvcaps.access(f"{instance}/ci{fact.ci}")
    # NVML's name is that of the GPU, " MIG " and the profile.
    return MigDevice(fact.index, fact.uuid, fact.gi, fact.ci, *access, profile=fact.name.partition(" MIG ")[2])


def _directories(root: str) -> tuple[dict[tuple[int, int, int], str], list[str]]:
    """PCI domain, bus and device -> driver path of the GPU's directory.

    Numbers are compared, not names: the kernel prints the domain with at least four digits and up to eight.
    """
    try:
        names = os.listdir(host_path(root, resolve(root, GPUS)))
    except OSError as error:
        return {}, [f"missing {GPUS}: {reason(error)}"]
    found = {}
    for name in sorted(names):
        address = pci_address(name)
        if address is not None:
            found[(address.domain, address.bus, address.device)] = f"{GPUS}/{name}"
    return found, []
