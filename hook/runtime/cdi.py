"""Mode cdi: the devices of CDI specifications, with what the container says about them, which no engine looks at.

NVIDIA_DRIVER_CAPABILITIES, when it is set, takes away the driver files of other capabilities. NVIDIA_REQUIRE_* is
checked. MIG management and 32-bit libraries are in no specification: a container that asks for them gets its devices
from the hook, if these are all NVIDIA GPUs.
"""

from __future__ import annotations

import os

from hook import bundle, modes, request
from hook.runtime import edits, hooks
from nvc.base.errors import DeviceError, InputError, escaped, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from hook.config import HookConfig
    from hook.request import HookRequest
    from hook.runtime.journal import Journal
    from nvc.cdi.files import SpecFile
    from nvc.cdi.spec import CdiDeviceNode, CdiEdits
    from nvc.driver.tables import Ipc
    from nvc.inject.api import Context

#: As many names as a message shows.
_SHOWN = 8


def apply(
    content: dict[str, Any],
    asked: HookRequest,
    env: Mapping[str, str],
    config: HookConfig,
    own: str,
    directory: str,
    journal: Journal,
) -> None:
    """Give ``asked``'s devices. Raises NvcError; ``content`` is thrown away then."""
    names = tuple(name if modes.is_cdi(name) else f"{config.default_kind}={name}" for name in asked.devices)
    gpus = tuple(selector(name) for name in names if name.partition("=")[0] in request.GPU_KINDS)
    said = env.get(request.DRIVER_CAPABILITIES, "")
    automatic = [name.startswith(modes.AUTOMATIC) for name in names]
    beyond = asked.mig_config or asked.mig_monitor or "compat32" in said.split(",") or any(automatic)
    if beyond:
        if len(gpus) != len(names):
            raise InputError(
                "MIG management, 32-bit libraries and runtime.nvidia.com/gpu cannot be given with other CDI devices",
                hint=f"name GPUs alone ({config.default_kind}=0)",
            )
        journal.info("the hook gives what no CDI specification holds")
        path = os.environ.get("PATH", "")
        hooks.add(content, hooks.locate(config.hook_path, own, path), os.environ, directory, devices=gpus)
        from hook.runtime import devices

        devices.grant(content, bundle.look(content, directory), env, config, directory, journal)
        return
    from nvc.cdi import files

    found = files.find(config.spec_directories)
    collected = list(resolve(names, found, config)) if names else list(common(found, config.default_kind))
    if gpus or not names:
        unwanted = _checked(asked, gpus, bool(said), config, journal)
        collected = [_without(one, unwanted) for one in collected]
    edits.apply(content, [_trusted(one, config, journal) for one in collected], directory, journal.warn)


def resolve(names: Sequence[str], files: Sequence[SpecFile], config: HookConfig) -> Iterator[CdiEdits]:
    """The edits of ``names`` in order, before a file's first device those common to it. Raises InputError."""
    used: set[str] = set()
    for name in names:
        kind, _, device_name = name.partition("=")
        having = [
            (file, device)
            for file in files
            if file.spec is not None and file.spec.kind == kind
            for device in file.spec.devices
            if device.name == device_name
        ]
        first = [pair for pair in having if pair[0].rank == max(file.rank for file, _ in having)]
        if len(first) != 1:
            raise _unresolved(name, [file.path for file, _ in first], files, config)
        ((file, device),) = first
        assert file.spec is not None
        if file.path not in used:
            used.add(file.path)
            yield file.spec.edits
        yield device.edits


def common(files: Sequence[SpecFile], kind: str) -> Iterator[CdiEdits]:
    """What "none" gives: the driver without a device, from the specification that counts most."""
    having = [file for file in files if file.spec is not None and file.spec.kind == kind]
    for file in sorted(having, key=lambda file: file.rank)[-1:]:
        assert file.spec is not None
        yield file.spec.edits


def selector(name: str) -> str:
    """The device of a qualified name as ``nvc.request.selection`` takes it; gpu0 and mig1:0 are nvidia-ctk's other
    style."""
    device = name.partition("=")[2]
    for prefix in ("gpu", "mig"):
        if device.startswith(prefix) and device[len(prefix) :].replace(":", "").isdecimal():
            return device[len(prefix) :]
    return device


def _unresolved(name: str, having: list[str], files: Sequence[SpecFile], config: HookConfig) -> InputError:
    if having:
        return InputError(f"unresolvable CDI device {_named(name)}: it is in {' and in '.join(having)}")
    known = sorted(f"{file.spec.kind}={one.name}" for file in files if file.spec for one in file.spec.devices)
    broken = [f"{file.path}: {file.problems[0]}" for file in files if file.problems]
    if broken:
        hint = f"ignored as invalid: {'; '.join(broken[:_SHOWN])}"
    elif known:
        hint = f"there are: {', '.join(known[:_SHOWN])}{', ...' if len(known) > _SHOWN else ''}"
    else:
        hint = f"no specification in {', '.join(config.spec_directories)}: nvc-py cdi generate makes one"
    return InputError(f"unresolvable CDI device {_named(name)}", hint=hint)


