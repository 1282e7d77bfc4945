"""An inventory with some of its devices only, for a spec of those. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import DeviceError
from nvc.request.selection import select

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.model import Inventory


def chosen(inventory: Inventory, devices: Sequence[str]) -> Inventory:
    """The inventory with the devices that these selectors name (``nvc.request.selection``); without any, as it is.
    Beside "all" the others must exist too.

    Raises DeviceError for a selector that names none, and for a whole GPU that is divided by MIG.
    """
    if not devices:
        return inventory
    found = select(inventory, [name for name in devices if name.lower() != "all"])
    if any(name.lower() == "all" for name in devices):
        return inventory
    gpus = []
    for gpu in found.gpus:
        parts = tuple(one.mig for one in found.migs if one.gpu.index == gpu.index)
        if gpu.mig_devices and not parts:
            raise DeviceError(
                f"GPU {gpu.index} is divided by MIG", hint=f"name its devices, such as {gpu.index}:0, or their UUIDs"
            )
        gpus.append(gpu.replace(mig_devices=parts))
    return inventory.replace(gpus=tuple(gpus))
