"""CDI specs of the device plugin's devices: one file for whole devices, one for shares.

Every device that the kubelet may name is there before it is asked for, so Allocate makes nothing. A share's words are
in root's file and final: no variable, label or annotation of a pod changes them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError, reason
from nvc.cdi import files, text
from nvc.cdi.chosen import chosen
from nvc.cdi.generate import GenerateOptions, generate, with_share
from nvc.cdi.spec import CdiDevice
from nvc.kube.names import CAPABILITIES, VENDOR
from nvc.kube.plugin_devices import Resource, device_name, share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.cdi.gather import Surroundings
    from nvc.cdi.spec import CdiSpec
    from nvc.model import Host, Inventory

#: Class -> file. Whole devices and shares are of two kinds: containers with a share get fewer nodes in common.
WHOLE, SHARED = "gpu", "replica"
_FILES = {WHOLE: "device-plugin-gpu.json", SHARED: "device-plugin-replica.json"}


def kind(resource: Resource) -> str:
    """The CDI kind of a resource's devices."""
    return f"{VENDOR}/{WHOLE if resource.replicas == 1 else SHARED}"


def specs(
    resources: Iterable[Resource], inventory: Inventory, around: Surroundings, host: Host, hook: str, *, only_one: bool
) -> dict[str, CdiSpec]:
    """Class -> spec of its devices. hook: path of nvc-cdi-hook. only_one: no container has two shares of a GPU.

    Raises DeviceError, InputError.
    """
    options = GenerateOptions(CAPABILITIES, ("uuid",), VENDOR, hook_path=hook, all_device=False)
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    whole: list[str] = []
    shares: list[tuple[str, str, str]] = []
    for resource in resources:
        for device in resource.devices:
            if resource.replicas == 1:
                whole.append(device.uuid)
                continue
            for count in range(1, 2 if only_one else resource.replicas + 1):
                words = share(gpus[device.gpu], count, resource.replicas)
                shares.append((device_name(device.uuid, count, resource.replicas), device.gpu, words))
    found = {}
    if whole:
        found[WHOLE] = generate(chosen(inventory, whole), around, host, options.replace(device_class=WHOLE))
    if shares:
        made = generate(inventory, around, host, options.replace(device_class=SHARED, shared=True))
        edits = {device.name: device.edits for device in made.devices}
        devices = (CdiDevice(name, with_share(edits[gpu], host, options, words)) for name, gpu, words in shares)
        found[SHARED] = made.replace(devices=tuple(devices))
    return found


def write(made: dict[str, CdiSpec], directory: str) -> None:
    """Put the files in place, each in one step, and take away one that no resource needs now. Raises NvcError."""
    for name, file in _FILES.items():
        path = f"{directory}/{file}"
        if name in made:
            files.save(path, text.write(made[name], "json"))
            continue
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise NvcError(f"{path} could not be removed: {reason(error)}") from error
