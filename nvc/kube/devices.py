"""From this machine's GPUs to the slices that are published: as few as there can be, or one a GPU. Pure.

One a GPU for schedulers of 1.34, which compare a request with a slice's first device only (k8s.io's
dynamic-resource-allocation, allocateDevice: the index of a request's device is taken for one of the slice's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.record import Record
from nvc.kube import quantity
from nvc.kube.names import COMPUTE, COMPUTE_WHOLE, DRIVER, MEMORY, MEMORY_LEAST, MEMORY_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from nvc.model import Gpu, Inventory, MigDevice

#: Compute capability -> NVIDIA's name of the architecture; a row without the second number holds for all of the first.
ARCHITECTURES = {
    "5": "Maxwell",
    "6": "Pascal",
    "7": "Volta",
    "7.5": "Turing",
    "8": "Ampere",
    "8.9": "Ada Lovelace",
    "9": "Hopper",
    "10": "Blackwell",
    "12": "Blackwell",
}
#: Attributes that the Kubernetes project has names for (k8s.io/dynamic-resource-allocation, deviceattribute).
PCIE_ROOT, PCI_BUS_ID = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/pciBusID"
#: Key of the taint of a GPU that must get no further claim; its value is the reason.
TAINT = f"{DRIVER}/unhealthy"
#: Devices of a slice that may have taints (resource.k8s.io).
_SLICE_LIMIT = 64
#: Longest text of an attribute, and of a taint's value (a label's).
_TEXT_LIMIT, _LABEL_LIMIT = 64, 63
#: Other drivers' names are domains too; ours has no dot.
_GPU, _MIG = "gpu", "mig"


class Device(Record):
    """A device that claims are placed on.

    name: in its slice. uuid: of the GPU or MIG device. gpu: of the GPU. memory: bytes that claims can have of it; 0 for
    a MIG device, which a claim has whole.
    """

    name: str
    uuid: str
    gpu: str
    memory: int = 0

    @property
    def is_shared(self) -> bool:
        return bool(self.memory)


class Slice(Record):
    """A slice's own part. name: of the object, without the node's. devices: as the API server has them."""

    name: str
    devices: tuple[dict[str, Any], ...]


class Condition(Record):
    """What is said of the machine beside its inventory.

    guard: whether the guard can hold shares here. roots: PCI bus id -> its PCIe root. problems: uuid of a GPU -> why it
    is to get no claim, a word. effect: of the taint, NoSchedule or NoExecute.
    """

    guard: bool = False
    roots: dict[str, str] = {}
    problems: dict[str, str] = {}
    effect: str = "NoSchedule"


def devices(inventory: Inventory) -> dict[str, Device]:
    """Everything that can be allocated, by name."""
    found = [Device(_mig_name(gpu, mig), mig.uuid, gpu.uuid) for gpu in inventory.gpus for mig in gpu.mig_devices]
    found += [Device(_gpu_name(gpu), gpu.uuid, gpu.uuid, usable(gpu)) for gpu in inventory.gpus if not gpu.mig_devices]
    return {device.name: device for device in found}


def usable(gpu: Gpu) -> int:
    """Bytes of a GPU's memory that can be claimed; 0 where they are not known."""
    return gpu.memory // MEMORY_STEP * MEMORY_STEP


def slices(inventory: Inventory, condition: Condition) -> tuple[Slice, ...]:
    """One for each GPU that has something to claim."""
    made = []
    for gpu in inventory.gpus:
        rows = tuple(_mig(inventory, gpu, mig, condition) for mig in gpu.mig_devices)
        rows = rows or ((_whole(inventory, gpu, condition),) if usable(gpu) >= MEMORY_LEAST else ())
        if rows:
            made.append(Slice(_gpu_name(gpu), rows))
    return tuple(made)


def joined(rows: Iterable[Slice]) -> tuple[Slice, ...]:
    """The same devices in the same order, in as few slices as can hold them; a GPU's stay together."""
    made: list[tuple[dict[str, Any], ...]] = []
    for one in rows:
        if made and len(made[-1]) + len(one.devices) <= _SLICE_LIMIT:
            made[-1] += one.devices
        else:
            made.append(one.devices)
    return tuple(Slice(f"{_GPU}s-{number}", found) for number, found in enumerate(made))


