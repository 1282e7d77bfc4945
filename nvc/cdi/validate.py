"""Is a spec one that engines will take? Every engine drops a file with a mistake as a whole, most without a word."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.cdi import rules
from nvc.cdi.spec import CdiEdits, Problem, needs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.cdi.spec import CdiDeviceNode, CdiHook, CdiIntelRdt, CdiSpec

_ID_LIMIT = 4096


def problems(spec: CdiSpec) -> Iterator[Problem]:
    """Everything that the CDI specification forbids, in the order of the file."""
    yield from _version(spec)
    yield from _named("kind", rules.kind_problem(spec.kind))
    yield from _annotations("annotations", spec.annotations)
    if not spec.devices:
        yield Problem("devices", "empty: a spec needs at least one device")
    seen: dict[str, int] = {}
    for index, device in enumerate(spec.devices):
        where = f"devices[{index}]"
        yield from _named(f"{where}.name", rules.device_problem(device.name))
        if device.name in seen:
            yield Problem(f"{where}.name", f"{device.name!r} is the name of devices[{seen[device.name]}] too")
        seen.setdefault(device.name, index)
        yield from _annotations(f"{where}.annotations", device.annotations)
        if device.edits == CdiEdits():
            yield Problem(f"{where}.containerEdits", "empty: a device must change something")
        yield from _edits(f"{where}.containerEdits", device.edits)
    yield from _edits("containerEdits", spec.edits)


def advice(spec: CdiSpec) -> Iterator[Problem]:
    """What engines take and a person should not."""
    parts = [("containerEdits", spec.edits)]
    parts += [(f"devices[{index}].containerEdits", device.edits) for index, device in enumerate(spec.devices)]
    for where, edits in parts:
        for index, hook in enumerate(edits.hooks):
            if not hook.env:
                yield Problem(
                    f"{where}.hooks[{index}].env",
                    "empty: runc then starts it with the container's environment, LD_PRELOAD too (CVE-2025-23266)",
                )


def missing(spec: CdiSpec) -> Iterator[Problem]:
    """The host paths that the spec names and that are not there: engines fail every container for one of them.

    OSError of a path that cannot be looked at counts as missing: an engine of this user would see the same.
    """
    for where, path in host_paths(spec):
        if where.rpartition(".hooks[")[1]:
            if not os.access(path, os.X_OK):
                yield Problem(where, f"{path} is no program")
        elif not os.path.exists(path):
            yield Problem(where, f"{path} does not exist")


def host_paths(spec: CdiSpec) -> Iterator[tuple[str, str]]:
    """(field, path) of every host path of the spec: device nodes, hooks and mounts."""
    parts = [("containerEdits", spec.edits)]
    parts += [(f"devices[{index}].containerEdits", device.edits) for index, device in enumerate(spec.devices)]
    for where, edits in parts:
        for index, node in enumerate(edits.device_nodes):
            key = "hostPath" if node.host_path else "path"
            yield f"{where}.deviceNodes[{index}].{key}", node.host_path or node.path
        for index, hook in enumerate(edits.hooks):
            yield f"{where}.hooks[{index}].path", hook.path
        for index, mount in enumerate(edits.mounts):
            if mount.host_path.startswith("/"):  # not those of a tmpfs
                yield f"{where}.mounts[{index}].hostPath", mount.host_path


def _version(spec: CdiSpec) -> Iterator[Problem]:
    if spec.version not in rules.VERSIONS:
        yield Problem("cdiVersion", f"{spec.version!r} is none of {', '.join(rules.VERSIONS)}")
        return
    minimum = spec.minimum_version()
    if rules.VERSIONS.index(spec.version) < rules.VERSIONS.index(minimum):
        keys = sorted(key for key, version in needs(spec).items() if version == minimum)
        yield Problem("cdiVersion", f"{spec.version} is too old for {', '.join(keys)}: needs {minimum}")


def _edits(where: str, edits: CdiEdits) -> Iterator[Problem]:
    for index, text in enumerate(edits.env):
        yield from _named(f"{where}.env[{index}]", rules.assignment_problem(text))
    for index, node in enumerate(edits.device_nodes):
        yield from _node(f"{where}.deviceNodes[{index}]", node)
    for index, net in enumerate(edits.net_devices):
        for key, value in (("hostInterfaceName", net.host_interface_name), ("name", net.name)):
            yield from _named(f"{where}.netDevices[{index}].{key}", "" if value else "empty")
    for index, hook in enumerate(edits.hooks):
        yield from _hook(f"{where}.hooks[{index}]", hook)
    for index, mount in enumerate(edits.mounts):
        for key, value in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
            yield from _named(f"{where}.mounts[{index}].{key}", "" if value else "empty")
    if edits.intel_rdt is not None:
        yield from _rdt(f"{where}.intelRdt", edits.intel_rdt)
    for index, gid in enumerate(edits.additional_gids):
        yield from _named(f"{where}.additionalGids[{index}]", "" if 0 <= gid < 1 << 32 else f"{gid} is not a group id")


def _node(where: str, node: CdiDeviceNode) -> Iterator[Problem]:
    yield from _named(f"{where}.path", "" if node.path else "empty")
    if node.type and node.type not in rules.NODE_TYPES:
        yield Problem(f"{where}.type", f"{node.type!r} is none of {', '.join(rules.NODE_TYPES)}")
    if node.permissions != "none" and not set(node.permissions) <= set("rwm"):
        yield Problem(f"{where}.permissions", f"{node.permissions!r} has other letters than r, w and m")
    for key, value in (("major", node.major), ("minor", node.minor), ("uid", node.uid), ("gid", node.gid)):
        if not 0 <= value < 1 << 32:
            yield Problem(f"{where}.{key}", f"{value} is out of range")
    if not 0 <= node.file_mode <= 0o7777:
        yield Problem(f"{where}.fileMode", f"{node.file_mode} is not a file mode (write it as a decimal number)")


def _hook(where: str, hook: CdiHook) -> Iterator[Problem]:
    if hook.hook_name not in rules.HOOK_NAMES:
        yield Problem(f"{where}.hookName", f"{hook.hook_name!r} is none of {', '.join(rules.HOOK_NAMES)}")
    if not hook.path:
        yield Problem(f"{where}.path", "empty")
    for index, text in enumerate(hook.env):
        yield from _named(f"{where}.env[{index}]", rules.assignment_problem(text))
    if hook.timeout < 0:
        yield Problem(f"{where}.timeout", f"{hook.timeout} is less than 0")


def _rdt(where: str, rdt: CdiIntelRdt) -> Iterator[Problem]:
    name = rdt.clos_id
    if name in (".", "..") or len(name) >= _ID_LIMIT or any(char in name for char in "/\n"):
        yield Problem(f"{where}.closID", "not the name of a directory")


def _annotations(where: str, annotations: dict[str, str]) -> Iterator[Problem]:
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > rules.ANNOTATIONS_LIMIT:
        yield Problem(where, f"{size} bytes; {rules.ANNOTATIONS_LIMIT} are allowed")
    for key in annotations:
        if not key:
            yield Problem(where, "an annotation without a name")


def _named(where: str, reason: str) -> Iterator[Problem]:
    if reason:
        yield Problem(where, reason)
