"""What is done to the config.json of a container that may want GPUs, by mode (nvidia-container-toolkit.md 3)."""

from __future__ import annotations

import os

from hook import modes, request
from hook.runtime import hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.runtime.journal import Journal

#: Variables that ``nvc.cdi.gated`` knows; it is imported when one of them is set.
GATED = ("NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH")


def modify(
    content: dict[str, Any],
    found: Bundle,
    env: Mapping[str, str],
    config: HookConfig,
    own: str,
    directory: str,
    journal: Journal,
) -> bool:
    """Edit ``content``; False when it stays as it is. Raises NvcError."""
    annotated = annotated_devices(found.annotations, config.annotation_prefixes)
    asked = request.visible(
        env, privileged=found.privileged, config=config, device_mounts=found.device_mounts, warn=journal.warn
    )
    mode = modes.resolve(config.mode, annotated or asked or ())
    journal.info(f"mode {mode}: {', '.join(annotated or asked or ()) or 'no device'}")
    if mode == "cdi":
        from hook.runtime import cdi

        devices = annotated or asked
        removed = hooks.remove(content, directory)
        if devices is None:
            return removed
        complete = request.complete(
            devices, env, privileged=found.privileged, config=config, device_mounts=found.device_mounts
        )
        cdi.apply(content, complete, env, config, own, directory, journal)
        from hook.runtime import shares

        shares.add(content, found, env, config, own, directory)
        _gated(content, env, directory, journal)
        return True
    if asked is None:
        return False
    # Annotations name CDI devices; in this mode the hook gives what the environment asks for. So it does in mode csv:
    # on a Tegra its planner reads the mount lists, and on another machine it gives what is there.
    path = os.environ.get("PATH", "")
    changed = hooks.add(content, hooks.locate(config.hook_path, own, path), os.environ, directory)
    from hook.runtime.devices import grant

    changed = grant(content, found, env, config, directory, journal) or changed
    return (bool(asked) and _gated(content, env, directory, journal)) or changed


def _gated(content: dict[str, Any], env: Mapping[str, str], directory: str, journal: Journal) -> bool:
    """Devices of other drivers that the container enabled. True when there are any."""
    if not any(env.get(name) == "enabled" for name in GATED):
        return False
    from hook.runtime import edits
    from nvc.cdi import gated

    found = []
    for variable in gated.wanted(env):
        one = gated.edits(variable, os.environ.get("NVC_SIM", "") or "/")
        if one is None:
            journal.warn(f"{variable}=enabled, but this host has no such devices")
        else:
            found.append(one)
    edits.apply(content, found, directory, journal.warn)
    return bool(found)


def annotated_devices(annotations: tuple[tuple[str, str], ...], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The CDI devices that annotations name, in the order of their (sorted) keys, each once."""
    names = (name.strip() for key, value in annotations if key.startswith(prefixes) for name in value.split(","))
    return tuple(dict.fromkeys(name for name in names if name))