def _gpu_name(gpu: Gpu) -> str:
    return f"{_GPU}-{gpu.index}"


def _mig_name(gpu: Gpu, mig: MigDevice) -> str:
    # By instances, not by index: that changes with every other instance.
    return f"{_MIG}-{gpu.index}-{mig.gi}-{mig.ci}"


def _whole(inventory: Inventory, gpu: Gpu, condition: Condition) -> dict[str, Any]:
    memory = quantity.write_memory(usable(gpu))
    least, step = quantity.write_memory(MEMORY_LEAST), quantity.write_memory(MEMORY_STEP)
    return {
        "name": _gpu_name(gpu),
        "allowMultipleAllocations": True,
        "attributes": _attributes(inventory, gpu, condition, type=_text(_GPU), uuid=_text(gpu.uuid)),
        "capacity": {
            # A request that names no memory has all of it: the GPU is the claim's alone.
            MEMORY: {
                "value": memory,
                "requestPolicy": {"default": memory, "validRange": {"min": least, "step": step}},
            },
            COMPUTE: {
                "value": str(COMPUTE_WHOLE),
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
            },
        },
        **_taints(gpu, condition),
    }


def _mig(inventory: Inventory, gpu: Gpu, mig: MigDevice, condition: Condition) -> dict[str, Any]:
    own = {"type": _text(_MIG), "uuid": _text(mig.uuid), "parentUUID": _text(gpu.uuid)}
    return {
        "name": _mig_name(gpu, mig),
        "attributes": _attributes(inventory, gpu, condition, **own),
        **_taints(gpu, condition),
    }


def _attributes(
    inventory: Inventory, gpu: Gpu, condition: Condition, **own: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    major = gpu.arch.partition(".")[0]
    driver = inventory.driver
    found: Mapping[str, dict[str, Any] | None] = {
        **own,
        "productName": _text(gpu.model),
        "brand": _text(gpu.brand),
        "architecture": _text(ARCHITECTURES.get(gpu.arch, ARCHITECTURES.get(major, ""))),
        "index": {"int": gpu.index},
        "driverVersion": _version(driver.nvrm_version),
        "cudaDriverVersion": _version(driver.cuda_version),
        "cudaComputeCapability": _version(gpu.arch),
        "guard": {"bool": condition.guard},
        PCI_BUS_ID: _text(bus_id(gpu)),
        PCIE_ROOT: _text(condition.roots.get(bus_id(gpu), "")),
    }
    return {name: value for name, value in found.items() if value}


def bus_id(gpu: Gpu) -> str:
    """As the kernel names it in sysfs: 0000:65:00.0; "" for what is no PCI device."""
    domain, colon, rest = gpu.bus_id.partition(":")
    return f"{domain[-4:]}:{rest}" if colon and len(domain) == 8 and domain.startswith("0000") else gpu.bus_id


def _taints(gpu: Gpu, condition: Condition) -> dict[str, list[dict[str, str]]]:
    problem = condition.problems.get(gpu.uuid)
    if not problem:
        return {}
    return {"taints": [{"key": TAINT, "value": problem[:_LABEL_LIMIT], "effect": condition.effect}]}


def _text(value: str) -> dict[str, Any]:
    return {"string": value[:_TEXT_LIMIT]} if value else {}


def _version(text: str) -> dict[str, Any]:
    """A semantic version has three numbers without leading zeros: driver 580.159.04 is 580.159.4."""
    parts = text.split(".")
    if not text or len(parts) > 3 or not all(part.isdecimal() for part in parts):
        return {}
    return {"version": ".".join(str(int(part)) for part in (*parts, "0", "0")[:3])}


def names(rows: Iterable[Slice]) -> list[str]:
    """Of all devices in slices."""
    return [device["name"] for one in rows for device in one.devices]
