"""What is done to the config.json of a container that may want GPUs, by mode (specs of the container toolkit, 3)."""

from __future__ import annotations

import os

from hook import modes, request
from hook.runtime import hooks
from nvc.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.runtime.journal import Journal


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
    if mode == "csv":
        raise InputError("mode 'csv' (Tegra) is not served", hint="set nvidia-container-runtime.mode in config.toml")
    if mode == "cdi":
        from hook.runtime import cdi

        devices = annotated or asked
        removed = hooks.remove(content, directory)
        if devices is None:
            return removed
        wish = request.complete(
            devices, env, privileged=found.privileged, config=config, device_mounts=found.device_mounts
        )
        cdi.apply(content, wish, env, config, own, directory, journal)
        return True
    if asked is None:
        return False
    # Annotations name CDI devices; in this mode the hook gives what the environment asks for.
    path = os.environ.get("PATH", "")
    return hooks.add(content, hooks.locate(config.hook_path, own, path), os.environ, directory)


def annotated_devices(annotations: tuple[tuple[str, str], ...], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The CDI devices that annotations name, in the order of their (sorted) keys, each once."""
    names = (name.strip() for key, value in annotations if key.startswith(prefixes) for name in value.split(","))
    return tuple(dict.fromkeys(name for name in names if name))
