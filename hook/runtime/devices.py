"""Device nodes and rules in config.json of what a hook gives later: the same, by the same planner.

A rule that only a hook adds is lost when systemd loads its units anew: it makes the device rules of a container's scope
from what it got of the runtime, and the container then has no GPU ("Failed to initialize NVML: Unknown Error").
"""

from __future__ import annotations

import os
import stat

from hook.bundle import SHARE, fixed
from hook.runtime import edits, hooks, spec
from hook.swarm import own as own_rules
from nvc.base.errors import NvcError
from nvc.container.operations import DEVICE, AllowDevices, BindMount
from nvc.inject.planned import Planned
from nvc.inject.planner import plan
from nvc.linux import rights
from nvc.model import Container
from nvc.request.injection import ShareRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.runtime.journal import Journal
    from nvc.inject.api import Context
    from nvc.model import Selection
    from nvc.request.options import ContainerOptions

_ACCESS = "rw"


class _Nodes(Planned):
    """The plan of a container that does not exist yet: its nodes and rules are known, its directories are not."""

    def __init__(self, context: Context, options: ContainerOptions) -> None:
        super().__init__(context, options)
        self._container = Container(0, "", False, "", "/usr/bin", "", "", "", 0, 0)

    @property
    def container(self) -> Container:
        return self._container

    def share(self, request: ShareRequest, selection: Selection) -> None:
        """A container with a share gets fewer nodes."""
        from nvc.share import policyfile
        from nvc.share.preview import preview

        policy, _ = policyfile.load_node(request.config)
        self._shared = preview(policy, request, selection, self._context.driver_info()) is not None

    def update_ldcache(self) -> None:
        """The hook's."""


def grant(
    content: dict[str, Any],
    found: Bundle,
    env: Mapping[str, str],
    config: HookConfig,
    directory: str,
    journal: Journal,
) -> bool:
    """Add to ``content`` what the container's hook will give of nodes and device rules. True if there is any.

    Nothing where the device cgroup is not changed either: by configuration, and in a user namespace. What cannot be
    found out is left to the hook, which fails by it and reports it.
    """
    if config.no_cgroups or rights.in_user_namespace():
        return False
    from hook.inject import container_options, injection_request
    from hook.runtime.granted import driver_context, injected

    try:
        asked = injected(content, found, env, config, directory)
        if asked is None:
            return False
        share = ShareRequest(
            dict(found.annotations).get(SHARE, ""),
            "",
            dict(env),
            hooks.rules(content, directory) or own_rules("", os.environ),
            guard_off=found.guard_off,
            fixed=fixed(content, "", directory),
        )
        request = injection_request(asked, share)
        with driver_context(config, None) as context:
            session = _Nodes(context, container_options(asked, config, supervised=True))
            plan(request, context, session)  # type: ignore[arg-type] # of ContainerSession, what the planner uses
            root = context.host.root.rstrip("/")
            operations = session.plan
    except NvcError as error:
        journal.debug(f"device nodes are left to the hook: {error}")
        return False
    nodes = [o for o in operations if isinstance(o, BindMount) and o.source == DEVICE]
    rules = [rule for o in operations if isinstance(o, AllowDevices) for rule in o.rules]
    _allow(content, rules, directory)
    if not _has_user_namespace(content):
        # Elsewhere runtimes bind-mount the host's node of that path, and the hook does that too.
        _make(content, nodes, root, directory, journal, additional_gids=config.additional_gids)
    return bool(rules)


def _allow(content: dict[str, Any], rules: list[tuple[int, int]], directory: str) -> None:
    resources = spec.section(spec.section(content, "linux", directory), "resources", directory)
    present = spec.entries(resources, "devices", directory)
    for major, minor in rules:
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": _ACCESS}
        if rule not in present:
            present.append(rule)


def _make(
    content: dict[str, Any],
    nodes: list[BindMount],
    root: str,
    directory: str,
    journal: Journal,
    *,
    additional_gids: bool,
) -> None:
    from nvc.cdi.spec import CdiDeviceNode, CdiEdits

    made, groups = [], []
    for node in nodes:
        try:
            status = os.lstat(root + node.host_path)
        except OSError as error:
            journal.debug(f"device node {node.host_path}: {error}")
            continue
        made.append(CdiDeviceNode(node.container_path, root + node.host_path, permissions=_ACCESS, gid=status.st_gid))
        everybody = stat.S_IROTH | stat.S_IWOTH
        if additional_gids and status.st_mode & everybody != everybody:
            groups.append(status.st_gid)
    edits.apply(
        content,
        [CdiEdits(device_nodes=tuple(made), additional_gids=tuple(groups))],
        directory,
        journal.warn,
    )


def _has_user_namespace(content: dict[str, Any]) -> bool:
    linux = content.get("linux")
    namespaces = linux.get("namespaces") if isinstance(linux, dict) else None
    return isinstance(namespaces, list) and any(
        isinstance(one, dict) and one.get("type") == "user" for one in namespaces
    )
