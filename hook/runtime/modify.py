"""What is done to the config.json of a container that may want GPUs, by mode (nvidia-container-toolkit.md 3)."""

from __future__ import annotations

import os

from hook import environment, modes, request
from hook.runtime import hooks
from nvc.base.errors import InputError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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
    annotated, asked = requested_devices(found, env, config, journal.warn)
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
        if request.may_ask(found.privileged, config):
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
    gated = bool(asked) and request.may_ask(found.privileged, config)
    return (gated and _gated(content, env, directory, journal)) or changed


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


def requested_devices(
    found: Bundle, env: Mapping[str, str], config: HookConfig, warn: Callable[[str], None]
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The CDI devices that annotations name, each once, and what mounts or variables ask for (``request.visible``).

    In Kubernetes annotations are the kubelet's, and count first. Elsewhere they are the container's, and with Podman
    before 4.5.1 its image's: they count as its variables do, and give no more than those. Raises InputError.
    """
    given = sorted(item for item in found.annotations if item[0].startswith(config.annotation_prefixes))
    names = (name.strip() for _, value in given for name in value.split(","))
    annotated = tuple(dict.fromkeys(name for name in names if name))
    asked = request.visible(
        env, privileged=found.privileged, config=config, device_mounts=found.device_mounts, warn=warn
    )
    if not annotated or found.is_pods:
        return annotated, asked
    if not request.may_ask(found.privileged, config):
        warn("ignoring annotations that name devices: this host does not let containers ask for them")
        return (), asked
    request.check_kinds(annotated, config)
    if asked is None and environment.VISIBLE_DEVICES in env:  # void, or nothing
        return (), None
    return _fewer(annotated, asked, config), asked


def _fewer(annotated: tuple[str, ...], asked: tuple[str, ...] | None, config: HookConfig) -> tuple[str, ...]:
    """``annotated``, or () where ``asked`` names some of them. Raises InputError where neither has all of the other."""
    if asked is None:
        return annotated
    named = [name if modes.is_cdi(name) else f"{config.default_kind}={name}" for name in asked]
    if _has(named, annotated):
        return annotated
    if _has(annotated, named):
        return ()
    annotations, others = (shown(",".join(names), 100) for names in (annotated, named))
    raise InputError(
        f"annotations ask for {annotations}, mounts or variables for {others}",
        hint="ask in one way; an image's may be one of the two",
    )


def _has(names: Sequence[str], others: Sequence[str]) -> bool:
    return all(one in names or f"{one.partition('=')[0]}=all" in names for one in others)
