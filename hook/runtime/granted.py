"""Whether the container's hook will give it a share: ``preview`` with the devices that the hook will select.

Without a share the agent ends a container that has the guard's filter, so no filter must be there then.
"""

from __future__ import annotations

import os

from hook import modes, request
from hook.environment import chosen
from hook.runtime import hooks
from hook.swarm import DEVICES
from nvc.base.errors import NvcError
from nvc.cdi.given import Given, given
from nvc.share.preview import preview
from nvc.share.sources import DEFAULT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.request import HookRequest
    from hook.runtime.journal import Journal
    from hook.runtime.shares import ShareStep
    from nvc.inject.api import Context
    from nvc.model import Selection
    from nvc.request.injection import ShareRequest
    from nvc.share.policy import Policy


#: More than the first line has.
_VERSION_LIMIT = 4096


def granted(
    content: dict[str, Any],
    found: Bundle,
    env: Mapping[str, str],
    config: HookConfig,
    policy: Policy,
    asked: ShareRequest,
    source: str,
    step: ShareStep | None,
    journal: Journal,
) -> bool:
    """source: of the share, as ``preview`` predicts it without devices. step: options of the CDI hook.

    A source other than the node's default needs a GPU and no more: the container gets a share, or the hook refuses to
    start it. A failure counts as True: the hook fails in the same way and reports it.
    """
    directory = found.path
    ways: list[tuple[HookRequest | Given, ShareStep | None]] = []
    try:
        if hooks.present(content, directory):
            asked_for = injected(content, found, env, config, directory)
            if asked_for is not None and asked_for.devices:
                ways.append((asked_for, None))
        if step is not None:
            simulated = step.sim or os.environ.get("NVC_SIM", "")
            reached = given(content, directory, simulated, step.root or config.root)
            if reached:  # else: devices of others
                ways.append((reached, step))
        if not ways or source != DEFAULT:
            return bool(ways)
        for way, told in ways:
            with driver_context(config, told) as context:
                if preview(policy, asked, _selection(context, way), context.driver_info()) is not None:
                    return True
        return False
    except NvcError as error:
        journal.debug(f"guard: {error}")
        return True


def injected(
    content: dict[str, Any], found: Bundle, env: Mapping[str, str], config: HookConfig, directory: str
) -> HookRequest | None:
    """What the prestart hook will give. Raises NvcError."""
    devices = hooks.variable(content, DEVICES, directory)
    if devices:
        names = chosen(devices) or ()
    else:
        seen = request.visible(
            env,
            privileged=found.privileged,
            config=config,
            device_mounts=found.device_mounts,
            warn=lambda text: None,
        )
        if seen is None:
            return None
        names = modes.own_names(seen, config.replace(skip_mode_detection=True))
    return request.complete(names, env, privileged=found.privileged, config=config, device_mounts=found.device_mounts)


def _selection(context: Context, way: HookRequest | Given) -> Selection:
    if not isinstance(way, Given):
        return context.select(way.devices, way.mig_config or None, way.mig_monitor or None)
    from nvc.model import Selection

    return Selection(gpus=way.select(context.device_info()))


def driver_version(config: HookConfig, step: ShareStep | None) -> str:
    """Of the loaded kernel module; "" where it cannot be read: the agent then decides by the share's own."""
    from nvc.driver.locate import host_path
    from nvc.driver.places import DRIVER
    from nvc.formats.procfs import nvrm_version

    root = (step.sim if step else "") or os.environ.get("NVC_SIM", "") or "/"
    try:
        with open(host_path(root, f"{DRIVER}/version"), encoding="utf-8", errors="replace") as file:
            return nvrm_version(file.read(_VERSION_LIMIT))
    except OSError:
        return ""


def driver_context(config: HookConfig, step: ShareStep | None) -> Context:
    """The driver that the container's hook looks at. step: options of the CDI hook."""
    from hook.inject import library_options
    from nvc.inject.api import Config, Context

    simulated = (step.sim if step else "") or os.environ.get("NVC_SIM", "")
    uid, gid = config.ids()
    settings = Config(
        root=(step.root if step else "") or config.root,
        ldcache=config.ldcache or Config().ldcache,
        uid=uid,
        gid=gid,
        sim=simulated,
        csv=config.csv_directory or Config().csv,
    )
    return Context(settings, library_options(config, simulated=bool(simulated)))
