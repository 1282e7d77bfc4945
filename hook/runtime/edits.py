"""CDI edits on an OCI configuration, by the rules that the CDI libraries of engines follow.

Source: nvidia-container-toolkit.md 5.11.

Applying the same edits twice changes nothing more: an engine may have applied them already.
"""

from __future__ import annotations

import os
import stat

from hook.process import DEFAULT_PATH
from hook.runtime.spec import entries, section
from nvc.base.errors import InputError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nvc.cdi.spec import CdiDeviceNode, CdiEdits, CdiHook, CdiIntelRdt, CdiMount

    Warn = Callable[[str], None]

_LETTERS = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}
_RDT = (
    ("clos_id", "closID"),
    ("l3_cache_schema", "l3CacheSchema"),
    ("mem_bw_schema", "memBwSchema"),
    ("schemata", "schemata"),
    ("enable_monitoring", "enableMonitoring"),
    ("enable_cmt", "enableCMT"),
    ("enable_mbm", "enableMBM"),
)


def apply(config: dict[str, Any], collected: Iterable[CdiEdits], directory: str, warn: Warn) -> None:
    """Edit ``config``. directory: of the bundle, for messages.

    Raises InputError for a device that is not there and for a config.json whose parts have other types.
    """
    edits = list(collected)
    process, linux = section(config, "process", directory), section(config, "linux", directory)
    env = entries(process, "env", directory)
    for assignment in (item for one in edits for item in one.env):
        name = assignment.partition("=")[0] + "="
        env[:] = [item for item in env if not (isinstance(item, str) and item.startswith(name))]
        env.append(assignment)
    user = section(process, "user", directory)
    for node in (item for one in edits for item in one.device_nodes):
        _device(node, linux, user, directory, warn)
    for net in (item for one in edits for item in one.net_devices):
        section(linux, "netDevices", directory)[net.host_interface_name] = {"name": net.name}
    mounts = entries(config, "mounts", directory)
    added = [_mount(item) for one in edits for item in one.mounts]
    for mount in added:
        mounts[:] = [item for item in mounts if not _same(item, "destination", mount["destination"])]
        mounts.append(mount)
    if added:
        mounts.sort(key=_depth)
    for hook in (item for one in edits for item in one.hooks):
        stage = entries(section(config, "hooks", directory), hook.hook_name, directory)
        entry = _hook(hook)
        if entry not in stage:
            stage.append(entry)
    for rdt in (one.intel_rdt for one in edits if one.intel_rdt is not None):
        linux["intelRdt"] = _rdt(rdt)
    gids = [gid for one in edits for gid in one.additional_gids if gid]
    if gids:
        present = entries(user, "additionalGids", directory)
        present += [gid for gid in dict.fromkeys(gids) if gid not in present]


def _device(node: CdiDeviceNode, linux: dict[str, Any], user: dict[str, Any], directory: str, warn: Warn) -> None:
    device = _numbers(node, warn)
    for key, value, own in (("uid", node.uid, user.get("uid")), ("gid", node.gid, user.get("gid"))):
        if value or (isinstance(own, int) and own > 0):
            device[key] = value or own
    devices = entries(linux, "devices", directory)
    devices[:] = [item for item in devices if not _same(item, "path", node.path)]
    devices.append(device)
    if device["type"] in ("c", "b"):
        access = "" if node.permissions == "none" else node.permissions or "rwm"
        rule = {"allow": True, "type": device["type"], "major": device["major"], "minor": device["minor"]}
        rules = entries(section(linux, "resources", directory), "devices", directory)
        if rule | {"access": access} not in rules:
            rules.append(rule | {"access": access})


def _numbers(node: CdiDeviceNode, warn: Warn) -> dict[str, Any]:
    """Path, type, numbers and mode. A number in the file that is no longer the host's is the host's here: major
    numbers of nvidia-uvm and nvidia-caps change with every boot, and a specification may be older.
    """
    device: dict[str, Any] = {"path": node.path, "type": node.type, "major": node.major, "minor": node.minor}
    place = node.host_path or node.path
    try:
        found = os.lstat(place)
    except OSError as error:
        if not (node.type and node.major):
            raise InputError(
                f"CDI device node {place}: {reason(error)}",
                hint="the CDI specification is older than this boot or driver: nvc-py cdi generate",
            ) from error
        if node.file_mode:
            device["fileMode"] = node.file_mode
        return device
    letter = _LETTERS.get(stat.S_IFMT(found.st_mode), "")
    if not letter or node.type not in ("", letter, "u" if letter == "c" else letter):
        raise InputError(f"CDI device node {place} is not a device of type {node.type or 'c, b or p'}")
    numbers = os.major(found.st_rdev), os.minor(found.st_rdev)
    if node.major and numbers != (node.major, node.minor):
        warn(f"CDI device node {place} is {numbers[0]}:{numbers[1]}, not {node.major}:{node.minor} as specified")
    mode = node.file_mode or stat.S_IMODE(found.st_mode)
    return device | {"type": letter, "major": numbers[0], "minor": numbers[1], "fileMode": mode}


def _mount(mount: CdiMount) -> dict[str, Any]:
    options = list(mount.options)
    kind = mount.type or ("bind" if {"bind", "rbind"} & set(options) or not options else "")
    made = {"destination": mount.container_path, "source": mount.host_path, "options": options or ["bind"]}
    return made | ({"type": kind} if kind else {})


def _hook(hook: CdiHook) -> dict[str, Any]:
    # An entry without env is started with the container's own environment (CVE-2025-23266).
    entry: dict[str, Any] = {"path": hook.path, "args": list(hook.args), "env": list(hook.env)}
    if not entry["env"]:
        entry["env"] = [f"PATH={DEFAULT_PATH}"]
    return entry | ({"timeout": hook.timeout} if hook.timeout else {})


def _rdt(rdt: CdiIntelRdt) -> dict[str, Any]:
    values = ((key, getattr(rdt, field)) for field, key in _RDT)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values if value}


def _same(item: object, key: str, value: str) -> bool:
    return isinstance(item, dict) and item.get(key) == value


def _depth(mount: object) -> int:
    target = mount.get("destination") if isinstance(mount, dict) else None
    return len([part for part in target.split("/") if part]) if isinstance(target, str) else 0
