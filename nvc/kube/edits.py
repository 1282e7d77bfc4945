"""What CDI devices of claims hold, by the driver version that is installed now. Pure but for ``Template.make``.

One static file has what every container gets: the driver's files, links, the loader cache. Its common edits are
applied once a container, however many claims name it. A claim's own devices have the GPU's nodes and one start of the
share hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import DeviceError
from nvc.base.record import Record
from nvc.cdi.gather import gather
from nvc.cdi.generate import GenerateOptions, generate, with_share
from nvc.cdi.spec import CdiDevice, CdiEdits, CdiSpec
from nvc.kube.names import CAPABILITIES, CLAIM_KIND, DRIVER_DEVICE, VENDOR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.model import Host, Inventory

_CLASS = "driver"
#: A device must change something; this says again what the common edits say.
_NOTHING = CdiEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))


class Template(Record):
    """static: the spec of what all have. whole: edits of a GPU or MIG device by UUID. shared: those for a share of it.

    host: as the engine's hooks see the machine. options: for hooks.
    """

    static: CdiSpec
    whole: dict[str, CdiEdits]
    shared: dict[str, CdiEdits]
    host: Host
    options: GenerateOptions

    def edits(self, uuid: str, share: str) -> CdiEdits:
        """Of a GPU or MIG device. share: fixed settings for it, "" for the whole. Raises DeviceError."""
        found = (self.shared if share else self.whole).get(uuid)
        if found is None:
            raise DeviceError(
                f"prepare: {uuid} is not on this machine any more",
                hint="the GPU was removed, or divided otherwise; delete the pod, and the scheduler places it anew",
            )
        return with_share(found, self.host, self.options, f"{uuid}:{share}") if share else found

    def spec(self, devices: Iterable[CdiDevice]) -> CdiSpec:
        """A claim's file, of the oldest version that has what it uses."""
        spec = CdiSpec(self.static.version, CLAIM_KIND, tuple(devices))
        return spec.replace(version=spec.minimum_version())


def template(inventory: Inventory, host: Host, options: GenerateOptions, *, named: Host | None = None) -> Template:
    """The template of this machine. Raises DeviceError where it has no GPU.

    host: where the machine is looked at. named: how its paths are named in files, where that is otherwise: a program in
    a container sees the host below a directory.
    """
    options = options.replace(
        capabilities=CAPABILITIES, strategies=("uuid",), vendor=VENDOR, device_class=_CLASS, all_device=False
    )
    around, named = gather(host, inventory), named or host
    shared = generate(inventory, around, named, options.replace(shared=True))
    whole = generate(inventory, around, named, options)
    static = shared.replace(devices=(CdiDevice(DRIVER_DEVICE, _NOTHING),))
    # What the driver has for displays is no part of a share, and so not of what all have.
    nodes = tuple(node for node in whole.edits.device_nodes if node not in shared.edits.device_nodes)
    gids = tuple(gid for gid in whole.edits.additional_gids if gid not in shared.edits.additional_gids)
    return Template(
        static.replace(version=static.minimum_version()),
        {
            uuid: edits.replace(
                device_nodes=(*edits.device_nodes, *nodes), additional_gids=(*edits.additional_gids, *gids)
            )
            for uuid, edits in _by_uuid(whole).items()
        },
        _by_uuid(shared),
        named,
        options,
    )


def _by_uuid(spec: CdiSpec) -> dict[str, CdiEdits]:
    return {device.name.replace(":", "/"): device.edits for device in spec.devices}
