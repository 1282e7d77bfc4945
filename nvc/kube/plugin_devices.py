"""From a machine's GPUs and the plugin's configuration to what the kubelet counts, and back to CDI names. Pure.

The kubelet knows ids alone. One of a GPU that is shared is ``UUID::N``, as NVIDIA's plugin writes it; which of a GPU's
shares a container has makes no difference, how many of them does: the CDI device ``UUID-2of4`` holds it to two of four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import DeviceError, InputError
from nvc.base.record import Record
from nvc.kube.names import MEMORY_LEAST, MEMORY_STEP
from nvc.kube.plugin_config import DOMAIN, GPU
from nvc.share.model import WEIGHT_LIMIT
from nvc.share.spec import REQUIRE, format_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nvc.kube.plugin_config import PluginConfig, Replicated
    from nvc.model import Gpu

#: Weight of one share of a GPU: what a container has that says nothing.
WEIGHT = 10
_SEPARATOR = "::"


class Given(Record):
    """A device as pods get it. uuid: of a GPU or a MIG device. gpu: UUID of the GPU. index: as users name it."""

    uuid: str
    gpu: str
    index: str
    profile: str = ""


class Resource(Record):
    """A resource of the node: ``replicas`` shares of each device; 1: whole devices."""

    name: str
    devices: tuple[Given, ...]
    replicas: int = 1

    def ids(self) -> tuple[tuple[str, Given], ...]:
        """Every id with its device, in the order of the devices."""
        if self.replicas == 1:
            return tuple((device.uuid, device) for device in self.devices)
        return tuple((f"{one.uuid}{_SEPARATOR}{n}", one) for one in self.devices for n in range(self.replicas))

    def cdi_names(self, ids: Sequence[str], known: Mapping[str, Given]) -> tuple[str, ...]:
        """The CDI devices of a container that has these ids. known: ``ids`` as a table.

        Raises DeviceError for one that is not there.
        """
        counts: dict[str, int] = {}
        for name in dict.fromkeys(ids):
            if name not in known:
                hint = "the node's GPUs or the plugin's configuration changed: delete the pod, and it is placed anew"
                raise DeviceError(f"{self.name}: there is no device {name!r}", hint=hint)
            counts[known[name].uuid] = counts.get(known[name].uuid, 0) + 1
        return tuple(device_name(uuid, count, self.replicas) for uuid, count in counts.items())


def device_name(uuid: str, count: int, replicas: int) -> str:
    """The CDI device of ``count`` of ``replicas`` shares of a device."""
    # Drivers before 470 name MIG devices MIG-GPU-.../7/0, and CDI allows no slash.
    return uuid.replace("/", ":") if replicas == 1 else f"{uuid}-{count}of{replicas}"


def share(gpu: Gpu, count: int, replicas: int) -> str:
    """The share spec of ``count`` of ``replicas`` shares of a GPU: equal parts, of which no container has more.

    Without the guard the container does not start: its neighbours have paid for what it could take.
    """
    memory = gpu.memory // replicas // MEMORY_STEP * MEMORY_STEP * count
    return f"{gpu.uuid}:mem={format_memory(memory)},weight={min(WEIGHT * count, WEIGHT_LIMIT)},guard={REQUIRE}"


def resources(gpus: Sequence[Gpu], config: PluginConfig) -> tuple[tuple[Resource, ...], tuple[str, ...]]:
    """What this machine offers, and what of it is left out and why.

    Raises InputError for a configuration that this machine cannot keep.
    """
    notes: list[str] = []
    whole = _whole(gpus, config.mig_strategy, notes)
    found: list[Resource] = []
    for row in config.replicated:
        devices = whole.pop(row.name, ())
        if not devices:
            notes.append(f"{row.name}: no device of this machine has this name")
            continue
        shared = _chosen(row, devices)
        rest = tuple(device for device in devices if device not in shared)
        if rest and not row.rename:
            raise InputError(
                f"{row.name}: {len(rest)} of its devices are whole and {len(shared)} are shared, under one name",
                hint="give the shares a name of their own: rename, or renameByDefault",
            )
        _hold(row, shared, {gpu.uuid: gpu for gpu in gpus})
        found.append(Resource(row.rename or row.name, shared, row.replicas))
        if rest:
            whole[row.name] = rest
    found += [Resource(name, devices) for name, devices in whole.items()]
    names = [resource.name for resource in found]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise InputError(f"{twice}: two kinds of devices have this name", hint="rename one of them")
    return tuple(found), tuple(notes)


def _whole(gpus: Iterable[Gpu], strategy: str, notes: list[str]) -> dict[str, tuple[Given, ...]]:
    """Resource -> its devices, before any is shared."""
    found: dict[str, tuple[Given, ...]] = {}
    plain, divided = [], []
    for gpu in gpus:
        if not gpu.mig_devices:
            plain.append(Given(gpu.uuid, gpu.uuid, str(gpu.index)))
        elif strategy == "none":
            notes.append(f"GPU {gpu.index} is divided by MIG and left out: migStrategy is none")
        else:
            divided += [Given(mig.uuid, gpu.uuid, f"{gpu.index}:{mig.index}", mig.profile) for mig in gpu.mig_devices]
    unnamed = next((device.index for device in divided if not device.profile), "")
    if unnamed:
        raise InputError(f"the driver does not say the profile of MIG device {unnamed}", hint="use migStrategy none")
    if strategy == "single" and divided:
        kinds = sorted({device.profile for device in divided} | ({"no MIG"} if plain else set()))
        if len(kinds) > 1:
            raise InputError(
                f"migStrategy single: GPUs of this machine differ: {', '.join(kinds)}",
                hint="divide all of them alike, or use migStrategy mixed",
            )
        return {GPU: tuple(divided)}
    if plain:
        found[GPU] = tuple(plain)
    for device in divided:
        # 1g.10gb+me is 1g.10gb.me: a resource's name has no plus.
        name = f"{DOMAIN}/mig-{device.profile.replace('+', '.')}"
        found[name] = (*found.get(name, ()), device)
    return found


def _chosen(row: Replicated, devices: tuple[Given, ...]) -> tuple[Given, ...]:
    if row.count > len(devices):
        raise InputError(f"{row.name}: {row.count} devices are to be shared, and there are {len(devices)}")
    if row.count:
        return devices[: row.count]
    for selector in row.devices:
        if not any(selector in (device.uuid, device.index) for device in devices):
            raise InputError(f"{row.name}: it has no device {selector!r}", hint="`nvc-py info` lists them")
    return tuple(one for one in devices if not row.devices or {one.uuid, one.index} & set(row.devices))


def _hold(row: Replicated, devices: Iterable[Given], gpus: dict[str, Gpu]) -> None:
    """Raises InputError where a share of a device could not be held."""
    for device in devices:
        memory = gpus[device.gpu].memory
        if device.profile:
            raise InputError(
                f"{row.name}: shares of a MIG device cannot be held", hint="leave it out: MIG devices are given whole"
            )
        if not memory:
            raise InputError(f"{row.name}: the driver does not say how much memory GPU {device.index} has")
        if memory // row.replicas < MEMORY_LEAST:
            least = format_memory(MEMORY_LEAST)
            raise InputError(
                f"{row.name}: a share of GPU {device.index} would have less than {least}",
                hint=f"at most {memory // MEMORY_LEAST} replicas",
            )
