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
from nvc.cdi.generate import GenerateOptions, generate, share_hook
from nvc.cdi.spec import CdiDevice, CdiDeviceNode, CdiEdits, CdiSpec
from nvc.container.plan import is_display
from nvc.kube.names import CLAIM_KIND, DRIVER_DEVICE, VENDOR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.model import Host, Inventory

_CLASS = "driver"
#: A device must change something; this says again what the common edits say.
_NOTHING = CdiEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))


class Template(Record):
    """static: the spec of what all have. devices: edits of a whole GPU, or of a MIG device, by UUID.

    host: as the engine's hooks see the machine. options: for hooks. display: paths of nodes that no container with a
    share gets. whole: those of them that are the driver's and not one GPU's.
    """

    static: CdiSpec
    devices: dict[str, CdiEdits]
    host: Host
    options: GenerateOptions
    display: tuple[str, ...] = ()
    whole: tuple[CdiDeviceNode, ...] = ()

    def edits(self, uuid: str, share: str) -> CdiEdits:
        """Of a GPU or MIG device. share: fixed settings for it, "" for the whole. Raises DeviceError."""
        if uuid not in self.devices:
            raise DeviceError(
                f"prepare: {uuid} is not on this machine any more",
                hint="the GPU was removed, or divided otherwise; delete the pod, and the scheduler places it anew",
            )
        found = self.devices[uuid]
        if not share:
            return found.replace(device_nodes=(*found.device_nodes, *self.whole))
        nodes = tuple(node for node in found.device_nodes if node.path not in self.display)
        hook = share_hook(self.host, self.options, f"{uuid}:{share}")
        return CdiEdits(device_nodes=nodes, hooks=(hook,))

    def spec(self, devices: Iterable[CdiDevice]) -> CdiSpec:
        """A claim's file, of the oldest version that has what it uses."""
        spec = CdiSpec(self.static.version, CLAIM_KIND, tuple(devices))
        return spec.replace(version=spec.minimum_version())


def template(inventory: Inventory, host: Host, options: GenerateOptions, *, named: Host | None = None) -> Template:
    """The template of this machine. Raises DeviceError where it has no GPU.

    host: where the machine is looked at. named: how its paths are named in files, where that is otherwise: a program in
    a container sees the host below a directory.
    """
    options = options.replace(strategies=("uuid",), vendor=VENDOR, device_class=_CLASS, all_device=False)
    around, named = gather(host, inventory), named or host
    whole = generate(inventory, around, named, options)
    shown = {node.path for node in inventory.driver.nodes if is_display(node)}
    drm = {one.node.path for gpu in inventory.gpus for one in gpu.drm}
    nodes = tuple(node for node in whole.edits.device_nodes if node.path in shown)
    common = whole.edits.replace(device_nodes=tuple(node for node in whole.edits.device_nodes if node not in nodes))
    static = whole.replace(devices=(CdiDevice(DRIVER_DEVICE, _NOTHING),), edits=common)
    return Template(
        static.replace(version=static.minimum_version()),
        {device.name.replace(":", "/"): device.edits for device in whole.devices},
        named,
        options,
        tuple(sorted(shown | drm)),
        nodes,
    )