def _named(name: str) -> str:
    kind, equals, device = name[:200].partition("=")
    return "/".join(escaped(part) for part in kind.split("/", 1)) + equals + escaped(device)


def _checked(
    asked: HookRequest, gpus: tuple[str, ...], filtered: bool, config: HookConfig, journal: Journal
) -> frozenset[str]:
    """Check the requirements; the paths of what the container did not ask for. Raises RequirementError."""
    if not asked.requirements and not filtered:
        return frozenset()
    from nvc.inject.api import Config, Context
    from nvc.request.capabilities import DriverCapabilities, wants

    uid, gid = config.ids()
    settings = Config(
        root=config.root,
        ldcache=config.ldcache or Config().ldcache,
        uid=uid,
        gid=gid,
        sim=os.environ.get("NVC_SIM", ""),
        debug=config.debug,
        mps_user=config.mps_uid(),
    )
    with Context(settings) as context:
        _require(context, asked, gpus, journal)
        if not filtered:
            return frozenset()
        driver = context.driver_info()
        capabilities = DriverCapabilities(asked.capabilities)
        files = (
            *driver.libraries,
            *driver.libraries32,
            *driver.binaries,
            *driver.ipcs,
            *driver.firmwares,
            *driver.more,
        )
        unwanted = {file.path for file in files if not wants(capabilities, file)}
        unwanted -= {file.path for file in files if wants(capabilities, file)}
        if "graphics" not in capabilities.libraries:
            unwanted |= {drm.node.path for gpu in context.device_info() for drm in gpu.drm}
        # Other programs write /var/run with its link resolved.
        unwanted |= {path.removeprefix("/var") for path in unwanted if path.startswith("/var/run/")}
        root = context.host.root.rstrip("/")
        return frozenset(unwanted | {root + path for path in unwanted})


def _require(context: Context, asked: HookRequest, gpus: tuple[str, ...], journal: Journal) -> None:
    from nvc.model import Selection

    try:
        selection = context.select(gpus)
    except DeviceError as error:
        # A specification may have names of its own; then what does not depend on the device is checked.
        journal.warn(f"requirements of arch and brand are not checked: {error}")
        selection = Selection()
    context.require(asked.requirements, selection)


def _without(one: CdiEdits, unwanted: frozenset[str]) -> CdiEdits:
    mounts = tuple(mount for mount in one.mounts if mount.host_path not in unwanted)
    nodes = tuple(node for node in one.device_nodes if (node.host_path or node.path) not in unwanted)
    # Groups are there for nodes.
    lost = _groups(one.device_nodes) - _groups(nodes)
    gids = tuple(gid for gid in one.additional_gids if gid not in lost)
    return one.replace(mounts=mounts, device_nodes=nodes, additional_gids=gids)


def _groups(nodes: Sequence[CdiDeviceNode]) -> set[int]:
    found = set()
    for node in nodes:
        try:
            found.add(os.lstat(node.host_path or node.path).st_gid)
        except OSError:
            continue  # ``edits`` says what is missing
    return found


def _trusted(one: CdiEdits, config: HookConfig, journal: Journal) -> CdiEdits:
    """Without the daemons' sockets and directories that others than root could replace before they are mounted.

    The runtime mounts by name, and a specification may be another program's, or of another day.
    """
    rows = _endpoints()
    base = (os.environ.get("NVC_SIM") or config.root).rstrip("/")
    kept = []
    for mount in one.mounts:
        is_below = mount.host_path.startswith(f"{base}/")
        root, path = (base, mount.host_path[len(base) :]) if is_below else ("", mount.host_path)
        row = rows.get(path) or rows.get(mount.container_path)
        problem = _problem(root or "/", path, row, config) if row is not None else ""
        if problem:
            journal.warn(f"{mount.host_path} is not given to the container: {problem}")
        else:
            kept.append(mount)
    return one if len(kept) == len(one.mounts) else one.replace(mounts=tuple(kept))


def _endpoints() -> dict[str, Ipc]:
    """Each path that a specification may have for a daemon's socket, with its row."""
    from nvc.driver.binaries import ipc_paths
    from nvc.model import DriverOptions

    rows = {row.path: row for _, row in ipc_paths({}, DriverOptions())}
    rows |= dict(ipc_paths(os.environ, DriverOptions()))
    # Other programs write /var/run with its link resolved.
    return rows | {path.removeprefix("/var"): row for path, row in rows.items() if path.startswith("/var/run/")}


def _problem(root: str, path: str, row: Ipc, config: HookConfig) -> str:
    """Why what is at ``path`` must not be mounted by its name, or ""."""
    from nvc.linux import owned
    from nvc.linux.root import Root

    owners = (config.mps_uid(),) if row.variable and config.mps_user else ()
    try:
        with Root.open(root) as opened:
            found = owned.endpoint(opened.fd, path, owners, row.server)
    except owned.Untrusted as error:
        return error.text
    except OSError as error:
        return reason(error)
    return "others than root can replace it" if found.is_replaceable else ""
