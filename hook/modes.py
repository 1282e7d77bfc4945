"""Which way a container's devices are given: by our hook ("legacy"), or by CDI specs ("cdi").

The toolkit's third and fourth mode: "jit-cdi" makes a CDI spec in memory for each container, to the same end as the
hook, so it is "legacy" here; "csv" (Tegra) is what the hook does on such a machine by itself. Rules: specs of the
NVIDIA container toolkit, 1.10 and 3.2.
"""

from __future__ import annotations

from hook.mount_requests import qualified
from nvc.base.errors import InputError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hook.config import HookConfig

#: Devices of this kind are in no spec: the toolkit's runtime makes one for them, so they mean what follows the "=".
AUTOMATIC = "runtime.nvidia.com/gpu="


def is_cdi(name: str) -> bool:
    """Whether a device is named as in a CDI spec: VENDOR/CLASS=NAME."""
    return "=" in name and qualified(name) == name


def resolve(configured: str, devices: Sequence[str]) -> str:
    """ "legacy", "cdi" or "csv". configured: ``mode`` of config.toml; devices: what the container asks for."""
    if configured == "auto":
        named = [is_cdi(device) and not device.startswith(AUTOMATIC) for device in devices]
        return "cdi" if named and all(named) else "legacy"
    return "legacy" if configured == "jit-cdi" else configured


def own_names(devices: tuple[str, ...], config: HookConfig) -> tuple[str, ...]:
    """``devices`` as ``nvc.request.selection`` takes them.

    Raises InputError where they are not the hook's to give: the engine or nvc-runtime applies CDI specs, and a hook
    beside them would give a device twice.
    """
    mode = "legacy" if config.skip_mode_detection else resolve(config.mode, devices)
    if mode != "legacy":
        raise InputError(
            f"invoking the hook directly (docker run --gpus, hooks.d) is not supported in mode {mode!r}",
            hint="use nvc-runtime (docker run --runtime=nvidia), or an engine with CDI, or set skip-mode-detection",
        )
    plain = tuple(device.removeprefix(AUTOMATIC) for device in devices)
    foreign = [device for device in plain if is_cdi(device)]
    if foreign:
        raise InputError(
            f"{shown(foreign[0])} is a device of a CDI specification and cannot be mixed with others",
            hint="give CDI devices to the engine (--device) or name all devices in that form",
        )
    if "all" in plain:
        return ("all",)
    return tuple(device for device in dict.fromkeys(plain) if device != "none")
